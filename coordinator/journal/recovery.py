"""What a journal's bytes mean after a crash: pure analysis and a decision table.

`findings` finds what is lost, `lost_op_bounds` proves ops by counting. Six facts about a finding
decide what is done, by the table `DECISIONS` and nothing else:

`intact`
    The record verified in full.
`superseded`
    It no longer matters: a later record of the same op is intact, or an earlier one of the same
    op and checksum still counts; a later cut or restart removed the op; or a repaired record
    names its sequence.
`above_durable`
    Its sequence is above the durable_sequence of every later record, and above that of the
    superblock: nothing was written knowing that this record was synced, and nothing depended on it.
`above_commit`
    The log reaches everything known to be committed without it. For a single replica: its op is
    above the superblock's commit_max and every commit that a record mentions; an unknown op
    counts as not above. For a member: the records before it reach the superblock's commit_max.
    Commits that records mention do not count there, since the others commit without it.
`torn`
    Units of it are still zeros that were not written as zeros (see `viewstamp.format.record`): its
    write never reached the disk, so the sync of its group never returned, and it was never
    acknowledged. A record found elsewhere (`misdirected_writes`) is not torn: the disk wrote it
    there, and the sync returned.
`single`
    The cluster has one replica: nobody else can supply what is lost.

**Why members need `torn`.** A single replica cuts an unacknowledged tail on the evidence of
`above_durable` and `above_commit`. That includes rot in the very last group, which looks the same:
it has no peer to ask, and would otherwise not start after most crashes. A member has peers, and
must not forget what it acknowledged: the others may have committed because of it. So a record that
may have existed is faulty, and the member never denies it. But if a power failure hits the whole
cluster in the middle of writing, every member has such a tail, none could deny the op, and none
would ever serve again. Hence the proof: members also cut a tail that is certainly torn, and a tail
that only may be torn stays faulty.

**Doubt.** A lost record whose op is unknown may have been a cut, or a newer entry of any op. So
entries before it are in doubt (`live.in_doubt`): they may have been replaced. They count as missing
unless the hash chain ties them to an entry after it, or says that they were committed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from coordinator.journal.findings import JournalFinding, Stray, VerifiedRecord, find
from coordinator.journal.lost_op_bounds import tell_ops
from viewstamp.format.record import Frame, RecordKind


class RecoveryDecision(Enum):
    """What recovery does about a record or a finding."""

    KEEP = "keep"
    IGNORE = "ignore"
    CUT = "cut"
    FAULTY_TORN = "faulty_torn"
    FAULTY_CORRUPT = "faulty_corrupt"
    REFUSE = "refuse"


FAULTY = frozenset({RecoveryDecision.FAULTY_TORN, RecoveryDecision.FAULTY_CORRUPT})


@dataclass(frozen=True, slots=True)
class Facts:
    """The six inputs of the decision table."""

    intact: bool
    superseded: bool
    above_durable: bool
    above_commit: bool
    torn: bool
    single: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: None matches either value."""

    intact: bool | None
    superseded: bool | None
    above_durable: bool | None
    above_commit: bool | None
    torn: bool | None
    single: bool | None
    decision: RecoveryDecision

    def matches(self, facts: Facts) -> bool:
        """Return whether these facts match this row."""
        wanted = (
            (self.intact, facts.intact),
            (self.superseded, facts.superseded),
            (self.above_durable, facts.above_durable),
            (self.above_commit, facts.above_commit),
            (self.torn, facts.torn),
            (self.single, facts.single),
        )
        return all(want is None or want == fact for want, fact in wanted)


# A single replica writes every op once and cuts torn records, so none of its records is ever
# superseded: such a damaged record is corruption like any other.
DECISIONS: tuple[Row, ...] = (
    # intact, superseded, above_durable, above_commit, torn, single
    Row(True, None, None, None, None, None, RecoveryDecision.KEEP),
    Row(False, True, None, None, None, False, RecoveryDecision.IGNORE),
    Row(False, True, None, None, None, True, RecoveryDecision.REFUSE),
    Row(False, False, True, True, None, True, RecoveryDecision.CUT),
    Row(False, False, True, False, None, True, RecoveryDecision.REFUSE),
    Row(False, False, False, None, None, True, RecoveryDecision.REFUSE),
    Row(False, False, True, True, True, False, RecoveryDecision.CUT),
    Row(False, False, True, True, False, False, RecoveryDecision.FAULTY_TORN),
    Row(False, False, True, False, None, False, RecoveryDecision.FAULTY_CORRUPT),
    Row(False, False, False, None, None, False, RecoveryDecision.FAULTY_CORRUPT),
)


def decide(facts: Facts) -> RecoveryDecision:
    """Look the facts up; a test proves that exactly one row matches any facts."""
    for row in DECISIONS:
        if row.matches(facts):
            return row.decision
    raise AssertionError(f"no row of the recovery table matches {facts}")


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
        self._cuts: list[tuple[int, int]] = []
        self._repaired: list[tuple[int, int, int]] = []
        self._superblock_commit = commit_max
        self.commit = commit_max
        self.restart = (0, 0)
        """Sequence and op of the newest restart; zeros for none."""
        for entry in by_sequence:
            if entry.reason is None:
                self._count(entry)

    def _count(self, entry: VerifiedRecord) -> None:
        sequence = entry.frame.sequence
        if entry.header is not None:
            self.commit = max(self.commit, entry.header.commit)
            self._newest_of_op[entry.header.op] = sequence, entry.header.checksum
        elif entry.frame.kind is RecordKind.CUT:
            self._cuts.append((sequence, entry.frame.op))
        elif entry.frame.kind is RecordKind.RESTART:
            self.restart = sequence, entry.frame.op
            self._newest_of_op.clear()
        self._repaired.extend((sequence, first, last) for first, last in entry.ranges)

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
        op = finding.inferred_op if finding.op is None else finding.op
        return op is not None and op > self.commit

    def superseded(self, finding: JournalFinding) -> bool:
        """Return whether other records make the finding irrelevant."""
        if self.repaired(finding):
            return True
        if finding.op is None:
            return False
        newest, checksum = self._newest_of_op.get(finding.op, (0, b""))
        if newest and checksum == finding.checksum and not self.removed(finding.op, newest):
            return True
        if newest > finding.last_sequence or self._was_cut(finding.op, finding.last_sequence):
            return True
        # A restart forgets entries that a snapshot covers. Above that a lost entry stays lost.
        restart_sequence, restart_op = self.restart
        return finding.last_sequence < restart_sequence and finding.op <= restart_op

    def repaired(self, finding: JournalFinding) -> bool:
        """Return whether later repaired records, one or several together, name the sequences."""
        unnamed = finding.first_sequence
        for first, last in sorted(
            (first, last)
            for sequence, first, last in self._repaired
            if sequence > finding.last_sequence
        ):
            if first > unnamed:
                break
            unnamed = max(unnamed, last + 1)
        return unnamed > finding.last_sequence

    def removed(self, op: int, sequence: int) -> bool:
        """Return whether a cut or a restart after `sequence` took `op` out of the log."""
        return sequence < self.restart[0] or self._was_cut(op, sequence)

    def _was_cut(self, op: int, sequence: int) -> bool:
        return any(at > sequence and op > remains for at, remains in self._cuts)

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
        op, kind = entry.frame.op, entry.frame.kind
        if kind is RecordKind.PREPARE:
            reach.append(max(reach[-1], op))
        elif kind is RecordKind.REPAIRED:
            reach.append(reach[-1])
        else:
            reach.append(max(reached_op, op if kind is RecordKind.RESTART else min(reach[-1], op)))
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
