"""Faults that recovery reported, until this replica durably holds the cluster's log again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.journal.findings import JournalFinding
from coordinator.journal.plan import OpeningPlan
from viewstamp.format.recovery_table import FAULTY


class PendingRepair:
    """What is still lost. Every restart reports it again until it is settled.

    `ranges` are the sequences of lost records whose frames do not name their ops; `is_unknown` says
    that the op of some remains unknown. `missing` are the ops above the base that are lost, damaged
    or in doubt.
    """

    def __init__(self, plan: OpeningPlan, holes: Iterable[int]) -> None:
        lost = [verdict.finding for verdict in plan.judged if verdict.decision in FAULTY]
        self.is_unknown = any(finding.op is None for finding in lost)
        # Counting proves less once earlier segments are dropped, so proved losses are noted too.
        counted = [verdict.finding for verdict in plan.judged if verdict.finding.is_counted]
        self.ranges = _joined(
            (finding.first_sequence, finding.last_sequence)
            for finding in (*(each for each in lost if each.op is None), *counted)
            if not plan.evidence.repaired(finding)
        )
        self.missing = set(holes)
        self._identities = _identities(lost)
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
        """The missing ops, ascending."""
        return tuple(sorted(self.missing))

    @property
    def missing_checksums(self) -> dict[int, bytes]:
        """Checksums of missing entries by op, as the frames of their damaged records say."""
        return {op: self._identities[op] for op in self.missing_ops if op in self._identities}

    @property
    def first_segment(self) -> int | None:
        """The first segment that must stay, because it shows that something was lost."""
        return self._first_segment or None if self.any else None

    @property
    def is_told(self) -> bool:
        """Whether everything that is lost is an entry whose op and checksum are known."""
        return not self.ranges and not self.is_unknown and self.missing <= self._identities.keys()

    def is_shown_from(self, segment: int) -> None:
        """Note that what shows the losses lies elsewhere now."""
        self._first_segment = segment

    def appended(self, op: int) -> None:
        """Note that an op was written again."""
        self.missing.discard(op)

    def removed_after(self, op: int) -> None:
        """Note that all ops above `op` were durably removed, and their loss with them."""
        self.missing = {missing for missing in self.missing if missing <= op}

    def covered_up_to(self, op: int) -> None:
        """Note that a snapshot covers everything up to `op`; losses above it remain."""
        self.missing = {missing for missing in self.missing if missing > op}

    def settle(self) -> None:
        """Note that nothing is lost any more."""
        assert not self.missing
        self.ranges, self.is_unknown = (), False


def _identities(lost: Sequence[JournalFinding]) -> dict[int, bytes]:
    """Return the checksum, by op, of each entry whose damaged record still has an intact frame.

    The newest record of an op counts. A lost record of unknown op may have replaced any entry
    before it, so what older frames say is not believed.
    """
    doubtful = max((finding.last_sequence for finding in lost if finding.op is None), default=0)
    newest = {
        finding.op: finding
        for finding in sorted(lost, key=lambda finding: finding.last_sequence)
        if finding.op is not None
    }
    return {
        op: finding.checksum
        for op, finding in newest.items()
        if finding.checksum is not None and finding.first_sequence > doubtful
    }


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the same sequences in as few ranges as possible: a gap is looked up as a whole."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return tuple(joined)
