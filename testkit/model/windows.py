"""Cuts windows out of recorded runs, small enough for TLC.

A window begins when all replicas are normal in one view: then no earlier message can have an effect
that a message of this view would not have. Its logs begin at an op that all replicas know to be
committed, which takes the place of op 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from testkit.model.observed import ObservedReplica, ObservedRun
from testkit.model.recorder import SeenEntry, SeenReplica
from viewstamp.limits import PIPELINE_PREPARES_MAX

LOG_ENTRIES_MAX: Final = 40
"""How long the logs of a window become. TLC compares whole logs."""


class Inexpressible(Exception):  # noqa: N818 - it says what a replica is.
    """The specification of a window has no such replica: its log does not continue the window's."""


def windows(
    entries: Mapping[str, SeenEntry],
    seen: Sequence[SeenReplica],
    *,
    replica_count: int,
    changes: int,
) -> Iterator[ObservedRun]:
    """Yield windows of at most `changes` changes, one after the other."""
    passed = 0
    for place, known in beginnings(seen, replica_count):
        if place < passed:
            continue
        found = window(entries, known, seen[place : place + changes])
        passed = place + max(1, len(found.changes))
        if found.changes:
            yield found


def liveliest_window(
    entries: Mapping[str, SeenEntry],
    seen: Sequence[SeenReplica],
    *,
    replica_count: int,
    changes: int,
) -> ObservedRun:
    """Return the window in which most happened, of all that could be cut out of the run.

    Windows one after the other may leave out a crash: one ends before it, and the next begins when
    all replicas are normal again. Raises ValueError if the replicas never were.
    """
    found = (
        window(entries, known, seen[place : place + changes])
        for place, known in beginnings(seen, replica_count)
    )
    return max(found, key=lambda run: (run.liveliness, len(run.changes)))


def beginnings(
    seen: Sequence[SeenReplica], replica_count: int
) -> Iterator[tuple[int, Mapping[int, SeenReplica]]]:
    """Yield each place at which a window may begin, and what was known of the replicas there."""
    known: dict[int, SeenReplica] = {}
    for place, each in enumerate(seen, start=1):
        known[each.id] = each
        if are_normal(known, replica_count) and are_close(known):
            yield place, known


def are_normal(known: Mapping[int, SeenReplica], replica_count: int) -> bool:
    """Return whether all replicas are normal in one view."""
    marks = {(each.status, each.view) for each in known.values()}
    return len(known) == replica_count and len(marks) == 1 and marks.pop()[0] == "normal"


def are_close(known: Mapping[int, SeenReplica]) -> bool:
    """Return whether no replica is so far behind that the logs of a window would be long."""
    commits = [each.commit for each in known.values()]
    return max(commits) - min(commits) <= PIPELINE_PREPARES_MAX


def window(
    entries: Mapping[str, SeenEntry],
    known: Mapping[int, SeenReplica],
    seen: Sequence[SeenReplica],
) -> ObservedRun:
    """Return the window that begins with the `known` replicas.

    It ends before the first change that the specification cannot express.
    """
    first = [known[id] for id in sorted(known)]
    cutter = WindowCutter(entries, base_op(first))
    beginning = cutter.cut_all(first)
    batches = cutter.stamped
    changes = cutter.cut_all(seen) if len(beginning) == len(first) else ()
    return ObservedRun(beginning, changes, batches)


def base_op(first: Sequence[SeenReplica]) -> int:
    """Return the op that takes the place of op 1.

    A start knows a pipeline less than the head to be committed, so it lies that far behind.
    """
    known = min(min(each.commit, each.durable_op) for each in first)
    return max(1, known - PIPELINE_PREPARES_MAX)


@dataclass(slots=True)
class WindowCutter:
    """Turns what was seen into what the specification of one window has."""

    entries: Mapping[str, SeenEntry]
    base_op: int
    _stamps: dict[str, int] = field(default_factory=dict)

    @property
    def stamped(self) -> int:
        """How many entries after the base have a number so far."""
        return len(self._stamps)

    def cut_all(self, seen: Sequence[SeenReplica]) -> tuple[ObservedReplica, ...]:
        """Return these replicas up to the first that is inexpressible."""
        done: list[ObservedReplica] = []
        for each in seen:
            try:
                done.append(self.cut(each))
            except Inexpressible:
                break
        return tuple(done)

    def cut(self, seen: SeenReplica) -> ObservedReplica:
        """Return one replica. Raises Inexpressible."""
        log = self._log(seen.head)
        view, log_view, commit, voting_view = seen.durable
        return ObservedReplica(
            seen.id,
            seen.status,
            seen.view,
            seen.log_view,
            seen.voting_view,
            self._op(seen.commit),
            log,
            self._op(seen.durable_op),
            (view, log_view, self._op(commit), voting_view),
            seen.is_quiet,
            seen.is_adopting,
            seen.restarted,
        )

    def _op(self, op: int) -> int:
        return max(0, op - self.base_op + 1)

    def _log(self, head: str) -> tuple[int, ...]:
        """Return the stamps from the base to the head; numbers follow the order of making."""
        chain: list[SeenEntry] = []
        checksum = head
        while (entry := self.entries.get(checksum)) is not None and entry.op > self.base_op:
            chain.append(entry)
            checksum = entry.parent
        if entry is None or entry.op != self.base_op or len(chain) > LOG_ENTRIES_MAX:
            raise Inexpressible(f"{head!r} is no log of the window from op {self.base_op} on")
        return (0, *(self._stamp(each) for each in reversed(chain)))

    def _stamp(self, entry: SeenEntry) -> int:
        if entry.checksum not in self._stamps:
            number = len(self._stamps) + 1
            stamp = 1_000_000 * entry.view + 1_000 * number + self._op(entry.commit)
            self._stamps[entry.checksum] = stamp
        return self._stamps[entry.checksum]


def with_last_change(run: ObservedRun, **fields: object) -> ObservedRun:
    """Return the run with another last change, which no replica made."""
    last = replace(run.changes[-1], **fields)  # type: ignore[arg-type]
    return replace(run, changes=(*run.changes[:-1], last))
