"""A small file that is replaced as a whole, in place: the newest intact one of two slots counts.

Each slot has 12,288 bytes. Integers are unsigned, little-endian.

====== ==== ===========================================================================
offset size field
====== ==== ===========================================================================
0      16   checksum: BLAKE3-128 of the bytes from 16 to the end of the slot
16     4    magic, the ASCII letters "VSKD"
20     2    format version: 1
22     2    reserved, zero
24     8    sequence: +1 for each content written, from 1 on
32     4    size of the content in bytes
36     4    reserved, zero
40     size content; zeros follow it
====== ==== ===========================================================================

A write overwrites the older slot and syncs it, so a crash leaves the newer one, and a full disk
stops no write but the first. It is meant for what a replica may lose: a slot is not read back.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from coordinator.journal.segment import TEMPORARY_SUFFIX, no_space_or_same
from coordinator.storage import Storage, StorageFile
from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.prepare import checksum_of
from viewstamp.format.record import SECTOR_BYTES

SLOTS: Final = 2
SLOT_BYTES: Final = 3 * SECTOR_BYTES
_MAGIC: Final = b"VSKD"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sHHQII")
_CONTENT_FROM: Final = CHECKSUM_BYTES + _HEADER.size
CONTENT_BYTES_MAX: Final = SLOT_BYTES - _CONTENT_FROM


@dataclass(frozen=True, slots=True)
class Slot:
    """What one slot holds."""

    sequence: int
    content: bytes


class SlotFile:
    """The file at a path, made by its first write. All calls block; one thread makes them."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self.path = path
        self._sequence = 0
        self._newest = 0
        self._is_settled = False

    def read(self) -> bytes | None:
        """Return the newest content, None if there is no file.

        Raises FormatError if no slot is intact, FormatVersionError if none is of this version.
        """
        if not self._storage.exists(self.path):
            return None
        try:
            file = self._storage.open(self.path)
        except OSError as error:
            raise FormatError(f"it cannot be opened: {error}") from error
        slots, reasons = _slots(file)
        file.close()
        if not slots:
            raise next((r for r in reasons if isinstance(r, FormatVersionError)), reasons[0])
        self._newest, found = max(slots.items(), key=lambda each: each[1].sequence)
        self._sequence = found.sequence
        return found.content

    def write(self, content: bytes) -> None:
        """Return once the content is durable, after a `read`.

        Raises NoSpace, and OSError if the disk fails.
        """
        assert len(content) <= CONTENT_BYTES_MAX, "the slot holds the content"
        try:
            if self._storage.exists(self.path):
                self._replace(content)
            else:
                self._create(content)
        except OSError as error:
            raise no_space_or_same(error, self.path) from error

    def _create(self, content: bytes) -> None:
        temporary = self.path + TEMPORARY_SUFFIX
        if self._storage.exists(temporary):
            self._storage.unlink(temporary)
        file = self._storage.create(temporary)
        try:
            file.preallocate(SLOTS * SLOT_BYTES)
            file.write(0, encode_slot(Slot(1, content)))
            file.sync()
        except OSError:
            self._storage.unlink(temporary)  # a full disk needs the room
            raise
        finally:
            file.close()
        # From here on the file may be there: what comes next must count as newer.
        self._sequence, self._newest = 1, 0
        self._storage.rename(temporary, self.path)
        self._sync_name()
        self._is_settled = True

    def _replace(self, content: bytes) -> None:
        target = (self._newest + 1) % SLOTS
        file = self._storage.open(self.path)
        try:
            if not self._is_settled:
                self._settle(file)
            file.write(target * SLOT_BYTES, encode_slot(Slot(self._sequence + 1, content)))
            file.sync()
        finally:
            file.close()
        self._sequence, self._newest = self._sequence + 1, target

    def _settle(self, file: StorageFile) -> None:
        """Make durable what was read: its writer may have been killed before its sync."""
        file.sync()
        self._sync_name()
        self._is_settled = True

    def _sync_name(self) -> None:
        self._storage.sync_directory(self.path.rpartition("/")[0])


def encode_slot(slot: Slot) -> bytes:
    """Return the bytes of a whole slot."""
    header = _HEADER.pack(_MAGIC, _VERSION, 0, slot.sequence, len(slot.content), 0)
    checked = (header + slot.content).ljust(SLOT_BYTES - CHECKSUM_BYTES, b"\0")
    return checksum_of(checked) + checked


def decode_slot(data: bytes) -> Slot:
    """Read and verify a slot. Raises FormatError, and FormatVersionError for an unknown version."""
    if len(data) != SLOT_BYTES:
        raise FormatError(f"slot is {len(data)} bytes, must be {SLOT_BYTES}")
    checked = data[CHECKSUM_BYTES:]
    magic, version, reserved, sequence, size, reserved_too = _HEADER.unpack_from(checked)
    if magic != _MAGIC:
        raise FormatError(f"slot magic is {magic!r}, must be {_MAGIC!r}")
    if data[:CHECKSUM_BYTES] != checksum_of(checked):
        raise FormatError(f"slot checksum {data[:CHECKSUM_BYTES].hex()} does not match its bytes")
    if version != _VERSION:
        raise FormatVersionError(f"slot format version {version} is unknown, this build reads 1")
    if reserved or reserved_too or not sequence or size > CONTENT_BYTES_MAX:
        raise FormatError(f"slot {sequence} says that its content has {size} bytes")
    return Slot(sequence, data[_CONTENT_FROM : _CONTENT_FROM + size])


def _slots(file: StorageFile) -> tuple[dict[int, Slot], list[FormatError]]:
    """Return the intact slots by place, and what is wrong with the others."""
    slots: dict[int, Slot] = {}
    reasons: list[FormatError] = []
    for place in range(SLOTS):
        try:
            slots[place] = decode_slot(file.read(place * SLOT_BYTES, SLOT_BYTES))
        except FormatError as error:
            reasons.append(error)
        except OSError as error:
            reasons.append(FormatError(f"slot {place} cannot be read: {error}"))
    return slots, reasons
