"""The other side of a ring, as the log is written there anew.

What the log no longer needs (entries that a view change discarded, entries that were written again,
marks) takes room until a snapshot lets the floor rise. Nothing bounds how much of it there is, so
it must not take the room of what other replicas have admitted. A ring that is full of it is copied
to its other side without it, as a collector with two halves does.

**What else lies there** is never believed, because its sequences are lower. They are those of the
time when the side was in use, or of an attempt that a crash ended: a start looks for the latter.

**An entry that is missing** is copied as a record that has its op and checksum and no content,
which is never whole. So the next start tells it as lost, as it would have without the copy. What
nobody has told as lost yet is read first, and ends the copy if it cannot be.
"""

from __future__ import annotations

from coordinator.journal.placement import Placed
from coordinator.journal.ring_file import RingFile
from viewstamp.format.record import Frame, encode_record
from viewstamp.format.ring import SLOT_BYTES, RingSlot, encode_slot


class OtherSide:
    """The side that is not in use, which is written and then turned to.

    Every method raises OSError if the disk does.
    """

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._journal_id = ring.floor.journal_id
        self.layout = ring.layout.other
        self._image = bytearray(self.layout.slots * SLOT_BYTES)

    def write(self, record: Placed, frame: Frame) -> None:
        """Write a record there, and keep its slot in memory."""
        raw = encode_record(
            frame,
            record.content.data,
            journal_id=self._journal_id,
            segment=record.segment,
            offset=record.offset,
        )
        self._ring.file.write(record.offset, raw)
        number = self.layout.slot_of(frame.sequence)
        slot = encode_slot(
            RingSlot(frame, record.offset, record.content.data),
            journal_id=self._journal_id,
            number=number,
        )
        self._image[number * SLOT_BYTES : (number + 1) * SLOT_BYTES] = slot

    def turn(self, first_sequence: int) -> None:
        """Make all of it durable, and then let the floor name it."""
        room_bytes = self.layout.start - self.layout.slots_start
        self._ring.file.write(self.layout.slots_start, bytes(self._image).ljust(room_bytes, b"\0"))
        self._ring.file.sync()
        self._ring.turn(first_sequence, self._image)
