"""Counting the replicas' reports about a durable generation.

A generation is completed with the root that a majority of all voters have, and the tasks that the
first of those reported. The voters are those of the epoch in which it is judged, whoever they were
when it was cut. Only roots are compared, since replicas that agree may differ in their layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.base.roster import Roster
from coordinator.mux.catalog_types import TaskSnapshot


@dataclass(frozen=True, slots=True)
class DurableReport:
    """A replica holds the generation, with this root of 32 bytes and these tasks."""

    root: bytes
    tasks: tuple[TaskSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """More reports may settle it; `reported` are the replicas that have sent one."""

    reported: tuple[int, ...]
    needed: int


@dataclass(frozen=True, slots=True)
class Agreed:
    """A majority has this root."""

    report: DurableReport
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Disagreed:
    """All replicas have reported, and no root has a majority: nobody knows who is right.

    `sections` are those in which any two replicas differ.
    """

    roots: tuple[tuple[int, bytes], ...]
    sections: tuple[str, ...]


Verdict: TypeAlias = Waiting | Agreed | Disagreed


def judge(reports: Mapping[int, DurableReport], roster: Roster) -> Verdict:
    """Return the verdict of the reports about one generation, by replica.

    Those of standbys, and of replicas that are no members, do not count.
    """
    reports = {replica: reports[replica] for replica in reports if replica in roster.voters}
    needed = roster.majority
    for replicas in _by_root(reports):
        if len(replicas) >= needed:
            return Agreed(reports[replicas[0]], replicas)
    reported = tuple(sorted(reports))
    if len(reported) < len(roster.voters):
        return Waiting(reported, needed)
    roots = tuple((replica, reports[replica].root) for replica in reported)
    return Disagreed(roots, _differing(reports[replica].tasks for replica in reported))


def different_sections(
    ours: Iterable[TaskSnapshot], theirs: Iterable[TaskSnapshot]
) -> tuple[str, ...]:
    """Return the names of the sections whose state differs, in stage order.

    If there are none, the roots differ in the cut, or in the sections' versions.
    """
    found = {task.stage: task.state_digest for task in ours}
    other = {task.stage: task.state_digest for task in theirs}
    stages = sorted(found.keys() | other.keys())
    return tuple(stage.name.lower() for stage in stages if found.get(stage) != other.get(stage))


class Reports:
    """The last report of each replica of the roster.

    Only the newest generation can be undecided, so one report of each replica is enough.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._last: dict[int, tuple[int, DurableReport]] = {}
        roster.follow(self._forget_removed)

    def take(self, replica: int, generation: int, report: DurableReport) -> bool:
        """Take another replica's report; return whether it is a member."""
        is_member = replica in self._roster.others
        if is_member:
            self._last[replica] = (generation, report)
        return is_member

    def _forget_removed(self) -> None:
        others = self._roster.others
        self._last = {replica: each for replica, each in self._last.items() if replica in others}

    def clear(self) -> None:
        """Forget all reports: replicas repeat them to the next primary."""
        self._last.clear()

    def of(self, generation: int) -> dict[int, DurableReport]:
        """Return the other replicas' reports about a generation."""
        return {replica: report for replica, (g, report) in self._last.items() if g == generation}

    def judge(self, generation: int, own: DurableReport | None) -> Verdict:
        """Return the verdict of all reports about a generation, including this replica's own."""
        reports = self.of(generation)
        if own is not None:
            reports[self._roster.replica_id] = own
        return judge(reports, self._roster)

    @property
    def others_suffice(self) -> bool:
        """Whether a generation can complete although this replica cannot write it."""
        voters = self._roster.voters
        return len(voters) - (self._roster.replica_id in voters) >= self._roster.majority


def _by_root(reports: Mapping[int, DurableReport]) -> list[tuple[int, ...]]:
    """Return the replicas of each root, ascending."""
    groups: dict[bytes, list[int]] = {}
    for replica in sorted(reports):
        groups.setdefault(reports[replica].root, []).append(replica)
    return [tuple(group) for group in groups.values()]


def _differing(reported: Iterable[tuple[TaskSnapshot, ...]]) -> tuple[str, ...]:
    first, *others = reported
    pairs = [(first, other) for other in others]
    names = {name for pair in pairs for name in different_sections(*pair)}
    return tuple(task.stage.name.lower() for task in first if task.stage.name.lower() in names)
