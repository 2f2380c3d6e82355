"""What a journal's bytes mean after a crash: pure analysis.

`findings` finds what is lost, `lost_op_bounds` proves ops by counting. `Evidence` tells the facts
about a finding, and `viewstamp.format.recovery_table` what is done.

**Doubt.** A lost record whose op is unknown may have been a cut, or a newer entry of any op. So
entries before it are in doubt (`live.in_doubt`): they may have been replaced. They count as missing
unless the hash chain ties them to an entry after it, or says that they were committed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.journal.findings import JournalFinding, Stray, VerifiedRecord, find
from coordinator.journal.lost_op_bounds import tell_ops
from viewstamp.format.record import Frame, RecordKind
from viewstamp.format.recovery_table import Facts, RecoveryDecision, decide, is_above_commit
from viewstamp.format.removals import Removals, reach_after


@dataclass(frozen=True, slots=True)
class Judged:
    """A finding and the decision about it."""

    finding: JournalFinding
    decision: RecoveryDecision


class Evidence:
    """What all records together prove, looked up by sequence and by op."""

    def __init__(
        self,
        entries: Sequence[VerifiedRecord],
        commit_max: int,
        reached_op: int = 0,
        misdirected: Sequence[Frame] = (),
        known_sequence: int = 0,
    ) -> None:
        """Take `entries` in file order, and the superblock's `commit_max` and `known_sequence`, the
        record that it knows to be durable; the log reached `reached_op` before any of them. The
        frames of `misdirected` records prove what was synced, too.
        """
        self._known_sequence = known_sequence
        by_sequence = sorted(entries, key=lambda entry: entry.frame.sequence)
        self._sequences = [entry.frame.sequence for entry in by_sequence]
        frames = sorted(
            (*(entry.frame for entry in entries), *misdirected), key=lambda frame: frame.sequence
        )
        self._frame_sequences = [frame.sequence for frame in frames]
        self._durable_after = _suffix_maxima([frame.durable_sequence for frame in frames])
        self._reach = _reach(by_sequence, reached_op)
        self._newest_of_op: dict[int, tuple[int, bytes]] = {}
        self._removals = Removals()
        self._superblock_commit = commit_max
        self.commit = commit_max
        for entry in by_sequence:
            if entry.reason is None:
                self._count(entry)
        self._removals.settle()

    def _count(self, entry: VerifiedRecord) -> None:
        sequence = entry.frame.sequence
        if entry.header is not None:
            self.commit = max(self.commit, entry.header.commit)
            self._newest_of_op[entry.header.op] = sequence, entry.header.checksum
        elif entry.frame.kind is RecordKind.CUT:
            self._removals.cut(sequence, entry.frame.op)
        elif entry.frame.kind is RecordKind.RESTART:
            self._removals.restart = sequence, entry.frame.op
            self._newest_of_op.clear()
        self._removals.repaired(sequence, entry.ranges)

    @property
    def restart(self) -> tuple[int, int]:
        """Sequence and op of the newest restart; zeros for none."""
        return self._removals.restart

    @property
    def durable_sequence(self) -> int:
        """The highest sequence that a record or the superblock knows to be synced; 0 for none."""
        return max(self._durable_after[0], self._known_sequence)

    def above_durable(self, sequence: int) -> bool:
        """Return whether neither the superblock nor a record after `sequence` was written knowing
        `sequence` to be synced."""
        known = self._durable_after[bisect_right(self._frame_sequences, sequence)]
        return max(known, self._known_sequence) < sequence

    def above_commit(self, finding: JournalFinding, *, single: bool) -> bool:
        """Return whether the log reaches all known commits without the finding."""
        if not single:
            reach = self._reach[bisect_left(self._sequences, finding.first_sequence)]
            return reach >= self._superblock_commit
        return is_above_commit(finding.op, finding.inferred_op, self.commit)

    def superseded(self, finding: JournalFinding) -> bool:
        """Return whether other records make the finding irrelevant."""
        first, last, op = finding.first_sequence, finding.last_sequence, finding.op
        newest, checksum = (0, b"") if op is None else self._newest_of_op.get(op, (0, b""))
        if self._removals.is_replaced(first, last, op, newest):
            return True
        if op is None or not newest:
            return False
        # An earlier entry may be the same one, and count.
        return checksum == finding.checksum and not self.removed(op, newest)

    def repaired(self, finding: JournalFinding) -> bool:
        """Return whether later repaired records, one or several together, name the sequences."""
        return self._removals.is_repaired(finding.first_sequence, finding.last_sequence)

    def removed(self, op: int, sequence: int) -> bool:
        """Return whether a cut or a restart after `sequence` took `op` out of the log."""
        return sequence < self.restart[0] or self._removals.was_cut(op, sequence)

    def facts(self, finding: JournalFinding, *, single: bool) -> Facts:
        """Return the inputs of the table for a finding."""
        return Facts(
            intact=False,
            superseded=self.superseded(finding),
            above_durable=self.above_durable(finding.first_sequence),
            above_commit=self.above_commit(finding, single=single),
            torn=finding.torn,
            single=single,
        )


def _reach(by_sequence: Sequence[VerifiedRecord], reached_op: int) -> list[int]:
    """Return the log's highest op before each record and after the last; damaged ones count."""
    reach = [reached_op]
    for entry in by_sequence:
        reach.append(reach_after(reach[-1], entry.frame, reached_op))
    return reach


def _suffix_maxima(values: Sequence[int]) -> list[int]:
    """Return for each position the maximum from there on, and 0 past the end."""
    maxima = [0] * (len(values) + 1)
    for index in range(len(values) - 1, -1, -1):
        maxima[index] = max(values[index], maxima[index + 1])
    return maxima


def judge(
    entries: Sequence[VerifiedRecord],
    strays: Sequence[Stray],
    *,
    first_segment: int,
    commit_max: int,
    single: bool,
    covered_op: int = 0,
    reached_op: int | None = None,
    known_sequence: int = 0,
) -> tuple[list[Judged], Evidence]:
    """Find everything lost or damaged and decide about it, in file order.

    A snapshot covers all up to `covered_op`, and the log is known to have reached `reached_op`,
    which is the same op unless another one is given.
    """
    misdirected = [stray.misdirected for stray in strays if stray.misdirected is not None]
    reached_op = covered_op if reached_op is None else reached_op
    evidence = Evidence(entries, commit_max, reached_op, misdirected, known_sequence)
    findings = list(find(entries, strays, first_segment, known_sequence))
    if not single:
        findings = tell_ops(findings, entries, first_segment, covered_op)
    judged = [
        Judged(finding, decide(evidence.facts(finding, single=single))) for finding in findings
    ]
    return judged, evidence
