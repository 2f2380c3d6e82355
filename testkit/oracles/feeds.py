"""What watchers were shown, and the judge of it.

All watchers of a run must be shown the same changes for a revision, each revision once and in
order, and none may be left out: neither what another watcher was shown nor what a caller was told
to have done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2

_TOPIC: Final = streams_pb2.Topic.DESCRIPTOR.full_name


class ToldChange(NamedTuple):
    """A change of which a caller was told that it is done."""

    what: str
    revision: int
    is_of_topic: bool = True


@dataclass
class Shown:
    """One watcher's life: it was shown everything behind `begin` and up to `complete`."""

    begin: int
    only_topics: bool
    complete: int = 0
    changes: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """The encoded changes by revision."""

    def take(self, revision: int, changes: Sequence[watch_pb2.Change]) -> None:
        """Keep what is shown of a revision. Raises AssertionError if it is not a new one."""
        last = max(self.complete, *self.changes, 0)
        assert revision > last, f"a watch went back to revision {revision} from {last}"
        self.changes[revision] = tuple(each.SerializeToString() for each in changes)

    def must_have(self, revision: int) -> bool:
        """Whether it must have been shown what there is to show of a revision."""
        return self.begin < revision <= self.complete


class ShownFeed:
    """What all watchers of a run were shown."""

    def __init__(self) -> None:
        self.lives: list[Shown] = []

    @property
    def revisions(self) -> int:
        """How many revisions were shown, over all watchers."""
        return sum(len(life.changes) for life in self.lives)

    def whole(self) -> dict[int, tuple[bytes, ...]]:
        """Return all changes of each revision that a watcher of everything was shown."""
        lives = [life for life in self.lives if not life.only_topics]
        return {revision: shown for life in lives for revision, shown in life.changes.items()}

    def violations(self, told: Iterable[ToldChange]) -> list[str]:
        """Return what is wrong, given what callers were told to have done."""
        whole = self.whole()
        found = [
            f"two watchers were shown different changes of {revision}"
            for life in self.lives
            for revision, changes in life.changes.items()
            if not life.only_topics and whole[revision] != changes
        ]
        topics = {revision: _topics_of(changes) for revision, changes in whole.items()}
        for number, life in enumerate(self.lives):
            found += _differences(number, life, topics if life.only_topics else whole)
        return found + self._left_out(told)

    def _left_out(self, told: Iterable[ToldChange]) -> list[str]:
        return [
            f"watcher {number} was not shown {change.what} of revision {change.revision}"
            for change in told
            for number, life in enumerate(self.lives)
            if life.must_have(change.revision)
            and change.revision not in life.changes
            and (change.is_of_topic or not life.only_topics)
        ]


def _differences(number: int, life: Shown, expected: dict[int, tuple[bytes, ...]]) -> list[str]:
    """Return where a life differs from what others were shown of the same revisions."""
    return [
        f"watcher {number} was shown other changes of {revision} than another one"
        for revision, changes in sorted(expected.items())
        if life.must_have(revision) and life.changes.get(revision, ()) != changes
    ]


def _topics_of(changes: Sequence[bytes]) -> tuple[bytes, ...]:
    decoded = [(each, watch_pb2.Change.FromString(each)) for each in changes]
    return tuple(each for each, change in decoded if change.entity_type == _TOPIC)
