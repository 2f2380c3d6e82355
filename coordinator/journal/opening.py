"""Opening a journal: look at everything, decide, and only then change anything.

The order matters. All checks that can refuse come before the first write, so a refused directory
is left as it was found. What is kept beyond the last sequence that some record knows to be synced
is then written once more and synced: after a failed sync the page cache may show records that the
disk never got, and reading them back proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from coordinator.journal.errors import (
    CorruptJournal,
    JournalFailed,
    JournalNotFound,
    MissingSegment,
    WrongCluster,
    WrongReplica,
)
from coordinator.journal.recovery import (
    Decision,
    Entry,
    Evidence,
    Finding,
    Judged,
    Stray,
    harmless_strays,
    judge,
)
from coordinator.journal.segment import (
    read_segment,
    remove_temporaries,
    segment_numbers,
    segment_path,
)
from coordinator.storage import Storage, StorageFile
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.prepare import NO_PARENT, Prepare, PrepareHeader
from viewstamp.format.record import (
    SECTOR_BYTES,
    BlankSectors,
    DamagedRecord,
    IntactRecord,
    RecordKind,
    ScanItem,
    SegmentHeader,
    decode_ranges,
    decode_segment_header,
    encode_segment_header,
    scan_segment,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose journal is expected, and what the superblock knows about it.

    `replay_op` is the first op that a restart must find in the journal: one past the cut of the
    snapshot that it starts from, or 1. `log_view` is None if there is no superblock.
    """

    cluster_id: bytes
    replica_id: int
    replica_count: int
    commit_max: int
    log_view: int | None
    replay_op: int

    @property
    def single(self) -> bool:
        """Whether this replica is its whole cluster."""
        return self.replica_count == 1


@dataclass(frozen=True, slots=True)
class Fault:
    """Something lost or damaged that peers can supply. Never vote as if it had not been there.

    `op` and `checksum` are None where they cannot be told. `torn` says that nothing ever rested on
    it: it was never acknowledged, unless the disk damaged the very last group.
    """

    path: str
    offset: int
    first_sequence: int
    last_sequence: int
    op: int | None
    checksum: bytes | None
    torn: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a single replica cut a torn tail off, and the first op that went with it."""

    path: str
    offset: int
    op: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening found and did.

    `head` is the header of the highest op; `first_op` the lowest op held, 0 for none; `commit` the
    highest op that a record or the superblock says is committed. `head_uncertain` means that a
    fault may have been at or above the head, so the log may have been longer. `chain_breaks` are
    ops whose parent is held but has another checksum. Paths in `repaired_headers` had a damaged
    segment header; `stray_sectors` are (path, offset) of garbage in space that was never used.
    """

    head: PrepareHeader | None
    first_op: int
    prepare_count: int
    commit: int
    faults: tuple[Fault, ...]
    head_uncertain: bool
    chain_breaks: tuple[int, ...]
    cut: Cut | None
    repaired_headers: tuple[str, ...]
    stray_sectors: tuple[tuple[str, int], ...]
    rewritten_count: int


@dataclass(slots=True)
class OpenSegments:
    """The files of a journal, all of one journal_id, and those whose header is damaged."""

    journal_id: bytes
    files: dict[int, StorageFile]
    damaged_headers: list[int]


@dataclass(slots=True)
class Contents:
    """What scanning the segments gave, in file order."""

    entries: list[Entry] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """What opening is going to do, once nothing refuses any more."""

    kept: list[Entry]
    live: dict[int, Entry]
    judged: list[Judged]
    evidence: Evidence
    cut: Finding | None
    cut_op: int


def open_segments(storage: Storage, directory: str, identity: Identity) -> OpenSegments:
    """Open all segments without creating any, and check whose they are."""
    numbers = segment_numbers(storage, directory)
    if not numbers:
        raise JournalNotFound(directory)
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise MissingSegment(segment_path(directory, before + 1))
    opened = OpenSegments(b"", {}, [])
    try:
        for number in numbers:
            opened.files[number] = storage.open(segment_path(directory, number))
            _check_header(opened, number, identity)
        if not opened.journal_id:
            path = opened.files[numbers[0]].path
            raise CorruptJournal(path, 0, None, "no segment has an intact header")
    except BaseException:
        close_files(opened.files)
        raise
    return opened


def close_files(files: Mapping[int, StorageFile]) -> None:
    """Close them all."""
    for file in files.values():
        file.close()


def _check_header(opened: OpenSegments, number: int, identity: Identity) -> None:
    file = opened.files[number]
    size = file.size()
    if size < 2 * SECTOR_BYTES or size % SECTOR_BYTES:
        raise CorruptJournal(file.path, size, None, f"the file has been cut to {size} bytes")
    try:
        header = decode_segment_header(file.read(0, SECTOR_BYTES))
    except FormatVersionError as error:
        raise FormatVersionError(f"{file.path}: {error}") from error
    except (FormatError, OSError):
        opened.damaged_headers.append(number)
        return
    if header.cluster_id != identity.cluster_id:
        raise WrongCluster(file.path, header.cluster_id, identity.cluster_id)
    if header.replica_id != identity.replica_id:
        raise WrongReplica(file.path, header.replica_id, identity.replica_id)
    opened.journal_id = opened.journal_id or header.journal_id
    expected = (opened.journal_id, number, size)
    found = (header.journal_id, header.segment, header.segment_bytes)
    if found != expected:
        reason = (
            f"the header says segment {header.segment} of journal {header.journal_id.hex()} with "
            f"{header.segment_bytes} bytes, expected segment {number} of journal "
            f"{opened.journal_id.hex()} with {size} bytes"
        )
        raise CorruptJournal(file.path, 0, None, reason)


def scan(opened: OpenSegments, identity: Identity) -> Contents:
    """Read every segment; bodies are verified and let go of at once."""
    contents = Contents()
    for number, file in opened.files.items():
        data = read_segment(file)
        try:
            for item in scan_segment(data, journal_id=opened.journal_id, segment=number):
                _take(contents, number, item)
        except FormatVersionError as error:
            raise FormatVersionError(f"{file.path}: {error}") from error
    for entry in contents.entries:
        if entry.header is not None and entry.header.cluster_id != identity.cluster_id:
            path = opened.files[entry.segment].path
            raise WrongCluster(path, entry.header.cluster_id, identity.cluster_id)
    return contents


def _take(contents: Contents, number: int, item: ScanItem) -> None:
    if isinstance(item, BlankSectors):
        return
    if isinstance(item, DamagedRecord) and item.frame is None:
        contents.strays.append(Stray(number, item.offset, item.reason))
    else:
        contents.entries.append(_entry(number, item))


def _entry(number: int, item: IntactRecord | DamagedRecord) -> Entry:
    assert item.frame is not None
    header: PrepareHeader | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    reason = item.reason if isinstance(item, DamagedRecord) else None
    if isinstance(item, IntactRecord):
        if isinstance(item.content, Prepare):
            header = item.content.header
        elif item.frame.kind is RecordKind.REPAIRED:
            ranges = decode_ranges(item.content)
    return Entry(number, item.offset, item.extent_bytes, item.frame, header, ranges, reason)


def make_plan(opened: OpenSegments, contents: Contents, identity: Identity) -> Plan:
    """Decide about everything that was found; raises CorruptJournal for what only peers mend."""
    judged, evidence = judge(
        contents.entries,
        contents.strays,
        first_segment=min(opened.files),
        commit_max=identity.commit_max,
        single=identity.single,
    )
    for verdict in judged:
        if verdict.decision is Decision.REFUSE:
            _refuse(opened, verdict.finding)
    cuts = [verdict.finding for verdict in judged if verdict.decision is Decision.CUT]
    cut = min(cuts, key=lambda finding: finding.first_sequence) if cuts else None
    kept = [
        entry
        for entry in contents.entries
        if cut is None or entry.frame.sequence < cut.first_sequence
    ]
    live = live_entries(kept, evidence)
    plan = Plan(kept, live, judged, evidence, cut, max(live, default=0) + 1)
    if identity.single:
        _check_single(opened, plan, identity)
        _check_superblock(opened, contents, identity)
    return plan


def _refuse(opened: OpenSegments, finding: Finding) -> None:
    op = finding.inferred_op if finding.op is None else finding.op
    raise CorruptJournal(opened.files[finding.segment].path, finding.offset, op, finding.reason)


def live_entries(kept: Sequence[Entry], evidence: Evidence) -> dict[int, Entry]:
    """The entry that counts for each op: the highest sequence wins, and cuts remove."""
    newest: dict[int, Entry] = {}
    for entry in sorted(kept, key=lambda entry: entry.frame.sequence):
        if entry.header is not None:
            newest[entry.header.op] = entry
    return {
        op: newest[op]
        for op in sorted(newest)
        if not evidence.removed(op, newest[op].frame.sequence)
    }


def chain_breaks(live: Mapping[int, Entry]) -> tuple[int, ...]:
    """Ops whose predecessor is held but is not their parent."""
    broken = []
    for op, entry in live.items():
        before = live.get(op - 1)
        parent = NO_PARENT if before is None or before.header is None else before.header.checksum
        if before is not None and entry.header is not None and entry.header.parent != parent:
            broken.append(op)
    return tuple(broken)


def _check_single(opened: OpenSegments, plan: Plan, identity: Identity) -> None:
    """A single replica's log has every op from its first to its head, in one chain."""
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


def _check_superblock(opened: OpenSegments, contents: Contents, identity: Identity) -> None:
    """A superblock that is lost, or older than the journal, is noticed before a tail is cut.

    It may know that the tail was committed, and where it comes back it finds the tail still there.
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


def carry_out(opened: OpenSegments, contents: Contents, plan: Plan, identity: Identity) -> Recovery:
    """Repair headers, cut the tail, make what is kept durable, and say what was done."""
    for number in opened.damaged_headers:
        _rewrite_header(opened, number, identity)
    if plan.cut is not None:
        _zero_tail(opened, contents, plan)
    rewritten_count = _rewrite_unproven(opened, plan)
    faults = _faults(opened, plan.judged)
    live_headers = [entry.header for entry in plan.live.values() if entry.header is not None]
    head = live_headers[-1] if live_headers else None
    head_op = head.op if head else 0
    return Recovery(
        head=head,
        first_op=live_headers[0].op if live_headers else 0,
        prepare_count=len(live_headers),
        commit=plan.evidence.commit,
        faults=faults,
        head_uncertain=any(fault.op is None or fault.op >= head_op for fault in faults),
        chain_breaks=chain_breaks(plan.live),
        cut=_cut(opened, plan),
        repaired_headers=tuple(opened.files[number].path for number in opened.damaged_headers),
        stray_sectors=tuple(
            (opened.files[stray.segment].path, stray.offset)
            for stray in harmless_strays(contents.entries, contents.strays)
        ),
        rewritten_count=rewritten_count,
    )


def _rewrite_header(opened: OpenSegments, number: int, identity: Identity) -> None:
    file = opened.files[number]
    header = SegmentHeader(
        identity.cluster_id, identity.replica_id, opened.journal_id, number, file.size()
    )
    file.write(0, encode_segment_header(header))
    file.sync()


def _zero_tail(opened: OpenSegments, contents: Contents, plan: Plan) -> None:
    """Blank everything behind the last kept record, in whatever segment it lies."""
    end = plan.kept[-1] if plan.kept else None
    last = (end.segment, end.offset) if end else (0, 0)
    extents = [(e.segment, e.offset, e.extent_bytes) for e in contents.entries]
    extents += [(stray.segment, stray.offset, SECTOR_BYTES) for stray in contents.strays]
    behind = [extent for extent in extents if extent[:2] > last]
    for segment, offset, extent_bytes in behind:
        opened.files[segment].write(offset, bytes(extent_bytes))
    for segment in sorted({segment for segment, _, _ in behind}):
        opened.files[segment].sync()


def _rewrite_unproven(opened: OpenSegments, plan: Plan) -> int:
    """Write the kept records once more that no later record knows to be synced."""
    durable_sequence = plan.evidence.durable_sequence
    unproven = [
        entry
        for entry in plan.kept
        if entry.reason is None and entry.frame.sequence > durable_sequence
    ]
    for entry in unproven:
        file = opened.files[entry.segment]
        file.write(entry.offset, file.read(entry.offset, entry.extent_bytes))
    for segment in sorted({entry.segment for entry in unproven}):
        opened.files[segment].sync()
    return len(unproven)


def _faults(opened: OpenSegments, judged: Sequence[Judged]) -> tuple[Fault, ...]:
    faulty = (Decision.FAULTY_TORN, Decision.FAULTY_CORRUPT)
    return tuple(
        Fault(
            path=opened.files[verdict.finding.segment].path,
            offset=verdict.finding.offset,
            first_sequence=verdict.finding.first_sequence,
            last_sequence=verdict.finding.last_sequence,
            op=verdict.finding.op,
            checksum=verdict.finding.checksum,
            torn=verdict.decision is Decision.FAULTY_TORN,
            reason=verdict.finding.reason,
        )
        for verdict in judged
        if verdict.decision in faulty
    )


def _cut(opened: OpenSegments, plan: Plan) -> Cut | None:
    if plan.cut is None:
        return None
    return Cut(opened.files[plan.cut.segment].path, plan.cut.offset, plan.cut_op)


@dataclass(frozen=True, slots=True)
class Recovered:
    """An opened journal, and all that opening learned about it."""

    opened: OpenSegments
    contents: Contents
    plan: Plan
    recovery: Recovery


def recover(storage: Storage, directory: str, identity: Identity) -> Recovered:
    """Open, scan, decide and carry out; closes every file again if anything refuses or fails."""
    opened = open_segments(storage, directory, identity)
    try:
        contents = scan(opened, identity)
        plan = make_plan(opened, contents, identity)
        try:
            remove_temporaries(storage, directory)
            recovery = carry_out(opened, contents, plan, identity)
        except OSError as error:
            raise JournalFailed(f"recovering {directory} failed: {error}") from error
    except BaseException:
        close_files(opened.files)
        raise
    return Recovered(opened, contents, plan, recovery)
