"""What replicas say of a generation that is durable with them, counted: pure functions.

A generation is completed with the root that a majority of all that have a vote have, and the tasks
that the first of those has. Roots alone are compared, since replicas that agree may differ in their
layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

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

    `sections` are those that differ between some two of them.
    """

    roots: tuple[tuple[int, bytes], ...]
    sections: tuple[str, ...]


Verdict: TypeAlias = Waiting | Agreed | Disagreed


def majority_of(replica_count: int) -> int:
    """Return how many equal roots complete a generation."""
    return replica_count // 2 + 1


def judge(reports: Mapping[int, DurableReport], replica_count: int) -> Verdict:
    """Return what the reports about one generation, by replica, add up to.

    Replicas from `replica_count` on are standbys, and have no say.
    """
    reports = {replica: reports[replica] for replica in reports if replica < replica_count}
    needed = majority_of(replica_count)
    for replicas in _by_root(reports):
        if len(replicas) >= needed:
            return Agreed(reports[replicas[0]], replicas)
    reported = tuple(sorted(reports))
    if len(reported) < replica_count:
        return Waiting(reported, needed)
    roots = tuple((replica, reports[replica].root) for replica in reported)
    return Disagreed(roots, _differing(reports[replica].tasks for replica in reported))


def different_sections(
    ours: Iterable[TaskSnapshot], theirs: Iterable[TaskSnapshot]
) -> tuple[str, ...]:
    """Return the names of the sections whose state differs, in stage order.

    None of them: the roots differ in what they say of the cut, or in the sections' versions.
    """
    found = {task.stage: task.state_digest for task in ours}
    other = {task.stage: task.state_digest for task in theirs}
    stages = sorted(found.keys() | other.keys())
    return tuple(stage.name.lower() for stage in stages if found.get(stage) != other.get(stage))


class Reports:
    """The last report of each replica, of which so many have a vote; this one is `replica_id`.

    Only one generation can be undecided at a time, the newest: so one report of each is enough.
    """

    def __init__(self, replica_id: int = 0, replica_count: int = 1) -> None:
        self.replica_id = replica_id
        self.replica_count = replica_count
        self._last: dict[int, tuple[int, DurableReport]] = {}

    def take(self, replica: int, generation: int, report: DurableReport) -> None:
        """Take in what another replica says."""
        self._last[replica] = (generation, report)

    def clear(self) -> None:
        """Forget all: they are said again to whoever is the primary."""
        self._last.clear()

    def of(self, generation: int) -> dict[int, DurableReport]:
        """Return what other replicas say of a generation."""
        return {replica: report for replica, (g, report) in self._last.items() if g == generation}

    def judge(self, generation: int, own: DurableReport | None) -> Verdict:
        """Return what all reports of a generation add up to, with this replica's own if any."""
        reports = self.of(generation)
        if own is not None:
            reports[self.replica_id] = own
        return judge(reports, self.replica_count)

    @property
    def others_suffice(self) -> bool:
        """Whether a generation can complete that this replica cannot write."""
        is_standby = self.replica_id >= self.replica_count
        others = self.replica_count if is_standby else self.replica_count - 1
        return others >= majority_of(self.replica_count)


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
