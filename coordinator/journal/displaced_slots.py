"""Slots that the disk wrote to a wrong place of the ring, recognized by what they say.

A write of slots that lands on the very records that it names would leave nothing that shows these
records: their slots are still those of earlier ones. But the write returned, and so did its sync,
so the records may have been acknowledged. A slot says its sequence, which says its number, and its
checksum binds that and the journal id. So it is known wherever it lies, and nobody else can have
written it. The slots of the other side are none of these: they name earlier records, or records
that lie there, as an attempt to write the log anew has left them.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from mmap import mmap
from struct import Struct
from typing import Final

from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.ring import (
    SLOT_BYTES,
    SLOT_MAGIC,
    SLOT_MAGIC_OFFSET,
    SLOT_SEQUENCE_OFFSET,
    RingFloor,
    RingLayout,
    RingSlot,
    decode_slot,
)

_SEQUENCE: Final = Struct("<Q")


def displaced_slots(data: mmap, floor: RingFloor, damaged_slots: Set[int]) -> Iterator[RingSlot]:
    """Yield the slots that lie outside their place: between records, on the other side, over the
    header or the floor, and over other slots, which are damaged then. Raises FormatVersionError."""
    layout = floor.layout
    for at in _places(data, layout, damaged_slots):
        slot = _slot_at(data, at, floor, layout)
        if slot is not None and layout.start <= slot.offset < layout.end:
            yield slot


def _places(data: mmap, layout: RingLayout, damaged_slots: Set[int]) -> Iterator[int]:
    yield from _magics(data, 0, layout.slots_start)
    yield from (layout.slots_start + number * SLOT_BYTES for number in sorted(damaged_slots))
    yield from _magics(data, layout.start, layout.file_bytes)


def _magics(data: mmap, start: int, end: int) -> Iterator[int]:
    """Yield where something like a slot begins."""
    at = data.find(SLOT_MAGIC, start, end)
    while at >= 0:
        if at % SLOT_BYTES == SLOT_MAGIC_OFFSET:
            yield at - SLOT_MAGIC_OFFSET
        at = data.find(SLOT_MAGIC, at + 1, end)


def _slot_at(data: mmap, at: int, floor: RingFloor, layout: RingLayout) -> RingSlot | None:
    raw = data[at : at + SLOT_BYTES]
    (sequence,) = _SEQUENCE.unpack_from(raw, SLOT_SEQUENCE_OFFSET)
    return intact_slot(raw, floor, layout.slot_of(sequence))


def intact_slot(raw: bytes, floor: RingFloor, number: int) -> RingSlot | None:
    """Return a slot of that number if it is intact and of a sequence from the floor on. Raises
    FormatVersionError."""
    (sequence,) = _SEQUENCE.unpack_from(raw, SLOT_SEQUENCE_OFFSET)
    if sequence < floor.floor:
        return None  # as nearly all slots of the other side: there may be many
    try:
        return decode_slot(raw, journal_id=floor.journal_id, number=number)
    except FormatVersionError:
        raise
    except FormatError:
        return None
