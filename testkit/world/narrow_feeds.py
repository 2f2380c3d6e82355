"""What watchers of a part of the changes were shown, and the judge of it.

A watcher of everything was shown the whole of some revisions. Of these, a watcher of a part has to
be shown exactly what is in its part, and nothing at all of revisions that it may not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from testkit.oracles.feeds import Shown, ShownFeed
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2


@dataclass(frozen=True, slots=True)
class WatchedPart:
    """What a watch asks for: full names of types, numbers of domains, ids; empty and 0 for any."""

    entity_types: tuple[str, ...] = ()
    domains: tuple[int, ...] = ()
    stream_id: int = 0
    topic_id: int = 0
    group_id: int = 0

    def has(self, change: watch_pb2.Change) -> bool:
        """Whether a change is in it."""
        return (
            (not self.entity_types or change.entity_type in self.entity_types)
            and (not self.domains or change.domain in self.domains)
            and self.stream_id in (0, change.stream_id)
            and self.topic_id in (0, change.topic_id)
            and self.group_id in (0, change.group_id)
        )


@dataclass(frozen=True, slots=True)
class Hidden:
    """Revisions that a user may not be shown: those behind `begin` and up to `end`."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class NarrowLife:
    """One life of a watcher: its name, what it asked for, and what it was shown."""

    who: str
    part: WatchedPart
    shown: Shown


def narrow_violations(
    lives: Iterable[NarrowLife],
    feed: ShownFeed,
    hidden: Mapping[str, Sequence[Hidden]],
    told: Sequence[watch_pb2.Change],
) -> list[str]:
    """Return what is wrong with lives, given what watchers of everything were shown.

    `hidden` is what each watcher may not see, by its name. `told` are changes of which a caller
    knows: the revision, the type and the ids.
    """
    whole = {revision: _decoded(changes) for revision, changes in feed.whole().items()}
    references = [life for life in feed.lives if not life.only_topics]
    found: list[str] = []
    for life in lives:
        found += _strays(life, hidden.get(life.who, ()))
        found += _differences(life, whole, references)
        found += _left_out(life, told)
    return found


def _strays(life: NarrowLife, hidden: Sequence[Hidden]) -> Iterator[str]:
    """Yield what was shown that was not asked for, or may not be seen."""
    for revision, changes in life.shown.changes.items():
        if not all(map(life.part.has, _decoded(changes))):
            yield f"watcher {life.who} was shown what it did not ask for, of {revision}"
        if any(each.begin < revision <= each.end for each in hidden):
            yield f"watcher {life.who} was shown changes of {revision}, which it may not see"


def _differences(
    life: NarrowLife,
    whole: Mapping[int, Sequence[watch_pb2.Change]],
    references: Sequence[Shown],
) -> Iterator[str]:
    """Yield the revisions of which a watcher of everything was shown something else."""
    shown = life.shown.changes
    for revision in sorted({*whole, *shown}):
        is_known = any(each.must_have(revision) for each in references)
        if not is_known or not life.shown.must_have(revision):
            continue
        due = [each for each in whole.get(revision, ()) if life.part.has(each)]
        if _decoded(shown.get(revision, ())) != due:
            yield (
                f"watcher {life.who} was shown {len(shown.get(revision, ()))} changes of"
                f" {revision}, and {len(due)} others are due"
            )


def _left_out(life: NarrowLife, told: Sequence[watch_pb2.Change]) -> Iterator[str]:
    for change in told:
        is_due = life.part.has(change) and life.shown.must_have(change.revision)
        if is_due and not any(
            _is_about(each, change)
            for each in _decoded(life.shown.changes.get(change.revision, ()))
        ):
            yield (
                f"watcher {life.who} was not shown a {change.entity_type} of revision"
                f" {change.revision}"
            )


def _is_about(shown: watch_pb2.Change, told: watch_pb2.Change) -> bool:
    """Whether what was shown is the change that a caller knows of."""
    ids = [(each.stream_id, each.topic_id, each.group_id) for each in (shown, told)]
    return shown.entity_type == told.entity_type and ids[0] == ids[1]


def _decoded(changes: Sequence[bytes]) -> list[watch_pb2.Change]:
    return [watch_pb2.Change.FromString(each) for each in changes]
