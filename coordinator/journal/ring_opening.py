"""Opening a ring: read all of it, decide, and only then change anything.

All checks that can refuse come before the first write. What is written then is written in the order
of every append: records and blanks first, then slots. So a crash leaves the same work to the next
opening. Records that no later record knows to be synced are written again, with their slots: after
a failed sync the page cache may show what the disk never got. So are both copies of the floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from mmap import mmap
from typing import Final

from coordinator.journal.errors import CorruptJournal, JournalFailed, WrongCluster
from coordinator.journal.findings import VerifiedRecord
from coordinator.journal.opening import Recovery, close_files, recovery_of
from coordinator.journal.plan import (
    Contents,
    JournalIdentity,
    OpeningPlan,
    OpenSegments,
    check_superblock_is_newest,
    judged_plan,
)
from coordinator.journal.ring_file import RingFile, RingParts, open_ring_file, read_parts
from coordinator.journal.ring_recovery import RingJudgement, judge_ring
from coordinator.journal.ring_scan import RingContents, scan_ring
from coordinator.journal.ring_table import RingVerdict
from coordinator.journal.segment import read_segment, remove_temporaries
from coordinator.storage import Storage, StorageFile
from viewstamp.format import FormatVersionError
from viewstamp.format.record import FRAME_BYTES, SECTOR_BYTES, RecordKind, encode_record
from viewstamp.format.recovery_table import FAULTY
from viewstamp.format.ring import RING_SEGMENT, SLOT_BYTES, RingSlot, encode_slot

# A ring of which more than one part in so many is lost is an older copy.
LOST_PARTS: Final = 4
_BLANK_SLOT: Final = bytes(SLOT_BYTES)


@dataclass(frozen=True, slots=True)
class RecoveredRing:
    """An opened ring, and all that opening learned about it."""

    ring: RingFile
    plan: OpeningPlan
    recovery: Recovery


@dataclass(frozen=True, slots=True)
class _Findings:
    """All that was read of a ring, and the decisions."""

    opened: OpenSegments
    parts: RingParts
    contents: RingContents
    judgement: RingJudgement
    plan: OpeningPlan


def recover_ring(storage: Storage, directory: str, identity: JournalIdentity) -> RecoveredRing:
    """Open, read, decide and carry out; close the file again if anything refuses or fails."""
    file = open_ring_file(storage, directory)
    try:
        with read_segment(file) as data:
            found = _decide(file, data, identity)
            slots = found.contents.layout
            start, size_bytes = slots.slots_start, slots.slots * SLOT_BYTES
            image = bytearray(data[start : start + size_bytes])
            ring = RingFile(file, found.parts.floor, image, found.contents.other_sequence)
            try:
                remove_temporaries(storage, directory)
                rewritten, mended = _carry_out(ring, data, found)
            except OSError as error:
                raise JournalFailed(f"recovering {directory} failed: {error}") from error
    except BaseException:
        close_files({RING_SEGMENT: file})
        raise
    mended_paths = (file.path,) if mended else ()
    recovery = recovery_of(found.opened, found.plan, identity, mended_paths, (), rewritten)
    return RecoveredRing(ring, found.plan, recovery)


def check_ring_superblock(storage: Storage, directory: str, identity: JournalIdentity) -> None:
    """Raise SuperblockOlder if the ring proves that the superblock is an older one. Changes
    nothing; raises what `recover_ring` does before it decides."""
    file = open_ring_file(storage, directory)
    try:
        with read_segment(file) as data:
            parts, contents = _read(file, data, identity)
            opened = OpenSegments(parts.floor.journal_id, {RING_SEGMENT: file}, [])
            entries = judge_ring(contents, data, identity).entries
            check_superblock_is_newest(opened, Contents(entries), identity)
    finally:
        close_files({RING_SEGMENT: file})


def _read(
    file: StorageFile, data: mmap, identity: JournalIdentity
) -> tuple[RingParts, RingContents]:
    parts = read_parts(file, data, identity)
    try:
        contents = scan_ring(data, parts.floor)
    except FormatVersionError as error:
        raise FormatVersionError(f"{file.path}: {error}") from error
    return parts, contents


def _decide(file: StorageFile, data: mmap, identity: JournalIdentity) -> _Findings:
    parts, contents = _read(file, data, identity)
    _check_known(file, contents, identity)
    judgement = judge_ring(contents, data, identity)
    for entry in judgement.entries:
        if entry.header is not None and entry.header.cluster_id != identity.cluster_id:
            raise WrongCluster(file.path, entry.header.cluster_id, identity.cluster_id)
    opened = OpenSegments(parts.floor.journal_id, {RING_SEGMENT: file}, [])
    within = Contents(judgement.entries)
    check_superblock_is_newest(opened, within, identity)
    plan = judged_plan(
        opened, within, judgement.judged, judgement.evidence, identity, needs_covered=False
    )
    return _Findings(opened, parts, contents, judgement, plan)


def _check_known(file: StorageFile, contents: RingContents, identity: JournalIdentity) -> None:
    """Raise CorruptJournal if the superblock knows of a record so far behind the last one here that
    no disk has just lost the end, or than have slots from the floor on: an older ring was put in
    place. Lost records take slots, too."""
    known, last = identity.superblock.journal_sequence, contents.last_sequence
    slots = contents.layout.slots
    if known - last > slots // LOST_PARTS or known >= contents.floor.floor + slots:
        reason = f"the superblock knows of record {known}, and the last one here is {last}: it is"
        raise CorruptJournal(file.path, 0, None, f"{reason} an older copy of the ring")


def _carry_out(ring: RingFile, data: mmap, found: _Findings) -> tuple[int, bool]:
    """Make the ring say what was decided; return how many records were written again, and whether
    anything that exists several times was damaged in one place."""
    again = _written_again(found)
    records = [(each.offset, _bytes_of(ring, data, each, found)) for each in again]
    records += [(each.offset, bytes(SECTOR_BYTES)) for each in _cut_off(found)]
    if records:
        ring.write_records(records)
    # Before anything is written over them.
    displaced = _displaced(ring, found.contents)
    if displaced:
        ring.write_slots(displaced)
    slots = {
        ring.layout.slot_of(each.frame.sequence): _slot_bytes(ring, data, each, found)
        for each in again
    }
    damaged = found.contents.damaged_slots - _evidence(found) - displaced.keys()
    slots = dict.fromkeys(damaged, _BLANK_SLOT) | slots
    if slots:
        ring.write_slots(slots)
    if "header" in found.parts.damaged:
        ring.write_header()
    ring.write_floor()
    return len(again), bool(found.parts.damaged or damaged or displaced)


def _displaced(ring: RingFile, contents: RingContents) -> dict[int, bytes]:
    """Return the slots that lie in a wrong place, by the number of the right one."""
    slots = {ring.layout.slot_of(at): contents.slots[at] for at in sorted(contents.displaced)}
    return {
        number: encode_slot(slot, journal_id=ring.floor.journal_id, number=number)
        for number, slot in slots.items()
    }


def _written_again(found: _Findings) -> list[VerifiedRecord]:
    """Return the intact records that stay and may not be durable, or whose slot is damaged."""
    durable = max((each.frame.durable_sequence for each in found.plan.kept), default=0)
    verdicts = {each.sequence: each.verdict for each in found.judgement.records}
    return [
        each
        for each in found.plan.kept
        if each.reason is None
        and (
            each.frame.sequence > durable or verdicts[each.frame.sequence] is not RingVerdict.WHOLE
        )
    ]


def _bytes_of(ring: RingFile, data: mmap, entry: VerifiedRecord, found: _Findings) -> bytes:
    record = found.contents.record(entry.frame.sequence)
    if record.verdict is not RingVerdict.RESTORED:
        return data[entry.offset : entry.offset + entry.extent_bytes]
    assert record.slot is not None
    return encode_record(
        entry.frame,
        record.slot.mark,
        journal_id=ring.floor.journal_id,
        segment=RING_SEGMENT,
        offset=entry.offset,
    )


def _slot_bytes(ring: RingFile, data: mmap, entry: VerifiedRecord, found: _Findings) -> bytes:
    slot = found.contents.slots.get(entry.frame.sequence)
    if slot is None:
        slot = RingSlot(entry.frame, entry.offset, _mark(data, entry))
    number = ring.layout.slot_of(entry.frame.sequence)
    return encode_slot(slot, journal_id=ring.floor.journal_id, number=number)


def _mark(data: mmap, entry: VerifiedRecord) -> bytes:
    """Return the content of a restart, as its record has it."""
    if entry.frame.kind is not RecordKind.RESTART:
        return b""
    start = entry.offset + FRAME_BYTES
    return data[start : start + entry.frame.length]


def _cut_off(found: _Findings) -> list[VerifiedRecord]:
    """Return the records that are cut off, of which nothing may be left to be found again."""
    kept = {each.frame.sequence for each in found.plan.kept}
    places = (each for at, each in found.contents.places.items() if at not in kept)
    return [entry for entries in places for entry in entries]


def _evidence(found: _Findings) -> set[int]:
    """Return the damaged slots that show a loss which is not repaired."""
    lost = [verdict.finding for verdict in found.plan.judged if verdict.decision in FAULTY]
    slot_of = found.contents.layout.slot_of
    return {
        slot_of(sequence)
        for finding in lost
        for sequence in range(finding.first_sequence, finding.last_sequence + 1)
    }
