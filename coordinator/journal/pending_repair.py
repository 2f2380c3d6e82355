"""Faults that recovery reported, until this replica durably holds the cluster's log again."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.journal.plan import OpeningPlan
from coordinator.journal.recovery import FAULTY


class PendingRepair:
    """What is still lost. Every restart reports it again until it is settled.

    `ranges` are the sequences of lost records whose frames do not tell their ops; with `is_unknown`
    nothing tells the op of some. `missing` are the ops above the base that are lost, damaged or in
    doubt.
    """

    def __init__(self, plan: OpeningPlan, holes: Iterable[int]) -> None:
        lost = [verdict.finding for verdict in plan.judged if verdict.decision in FAULTY]
        self.is_unknown = any(finding.op is None for finding in lost)
        # Counting tells less once segments before are dropped: what it told is noted, too.
        counted = [verdict.finding for verdict in plan.judged if verdict.finding.is_counted]
        self.ranges = _joined(
            (finding.first_sequence, finding.last_sequence)
            for finding in (*(each for each in lost if each.op is None), *counted)
            if not plan.evidence.repaired(finding)
        )
        self.missing = set(holes)
        self._first_segment = min(
            (
                finding.shown_from
                for finding in lost
                if finding.op is None or finding.op in self.missing
            ),
            default=0,  # nothing is
        )

    @property
    def any(self) -> bool:
        """Whether anything is left to be settled."""
        return bool(self.ranges or self.missing)

    @property
    def missing_ops(self) -> tuple[int, ...]:
        """What is missing, ascending."""
        return tuple(sorted(self.missing))

    @property
    def first_segment(self) -> int | None:
        """The first segment that must stay: what shows that something was lost lies there."""
        return self._first_segment or None if self.any else None

    def appended(self, op: int) -> None:
        """An op was written again."""
        self.missing.discard(op)

    def removed_after(self, op: int) -> None:
        """All ops above `op` were durably taken out of the log, and their loss with them."""
        self.missing = {missing for missing in self.missing if missing <= op}

    def covered_up_to(self, op: int) -> None:
        """A snapshot covers everything up to `op`; what was lost above it still is."""
        self.missing = {missing for missing in self.missing if missing > op}

    def settle(self) -> None:
        """Nothing is lost any more."""
        assert not self.missing
        self.ranges, self.is_unknown = (), False


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same sequences in as few ranges as possible: a gap is looked for as a whole."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return tuple(joined)
