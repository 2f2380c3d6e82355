"""What an import wants to exist, whatever catalogue it came from. Values, no I/O."""

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
    """All that an import wants to exist, each once, in the order in which the catalogue has it.

    `entries` counts what the catalogue lists: `imported_entries` and the skipped ones make it up.
    `topic_mentions` counts topics as the entries name them: more than `topics` if some repeat.
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
    # Producers whose names cannot be usernames; their entries are imported all the same.
    skipped_producers: tuple[Skipped, ...] = ()

    @property
    def grants(self) -> int:
        """How many pairs of user and topic there are."""
        return sum(map(len, self.senders.values()))
