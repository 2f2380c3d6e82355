"""The entities that an import wants to exist, for every kind of catalogue. Values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class CatalogueError(ValueError):
    """A catalogue that cannot be read; the message names the place and what belongs there."""


class TopicKey(NamedTuple):
    """A topic by the names of its stream and its own."""

    stream: str
    topic: str


class GroupKey(NamedTuple):
    """A consumer group by the names of its stream, its topic and its own."""

    stream: str
    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something in the catalogue that is not imported, and why."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """All entities that an import wants to exist, each once, in the order of the catalogue.

    `entries` counts the entries of the catalogue: the sum of `imported_entries` and the skipped
    ones. `topic_mentions` counts every mention of a topic: more than `topics` if some repeat.
    """

    source: str
    entries: int
    imported_entries: int
    topic_mentions: int
    streams: tuple[str, ...]
    topics: tuple[TopicKey, ...]
    groups: tuple[GroupKey, ...]
    # Producers, and the topics that each may send messages to.
    senders: dict[str, tuple[TopicKey, ...]]
    skipped_entries: tuple[Skipped, ...]
    # Producers whose names cannot be usernames; their entries are still imported.
    skipped_producers: tuple[Skipped, ...] = ()

    @property
    def grants(self) -> int:
        """How many pairs of user and topic there are."""
        return sum(map(len, self.senders.values()))
