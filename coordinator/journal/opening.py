"""Opening a journal: read everything, decide, and only then change anything.

All checks that can refuse come before the first write, so a refused directory is left as it was
found. Kept records beyond the last sequence that some record knows to be synced are then rewritten
and synced: after a failed sync the page cache may show records that the disk never got, and reading
them back proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coordinator.journal.errors import (
    CorruptJournal,
    JournalFailed,
    JournalNotFound,
    MissingSegment,
    WrongCluster,
    WrongReplica,
)
from coordinator.journal.findings import Stray, VerifiedRecord, harmless_strays
from coordinator.journal.live import holes
from coordinator.journal.misdirected_writes import recognize
from coordinator.journal.plan import (
    Contents,
    JournalIdentity,
    OpeningPlan,
    OpenSegments,
    check_superblock_is_newest,
    make_plan,
)
from coordinator.journal.recovery import Judged
from coordinator.journal.segment import (
    read_segment,
    remove_temporaries,
    segment_numbers,
    segment_path,
)
from coordinator.storage import Storage, StorageFile
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.prepare import SealedHeader, SealedPrepare
from viewstamp.format.record import (
    FRAME_BYTES,
    SECTOR_BYTES,
    UNIT_BYTES,
    IntactRecord,
    RecordKind,
    SegmentHeader,
    claimed_sequence,
    decode_ranges,
    decode_segment_header,
    encode_segment_header,
)
from viewstamp.format.recovery_table import FAULTY, RecoveryDecision
from viewstamp.format.scan import BlankSectors, DamagedRecord, ScanItem, SegmentBytes, scan_segment


@dataclass(frozen=True, slots=True)
class Fault:
    """Something lost or damaged that peers can supply. Never vote as if it had not been there.

    `op` and `checksum` are None where they are unknown. `torn` says that the record may be torn: it
    was never acknowledged, unless the disk damaged the very last group. A certain tear is cut.
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
class TornTailCut:
    """Where a torn tail was cut off, and the first op removed with it."""

    path: str
    offset: int
    op: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening found and did.

    `head` is the header of the highest op; `first_op` the lowest op held, 0 for none; `commit` the
    highest op that a record or the superblock says is committed. `holes` are the ops that a restart
    needs and the journal does not hold, though an op at least as high is known to have existed:
    they are lost, damaged, or in doubt, and some may lie above the head. `head_uncertain` means
    that there may have been ops above the head and all of these. `doubtful` are the holes whose
    entry is intact on the disk, but may have been replaced by a lost record of unknown op. Paths in
    `repaired_headers` had a damaged segment header, which was rewritten; a header that shows a lost
    record waits until that is repaired. `stray_sectors` are (path, offset) of garbage in space that
    was never used.
    """

    head: SealedHeader | None
    first_op: int
    prepare_count: int
    commit: int
    faults: tuple[Fault, ...]
    head_uncertain: bool
    holes: tuple[int, ...]
    doubtful: tuple[int, ...]
    cut: TornTailCut | None
    repaired_headers: tuple[str, ...]
    stray_sectors: tuple[tuple[str, int], ...]
    rewritten_count: int


def open_segments(storage: Storage, directory: str, identity: JournalIdentity) -> OpenSegments:
    """Open all segments without creating any, and check their cluster and replica."""
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
    """Close all files."""
    for file in files.values():
        file.close()


def _check_header(opened: OpenSegments, number: int, identity: JournalIdentity) -> None:
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


def scan(opened: OpenSegments, identity: JournalIdentity) -> Contents:
    """Read every segment; verify bodies without keeping them."""
    contents = Contents()
    for number, file in opened.files.items():
        with read_segment(file) as data:  # one after another
            if number in opened.damaged_headers:
                within = _frames_in(number, 0, SECTOR_BYTES, data, "a frame in the header's place")
                contents.within.extend(within)
            try:
                for item in scan_segment(data, journal_id=opened.journal_id, segment=number):
                    _take(contents, number, item, data)
            except FormatVersionError as error:
                raise FormatVersionError(f"{file.path}: {error}") from error
    recognize(opened, contents)
    for entry in contents.entries:
        if entry.header is not None and entry.header.cluster_id != identity.cluster_id:
            path = opened.files[entry.segment].path
            raise WrongCluster(path, entry.header.cluster_id, identity.cluster_id)
    return contents


def _take(contents: Contents, number: int, item: ScanItem, data: SegmentBytes) -> None:
    if isinstance(item, BlankSectors):
        return
    if isinstance(item, DamagedRecord) and item.frame is None:
        head = data[item.offset : item.offset + FRAME_BYTES]
        contents.strays.append(Stray(number, item.offset, item.reason, item.torn, head))
    else:
        contents.entries.append(_entry(number, item))
    if isinstance(item, DamagedRecord):
        start, end = item.offset + UNIT_BYTES, item.offset + item.extent_bytes
        within = _frames_in(number, start, end, data, "a frame inside a damaged record")
        contents.within.extend(within)


def _frames_in(
    number: int, start: int, end: int, data: SegmentBytes, reason: str
) -> Iterator[Stray]:
    """Yield units that look like a frame where none belongs, as strays of their sectors."""
    for offset in range(start, end, UNIT_BYTES):
        head = data[offset : offset + FRAME_BYTES]
        if claimed_sequence(head) is not None:
            yield Stray(number, offset - offset % SECTOR_BYTES, reason, head=head)


def _entry(number: int, item: IntactRecord | DamagedRecord) -> VerifiedRecord:
    assert item.frame is not None
    header: SealedHeader | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    place = number, item.offset, item.extent_bytes, item.frame
    if isinstance(item, DamagedRecord):
        return VerifiedRecord(*place, header, ranges, item.reason, item.torn)
    if isinstance(item.content, SealedPrepare):
        header = item.content.header
    elif item.frame.kind is RecordKind.REPAIRED:
        ranges = decode_ranges(item.content)
    return VerifiedRecord(*place, header, ranges, None)


def carry_out(
    opened: OpenSegments, contents: Contents, plan: OpeningPlan, identity: JournalIdentity
) -> Recovery:
    """Repair headers, cut the tail, make the kept records durable, and report what was done."""
    mended = [
        number for number in opened.damaged_headers if not _is_evidence(number, contents, plan)
    ]
    for number in mended:
        _rewrite_header(opened, number, identity)
    unproven = _read_unproven(opened, plan)
    if plan.cut is not None:
        _zero_tail(opened, contents, plan)
    _write_again(opened, unproven)
    strays = tuple(
        (opened.files[stray.segment].path, stray.offset)
        for stray in harmless_strays(contents.entries, contents.strays)
        if stray.offset > 0
    )
    headers = tuple(opened.files[number].path for number in mended)
    return recovery_of(opened, plan, identity, headers, strays, len(unproven))


def recovery_of(
    opened: OpenSegments,
    plan: OpeningPlan,
    identity: JournalIdentity,
    repaired_headers: tuple[str, ...],
    stray_sectors: tuple[tuple[str, int], ...],
    rewritten_count: int,
) -> Recovery:
    """Return what there is to tell of a plan that was carried out."""
    faults = _faults(opened, plan.judged)
    live_headers = [entry.header for entry in plan.live.values() if entry.header is not None]
    head = live_headers[-1] if live_headers else None
    known = [*plan.live, *plan.doubtful, *(fault.op for fault in faults if fault.op is not None)]
    return Recovery(
        head=head,
        first_op=live_headers[0].op if live_headers else 0,
        prepare_count=len(live_headers),
        commit=plan.evidence.commit,
        faults=faults,
        head_uncertain=any(fault.op is None for fault in faults),
        holes=holes(plan.live, known, identity.replay_op),
        doubtful=tuple(sorted(plan.doubtful)),
        cut=_cut(opened, plan),
        repaired_headers=repaired_headers,
        stray_sectors=stray_sectors,
        rewritten_count=rewritten_count,
    )


def _is_evidence(number: int, contents: Contents, plan: OpeningPlan) -> bool:
    """Return whether the content in place of a segment's header shows that a record is lost.

    It shows nothing once the loss is repaired or cut off.
    """
    misdirected = [s.misdirected for s in contents.strays if (s.segment, s.offset) == (number, 0)]
    lost = [verdict.finding for verdict in plan.judged if verdict.decision in FAULTY]
    return any(
        frame is not None and finding.first_sequence <= frame.sequence <= finding.last_sequence
        for frame in misdirected
        for finding in lost
    )


def _rewrite_header(opened: OpenSegments, number: int, identity: JournalIdentity) -> None:
    file = opened.files[number]
    header = SegmentHeader(
        identity.cluster_id, identity.replica_id, opened.journal_id, number, file.size()
    )
    file.write(0, encode_segment_header(header))
    file.sync()


def _zero_tail(opened: OpenSegments, contents: Contents, plan: OpeningPlan) -> None:
    """Blank everything that is cut off, in any segment."""
    assert plan.cut is not None
    behind = [
        (entry.segment, entry.offset, entry.extent_bytes)
        for entry in contents.entries
        if entry.frame.sequence >= plan.cut.first_sequence
    ]
    behind += [
        (stray.segment, stray.offset, SECTOR_BYTES)
        for stray in contents.strays
        if plan.is_cut(stray) and stray.offset > 0  # a header is written anew instead
    ]
    for segment, offset, extent_bytes in behind:
        opened.files[segment].write(offset, bytes(extent_bytes))
    for segment in sorted({segment for segment, _, _ in behind}):
        opened.files[segment].sync()


def _read_unproven(opened: OpenSegments, plan: OpeningPlan) -> list[tuple[VerifiedRecord, bytes]]:
    """Return the kept records that no later record knows to be synced, with their bytes.

    Read them before anything is blanked: if the disk misdirected those zeros over one of them, it
    would look like one more torn record.
    """
    durable_sequence = plan.evidence.durable_sequence
    return [
        (entry, opened.files[entry.segment].read(entry.offset, entry.extent_bytes))
        for entry in plan.kept
        if entry.reason is None and entry.frame.sequence > durable_sequence
    ]


def _write_again(opened: OpenSegments, records: Sequence[tuple[VerifiedRecord, bytes]]) -> None:
    """Rewrite records in place, and sync them."""
    for entry, data in records:
        opened.files[entry.segment].write(entry.offset, data)
    for segment in sorted({entry.segment for entry, _ in records}):
        opened.files[segment].sync()


def _faults(opened: OpenSegments, judged: Sequence[Judged]) -> tuple[Fault, ...]:
    return tuple(
        Fault(
            path=opened.files[verdict.finding.segment].path,
            offset=verdict.finding.offset,
            first_sequence=verdict.finding.first_sequence,
            last_sequence=verdict.finding.last_sequence,
            op=verdict.finding.op,
            checksum=verdict.finding.checksum,
            torn=verdict.decision is RecoveryDecision.FAULTY_TORN,
            reason=verdict.finding.reason,
        )
        for verdict in judged
        if verdict.decision in FAULTY
    )


def _cut(opened: OpenSegments, plan: OpeningPlan) -> TornTailCut | None:
    if plan.cut is None:
        return None
    return TornTailCut(opened.files[plan.cut.segment].path, plan.cut.offset, plan.cut_op)


@dataclass(frozen=True, slots=True)
class Recovered:
    """An opened journal, and all that opening learned about it."""

    opened: OpenSegments
    contents: Contents
    plan: OpeningPlan
    recovery: Recovery

    def end(self) -> tuple[int, int]:
        """Return the first segment and offset that are open to the next record."""
        plan = self.plan
        ends = [(each.segment, each.offset + each.extent_bytes) for each in plan.kept]
        end = max(ends, default=(min(self.opened.files), SECTOR_BYTES))
        strays = [s for s in self.contents.strays if not plan.is_cut(s) and s.offset > 0]
        last = max(((stray.segment, stray.offset) for stray in strays), default=(0, 0))
        if last >= end:
            # That content is evidence, and the place is not trusted with new records.
            end = last[0], self.opened.files[last[0]].size()
        return end


def recover(storage: Storage, directory: str, identity: JournalIdentity) -> Recovered:
    """Open, scan, decide and carry out; close every file again if anything refuses or fails."""
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


def check_superblock(storage: Storage, directory: str, identity: JournalIdentity) -> None:
    """Raise SuperblockOlder if the journal proves that the superblock is an older one.

    For a caller who has much to do before the journal is opened. Changes nothing; raises what
    `recover` does before it decides.
    """
    opened = open_segments(storage, directory, identity)
    try:
        check_superblock_is_newest(opened, scan(opened, identity), identity)
    finally:
        close_files(opened.files)
