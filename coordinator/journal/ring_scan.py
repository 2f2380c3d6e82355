"""Reading a whole ring: its slots, and every record at or above the floor.

Records below the floor are not needed, and later ones may lie over parts of them. Nothing is said
of them, whatever their bytes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import mmap

from coordinator.journal.displaced_slots import displaced_slots, intact_slot
from coordinator.journal.findings import VerifiedRecord
from coordinator.journal.ring_table import PlaceState, RingVerdict, SlotState, ring_verdict
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import (
    FRAME_BYTES,
    SECTOR_BYTES,
    Frame,
    RecordKind,
    claimed_sequence,
    decode_content,
    decode_frame,
    decode_ranges,
    is_zero,
    record_bytes,
)
from viewstamp.format.ring import (
    RING_SEGMENT,
    SLOT_BYTES,
    RingFloor,
    RingLayout,
    RingSlot,
    decode_slot,
)


@dataclass(slots=True)
class RingContents:
    """What reading found. `slots` are those that name a record at or above the floor, by sequence;
    `places` the records with an intact frame there, by sequence and offset. `damaged_slots` are the
    numbers of those that hold something else. `displaced` are the sequences whose slots lie in a
    wrong place. `other_sequence` is the highest sequence that an attempt to write the log anew has
    left on the other side, 0 for none.
    """

    floor: RingFloor
    slots: dict[int, RingSlot] = field(default_factory=dict)
    places: dict[int, list[VerifiedRecord]] = field(default_factory=dict)
    damaged_slots: set[int] = field(default_factory=set)
    displaced: set[int] = field(default_factory=set)
    other_sequence: int = 0

    @property
    def layout(self) -> RingLayout:
        """Where the parts lie."""
        return self.floor.layout

    @property
    def named_sequence(self) -> int:
        """The highest sequence that a slot names: all up to it were durable; 0 for none."""
        return max(self.slots, default=0)

    @property
    def last_sequence(self) -> int:
        """The highest sequence that anything here names; one below the floor for none."""
        return max((*self.slots, *self.places, self.floor.floor - 1))

    def record(self, sequence: int) -> JudgedRecord:
        """Return what slot and place say of a sequence."""
        slot = self.slots.get(sequence)
        found = self.places.get(sequence, [])
        if slot is not None:
            found = [each for each in found if _is_there(slot, each)]
        intact = [each for each in found if each.reason is None]
        place = next(iter(intact or found), None)
        verdict = ring_verdict(
            self._slot_state(sequence),
            PlaceState.INTACT if intact else PlaceState.DAMAGED if found else PlaceState.ABSENT,
            is_mark=slot is not None and slot.frame.kind in _MARKS,
        )
        if verdict is RingVerdict.RESTORED:
            assert slot is not None
            place = entry_of(slot.offset, slot.frame, slot.mark)
        if place is None and slot is not None:
            place = _lost(slot)
        return JudgedRecord(sequence, verdict, place, slot)

    def _slot_state(self, sequence: int) -> SlotState:
        if sequence in self.slots:
            return SlotState.NAMES
        is_damaged = self.layout.slot_of(sequence) in self.damaged_slots
        return SlotState.DAMAGED if is_damaged else SlotState.EARLIER


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """A sequence, what it is, and what is known of its record: None if that is nothing."""

    sequence: int
    verdict: RingVerdict
    entry: VerifiedRecord | None
    slot: RingSlot | None


# Slots hold all of these.
_MARKS = frozenset({RecordKind.CUT, RecordKind.RESTART})


def _is_there(slot: RingSlot, entry: VerifiedRecord) -> bool:
    return entry.offset == slot.offset and slot.is_of(entry.frame)


def _lost(slot: RingSlot) -> VerifiedRecord:
    extent_bytes = record_bytes(slot.frame.length)
    return VerifiedRecord(
        RING_SEGMENT,
        slot.offset,
        extent_bytes,
        slot.frame,
        None,
        (),
        "its slot names another record than the one that lies there",
    )


def entry_of(offset: int, frame: Frame, content: SealedPrepare | bytes) -> VerifiedRecord:
    """Return an intact record of the ring."""
    is_repaired = frame.kind is RecordKind.REPAIRED and isinstance(content, bytes)
    return VerifiedRecord(
        RING_SEGMENT,
        offset,
        record_bytes(frame.length),
        frame,
        content.header if isinstance(content, SealedPrepare) else None,
        decode_ranges(content) if is_repaired and isinstance(content, bytes) else (),
        None,
    )


def scan_ring(data: mmap, floor: RingFloor) -> RingContents:
    """Read all slots, and all records at or above the floor. Raises FormatVersionError."""
    contents = RingContents(floor)
    layout = contents.layout
    end = floor.floor + layout.slots
    for number in range(layout.slots):
        at = layout.slots_start + number * SLOT_BYTES
        try:
            slot = decode_slot(
                data[at : at + SLOT_BYTES], journal_id=floor.journal_id, number=number
            )
        except FormatVersionError:
            raise
        except FormatError:
            contents.damaged_slots.add(number)
            continue
        if slot is None or not floor.floor <= slot.frame.sequence < end:
            continue
        if layout.slot_of(slot.frame.sequence) != number:
            continue
        if layout.start <= slot.offset < layout.end:
            contents.slots[slot.frame.sequence] = slot
        else:
            # A copy's slots are for the other side: the disk wrote them over these.
            contents.damaged_slots.add(number)
    for slot in displaced_slots(data, floor, contents.damaged_slots):
        sequence = slot.frame.sequence
        if floor.floor <= sequence < end and sequence not in contents.slots:
            contents.slots[sequence] = slot
            contents.displaced.add(sequence)
    for entry in _records(data, floor, end):
        contents.places.setdefault(entry.frame.sequence, []).append(entry)
    contents.other_sequence = max(_left_behind(data, floor), default=0)
    return contents


def _left_behind(data: mmap, floor: RingFloor) -> Iterator[int]:
    """Yield the sequences, from the floor on, that the other side names."""
    other = floor.layout.other
    for number in range(other.slots):
        at = other.slots_start + number * SLOT_BYTES
        slot = intact_slot(data[at : at + SLOT_BYTES], floor, number)
        if slot is not None:
            yield slot.frame.sequence
    for offset in range(other.start, other.end, SECTOR_BYTES):
        frame = _frame_at(data, offset, floor)
        if frame is not None:
            yield frame.sequence


def _records(data: mmap, floor: RingFloor, end: int) -> Iterator[VerifiedRecord]:
    layout = floor.layout
    offset = layout.start
    while offset < layout.end:
        entry = _record_at(data, offset, floor, end)
        if entry is not None:
            yield entry
        # Within a damaged one there may be the beginning of another.
        is_whole = entry is not None and entry.reason is None
        offset += entry.extent_bytes if entry is not None and is_whole else SECTOR_BYTES


def _frame_at(data: mmap, offset: int, floor: RingFloor) -> Frame | None:
    """Return the intact frame, of a sequence from the floor on, that a sector begins with."""
    head = data[offset : offset + FRAME_BYTES]
    sequence = claimed_sequence(head)
    if sequence is None or sequence < floor.floor:
        return None
    try:
        return decode_frame(head, journal_id=floor.journal_id, segment=RING_SEGMENT, offset=offset)
    except FormatVersionError:
        raise
    except FormatError:
        return None


def _record_at(data: mmap, offset: int, floor: RingFloor, end: int) -> VerifiedRecord | None:
    frame = _frame_at(data, offset, floor)
    if frame is None or frame.sequence >= end:
        return None
    extent = data[offset : offset + record_bytes(frame.length)]
    try:
        return entry_of(offset, frame, decode_content(frame, extent))
    except FormatVersionError:
        raise
    except FormatError as error:
        return VerifiedRecord(RING_SEGMENT, offset, len(extent), frame, None, (), str(error))


def is_unwritten(data: mmap, offset: int, floor: RingFloor) -> bool:
    """Return whether no other record than those that were found can begin in this sector: it is
    blank, or holds the frame of one of them, or of an earlier record."""
    if is_zero(data[offset : offset + SECTOR_BYTES]):
        return True
    head = data[offset : offset + FRAME_BYTES]
    try:
        decode_frame(head, journal_id=floor.journal_id, segment=RING_SEGMENT, offset=offset)
    except FormatError:
        return False
    return True
