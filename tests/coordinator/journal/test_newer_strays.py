"""Records of a later format that the disk wrote to a wrong place."""

from __future__ import annotations

import struct

from testkit.journal_builders import JOURNAL_ID, chain, filled, place, refused
from testkit.memory_storage import MemoryStorage
from viewstamp.format import CHECKSUM_BYTES, FormatVersionError
from viewstamp.format.prepare import checksum_of
from viewstamp.format.record import FRAME_BYTES, SECTOR_BYTES

MAGIC_BYTES = 4
LATER_VERSION = b"\x04\0"


def test_a_newer_record_at_a_wrong_place_is_refused_as_such() -> None:
    """It is named with the file where it lies, and never cut away as if it were torn."""
    storage = MemoryStorage()
    filled(storage, [[each] for each in chain(2)], replica_count=3)
    path, offset = place(1)
    content = bytearray(storage.content(path))
    record = content[offset : offset + SECTOR_BYTES]
    version_at = CHECKSUM_BYTES + MAGIC_BYTES
    record[version_at : version_at + 2] = LATER_VERSION
    checked = struct.pack("<16sQQ", JOURNAL_ID, 1, offset) + record[CHECKSUM_BYTES:FRAME_BYTES]
    record[:CHECKSUM_BYTES] = checksum_of(checked)
    content[offset : offset + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    content[offset + SECTOR_BYTES : offset + 2 * SECTOR_BYTES] = record
    storage.replace(path, bytes(content))
    refused(storage, FormatVersionError, f"{path}: record format version 4", replica_count=3)
