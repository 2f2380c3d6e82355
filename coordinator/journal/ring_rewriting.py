"""The other side of a ring, as the log is written there anew.

What the log no longer needs (entries that a view change discarded, entries that were written again,
marks) takes room until a snapshot lets the floor rise. Nothing bounds how much of it there is, so
it must not take the room of what other replicas have admitted. A ring that is full of it is copied
to its other side without it, as a collector with two halves does.
"""

from __future__ import annotations

from typing import Final

from coordinator.journal.placement import Placed
from coordinator.journal.ring_file import RingFile
from viewstamp.format.record import Frame, encode_record
from viewstamp.format.ring import SLOT_BYTES, RingSlot, encode_slot
from viewstamp.limits import MIB

BLANK_PIECE_BYTES: Final = MIB


class OtherSide:
    """The side that is not in use, which is blanked, written and then turned to.

    Every method raises OSError if the disk does.
    """

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._journal_id = ring.floor.journal_id
        self.layout = ring.layout.other
        self._image = bytearray(self.layout.slots * SLOT_BYTES)
        self._first_sequence = 0

    def blank(self) -> None:
        """Fill the side with zeros: an attempt that a crash ended may have left records there."""
        start, end = self.layout.slots_start, self.layout.end
        for offset in range(start, end, BLANK_PIECE_BYTES):
            self._ring.file.write(offset, bytes(min(BLANK_PIECE_BYTES, end - offset)))

    def write(self, record: Placed, frame: Frame) -> None:
        """Write a record there, and keep its slot in memory."""
        self._first_sequence = self._first_sequence or frame.sequence
        place = {"segment": record.segment, "offset": record.offset}
        data = record.content.data
        raw = encode_record(frame, data, journal_id=self._journal_id, **place)
        self._ring.file.write(record.offset, raw)
        number = self.layout.slot_of(frame.sequence)
        slot = encode_slot(
            RingSlot(frame, record.offset, data), journal_id=self._journal_id, number=number
        )
        self._image[number * SLOT_BYTES : (number + 1) * SLOT_BYTES] = slot

    def turn(self) -> None:
        """Make all of it durable, and then let the floor name it."""
        self._ring.file.write(self.layout.slots_start, bytes(self._image))
        self._ring.file.sync()
        self._ring.turn(self._first_sequence, self._image)
