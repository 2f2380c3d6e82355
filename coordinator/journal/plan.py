"""The decisions of opening a journal, made after everything was read and before any write."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from coordinator.journal.errors import CorruptJournal, SuperblockOlder
from coordinator.journal.findings import JournalFinding, Stray, VerifiedRecord
from coordinator.journal.live import chain_breaks, in_doubt, live_entries, unconnected
from coordinator.journal.recovery import Evidence, Judged, judge
from coordinator.journal.rules import LogBase
from coordinator.journal.superblock import NO_SUPERBLOCK, SuperblockMark
from coordinator.storage import StorageFile
from viewstamp.format.record import SECTOR_BYTES, Frame, RecordKind
from viewstamp.format.recovery_table import FAULTY, RecoveryDecision


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """Whose journal is expected, and what the superblock knows about it.

    `replay_op` is the first op that a restart must find in the journal: one past the cut of the
    snapshot from which it starts, or 1. `base_checksum` is that of the entry at the cut, if known.
    `log_view` is None if there is no superblock. `is_base_fetched` says that peers gave that
    snapshot in place of a damaged one: the superblock knew nothing of its cut.
    """

    cluster_id: bytes
    replica_id: int
    replica_count: int
    commit_max: int
    log_view: int | None
    replay_op: int
    base_checksum: bytes | None = None
    superblock: SuperblockMark = NO_SUPERBLOCK
    is_base_fetched: bool = False

    @property
    def reached_op(self) -> int:
        """How far the log reached, for all that the superblock knows, without any record.

        A fetched snapshot may cover more. That does not excuse a journal that lost what the
        superblock knows to be committed: entries behind it may be lost, too.
        """
        return 0 if self.is_base_fetched else self.replay_op - 1

    @property
    def base(self) -> LogBase:
        """The entry before the first one that a restart must find."""
        return LogBase(self.replay_op - 1, self.base_checksum) if self.replay_op > 1 else LogBase()

    @property
    def single(self) -> bool:
        """Whether this replica is the whole cluster."""
        return self.replica_count == 1


@dataclass(slots=True)
class OpenSegments:
    """The files of a journal, all of one journal_id, and those whose header is damaged."""

    journal_id: bytes
    files: dict[int, StorageFile]
    damaged_headers: list[int]


@dataclass(slots=True)
class Contents:
    """What scanning the segments found, in file order.

    `within` are the sectors of damaged records, strays and damaged headers that hold something like
    a frame: a misdirected record may lie there.
    """

    entries: list[VerifiedRecord] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)
    within: list[Stray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OpeningPlan:
    """What opening will do once all checks have passed.

    `kept` are the records that stay, `live` the entries among them that form the log. All records
    from the sequence of the finding `cut` on are removed, with everything behind its start.
    """

    kept: list[VerifiedRecord]
    live: dict[int, VerifiedRecord]
    doubtful: list[int]
    judged: list[Judged]
    evidence: Evidence
    restart_op: int
    cut: JournalFinding | None

    @property
    def cut_op(self) -> int:
        """The first op that is cut off."""
        return max(self.live, default=0) + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record that is there or lost, 0 for none."""
        sequences = [entry.frame.sequence for entry in self.kept]
        sequences += [verdict.finding.last_sequence for verdict in self.judged]
        return max(sequences, default=0)

    @property
    def durable_sequence(self) -> int:
        """The sequence of the last intact record that stays, 0 for none."""
        intact = (entry.frame.sequence for entry in self.kept if entry.reason is None)
        return max(intact, default=0)

    @property
    def is_named(self) -> bool:
        """Whether a record names its superblock: builds that know that know the reverse, too."""
        return any(entry.frame.superblock_sequence for entry in self.kept)

    def is_cut(self, stray: Stray) -> bool:
        """Return whether a stray is part of the cut. A misdirected record outside the cut stays: it
        may be the only evidence that the record existed."""
        if self.cut is None or (stray.segment, stray.offset) < self.cut.start:
            return False
        return stray.misdirected is None or stray.misdirected.sequence >= self.cut.first_sequence


def make_plan(opened: OpenSegments, contents: Contents, identity: JournalIdentity) -> OpeningPlan:
    """Decide about everything found.

    Raises CorruptJournal for damage that this replica cannot mend, SuperblockOlder.
    """
    check_superblock_is_newest(opened, contents, identity)
    judged, evidence = judge(
        contents.entries,
        contents.strays,
        first_segment=min(opened.files),
        commit_max=identity.commit_max,
        single=identity.single,
        covered_op=identity.replay_op - 1,
        reached_op=identity.reached_op,
        known_sequence=identity.superblock.journal_sequence,
    )
    return judged_plan(opened, contents, judged, evidence, identity, needs_covered=identity.single)


def judged_plan(
    opened: OpenSegments,
    contents: Contents,
    judged: list[Judged],
    evidence: Evidence,
    identity: JournalIdentity,
    *,
    needs_covered: bool,
) -> OpeningPlan:
    """Decide what to do about what was judged. `needs_covered` says that entries which a snapshot
    covers have to be a chain, too, where nobody else can supply them. Raises CorruptJournal.
    """
    for verdict in judged:
        if verdict.decision is RecoveryDecision.REFUSE:
            _refuse(opened, verdict.finding)
    cuts = [verdict.finding for verdict in judged if verdict.decision is RecoveryDecision.CUT]
    cut = min(cuts, key=lambda finding: finding.first_sequence) if cuts else None
    judged = [v for v in judged if cut is None or v.finding.first_sequence < cut.first_sequence]
    plan = _plan(contents, judged, evidence, cut, identity, needs_covered=needs_covered)
    if identity.single:
        _check_single(opened, plan, identity)
        _check_superblock(opened, contents, identity)
    else:
        _check_member(opened, plan, identity)
    return plan


def check_superblock_is_newest(
    opened: OpenSegments, contents: Contents, identity: JournalIdentity
) -> None:
    """Raise SuperblockOlder if a record was written under a later superblock than the present one.

    The present one has forgotten views in which this replica voted or acknowledged entries. A frame
    proves this whatever became of its content, wherever the disk wrote it, and also where its
    record will be cut off.
    """
    if identity.log_view is None:
        return
    found = [(each.frame, each.segment, each.offset) for each in contents.entries]
    found += [
        (stray.misdirected, stray.segment, stray.offset)
        for stray in contents.strays
        if stray.misdirected is not None
    ]
    for frame, segment, offset in found:
        evidence = _later_superblock(frame, identity)
        if evidence is not None:
            path = opened.files[segment].path
            raise SuperblockOlder(path, offset, evidence, single=identity.single)


def _later_superblock(frame: Frame, identity: JournalIdentity) -> str | None:
    """Return how a frame shows that there was a later superblock, or None."""
    sequence = identity.superblock.sequence
    if frame.superblock_sequence > sequence:
        return (
            f"was written under superblock {frame.superblock_sequence}, and the superblock here is"
            f" number {sequence}"
        )
    # The superblock names a snapshot, and its cut as committed, before the log restarts there.
    if frame.kind is RecordKind.RESTART and frame.op > identity.commit_max:
        return (
            f"continues the log behind op {frame.op}, which a snapshot covered, and the superblock"
            f" here knows nothing committed beyond op {identity.commit_max}"
        )
    return None


def _plan(
    contents: Contents,
    judged: list[Judged],
    evidence: Evidence,
    cut: JournalFinding | None,
    identity: JournalIdentity,
    *,
    needs_covered: bool,
) -> OpeningPlan:
    """Derive the log from the records that stay; records that are cut off have no say in it."""
    kept = [
        entry
        for entry in contents.entries
        if cut is None or entry.frame.sequence < cut.first_sequence
    ]
    lost = [verdict.finding for verdict in judged if verdict.decision in FAULTY]
    remaining = Evidence(kept, evidence.commit)
    live = live_entries(kept, remaining, lost)
    doubtful = in_doubt(live, lost)
    for op in doubtful:
        del live[op]
    if not needs_covered:
        for op in unconnected(live, identity.replay_op - 1, identity.base_checksum):
            del live[op]
    return OpeningPlan(kept, live, doubtful, judged, evidence, remaining.restart[1], cut)


def _refuse(opened: OpenSegments, finding: JournalFinding) -> None:
    op = finding.inferred_op if finding.op is None else finding.op
    raise CorruptJournal(opened.files[finding.segment].path, finding.offset, op, finding.reason)


def _check_member(opened: OpenSegments, plan: OpeningPlan, identity: JournalIdentity) -> None:
    """Raise CorruptJournal unless a member's entries are one chain, whatever is missing of it.

    Ops are replaced only after a durable cut, and a lost cut puts them in doubt. So two histories
    wrote two entries that do not chain, and no rule says which one is true.
    """
    for op in chain_breaks(plan.live):
        entry = plan.live[op]
        path = opened.files[entry.segment].path
        reason = f"op {op} is intact, but is not the child of op {op - 1}, which is intact, too"
        raise CorruptJournal(path, entry.offset, op, reason)
    if plan.restart_op >= identity.replay_op:
        reason = (
            f"the log goes on behind op {plan.restart_op}, which a snapshot covered, but that of "
            f"the superblock only reaches op {identity.replay_op - 1}: the superblock is an "
            f"older copy"
        )
        raise CorruptJournal(opened.files[min(opened.files)].path, 0, plan.restart_op, reason)


def _check_single(opened: OpenSegments, plan: OpeningPlan, identity: JournalIdentity) -> None:
    """Raise CorruptJournal unless a single replica's log is one chain without a missing op."""
    ops = list(plan.live)
    gaps = [after for before, after in pairwise(ops) if after != before + 1]
    for op in (*gaps, *chain_breaks(plan.live)):
        entry = plan.live[op]
        reason = f"op {op} does not continue the op before it"
        raise CorruptJournal(opened.files[entry.segment].path, entry.offset, op, reason)
    head_op = ops[-1] if ops else 0
    known_op = max(plan.evidence.commit, identity.replay_op - 1)
    end = plan.kept[-1] if plan.kept else None
    path = opened.files[end.segment if end else min(opened.files)].path
    offset = end.offset + end.extent_bytes if end else SECTOR_BYTES
    if head_op < known_op:
        reason = f"the log ends with op {head_op}, but op {known_op} was committed"
        raise CorruptJournal(path, offset, head_op + 1, reason)
    if ops and ops[0] > identity.replay_op:
        reason = f"the log begins with op {ops[0]}, but must be replayed from {identity.replay_op}"
        raise CorruptJournal(opened.files[min(opened.files)].path, 0, identity.replay_op, reason)


def _check_superblock(opened: OpenSegments, contents: Contents, identity: JournalIdentity) -> None:
    """Notice a lost superblock, or one older than the journal, before a tail is cut.

    It may record that the tail was committed; if it is brought back, the tail is still there.
    """
    if identity.log_view is None:
        beyond = [entry for entry in contents.entries if entry.frame.sequence > 1]
        what = "but there is no superblock: it was lost"
    else:
        log_view = identity.log_view
        beyond = [e for e in contents.entries if e.header and e.header.view > log_view]
        what = f"but the superblock never reached its view (log view {log_view}): it is older"
    if beyond:
        entry = beyond[0]
        reason = f"op {entry.frame.op} was journaled, {what}; bring back the one of this journal"
        raise CorruptJournal(opened.files[entry.segment].path, entry.offset, entry.frame.op, reason)
