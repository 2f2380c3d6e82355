"""The parts of a layer file around its blocks: header, index and trailer.

A layer file is a header, blocks (`viewstamp.format.block`), an index of the blocks, and a trailer,
without a gap between them. A layer with base generation 0 is a base, which holds the whole section
and no tombstone; any other is a delta against the state of its base generation. Integers are
unsigned and little-endian.

====== ==== ================================================================================
offset size header, 80 bytes at the start of the file
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of header bytes 16..79
16     4    magic, the ASCII letters "VSLY"
20     2    format version, 1
22     2    reserved, zero
24     16   cluster_id
40     4    stage, the number of routing.v1.Stage, from 1
44     4    section version: schema version of the entities, from 1
48     8    generation whose state the chain up to this layer is, from 1
56     8    base generation, below the generation; 0 for a base
64     4    feature level in force at the cut
68     12   reserved, zero
====== ==== ================================================================================

The blocks follow from offset 80, strictly ascending: the first entry of a block comes after the
last of the block before. A layer without entries has no block. Then the index:

====== ==== ================================================================================
offset size index, 32 bytes and the locations
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of all other bytes of the index, 16 to its end
16     4    magic, the ASCII letters "VSLI"
20     2    format version, 1
22     2    reserved, zero
24     4    locations, one per block, in order
28     4    reserved, zero
32          the locations, one behind the other
====== ==== ================================================================================

====== ==== ================================================================================
offset size location
====== ==== ================================================================================
0      8    offset of the block in the file
8      4    bytes of the block
12     4    raw bytes of the block
16     4    entries of the block
20     4    tombstones of the block
24     16   checksum of the block, the first 16 bytes of it
40     4    kind of the block's first entry
44     4    kind of the block's last entry
48     2    length of the first entry's key (A)
50     2    length of the last entry's key (B)
52     4    reserved, zero
56     A    key of the first entry
56+A   B    key of the last entry
====== ==== ================================================================================

====== ==== ================================================================================
offset size trailer, the last 104 bytes of the file
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of trailer bytes 16..103
16     4    magic, the ASCII letters "VSLT"
20     2    format version, 1
22     2    reserved, zero
24     8    offset of the index in the file
32     8    bytes of the index
40     8    blocks
48     8    entries of all blocks
56     8    tombstones of all blocks
64     8    raw bytes of all blocks
72     16   checksum of the header
88     16   checksum of the index
====== ==== ================================================================================

The trailer names the checksums of header and index, and the index those of the blocks, so a part of
another layer is never accepted. A reader verifies header, trailer, index and then each block it
needs. Within a part the order is: length, magic, checksum, version, reserved bytes, numbers. The
file's name is its digest: BLAKE3 (32 bytes) of all its bytes.

A later format version keeps the extent of the header and the places of its checksum, magic and
version, so a reader can tell "too new" from "corrupt".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.block import BLOCK_HEADER_BYTES, KEY_BYTES_MAX
from viewstamp.format.prepare import checksum_of
from viewstamp.format.section import Position

LAYER_MAGIC: Final = b"VSLY"
INDEX_MAGIC: Final = b"VSLI"
TRAILER_MAGIC: Final = b"VSLT"
LAYER_VERSION: Final = 1
HEADER_BYTES: Final = 80
INDEX_HEADER_BYTES: Final = 32
LOCATION_BYTES: Final = 56
TRAILER_BYTES: Final = 104

_U64_MAX: Final = (1 << 64) - 1
_U32_MAX: Final = (1 << 32) - 1
_COMMON = struct.Struct("<16s4sHH")
_HEADER = struct.Struct("<16s4sHH16sIIQQI12s")
_INDEX = struct.Struct("<16s4sHHII")
_LOCATION = struct.Struct("<QIIII16sIIHHI")
_TRAILER = struct.Struct("<16s4sHHQQQQQQ16s16s")
assert _HEADER.size == HEADER_BYTES
assert _INDEX.size == INDEX_HEADER_BYTES
assert _LOCATION.size == LOCATION_BYTES
assert _TRAILER.size == TRAILER_BYTES
_HEADER_RESERVED: Final = bytes(12)


@dataclass(frozen=True, slots=True)
class LayerHeader:
    """The header of a layer. `cluster_id` is 16 bytes, `stage` a number of routing.v1.Stage."""

    cluster_id: bytes
    stage: int
    section_version: int
    generation: int
    base_generation: int
    feature_level: int

    @property
    def is_base(self) -> bool:
        """Whether it holds the whole section."""
        return self.base_generation == 0


class BlockLocation(NamedTuple):
    """The position and the content of a block in its file."""

    offset: int
    size_bytes: int
    entries: int
    tombstones: int
    raw_bytes: int
    first: Position
    last: Position
    checksum: bytes


class Totals(NamedTuple):
    """The sums over all blocks of a layer."""

    blocks: int
    entries: int
    tombstones: int
    raw_bytes: int


class Trailer(NamedTuple):
    """The place of the index, the totals of the blocks, and the checksums of header and index."""

    index_offset: int
    index_bytes: int
    totals: Totals
    header_checksum: bytes
    index_checksum: bytes


def invalid_header(header: LayerHeader) -> str | None:
    """Why no layer may have this header, or None."""
    if len(header.cluster_id) != CHECKSUM_BYTES:
        return f"cluster_id is {len(header.cluster_id)} bytes, must be {CHECKSUM_BYTES}"
    if not 1 <= header.stage <= _U32_MAX:
        return f"stage {header.stage} is none; stages are numbered from 1"
    if not 1 <= header.section_version <= _U32_MAX:
        return f"section version {header.section_version} is none; versions are numbered from 1"
    if not 0 <= header.feature_level <= _U32_MAX:
        return f"feature level {header.feature_level} does not fit into 32 bits unsigned"
    if not 0 <= header.base_generation < header.generation <= _U64_MAX:
        return (
            f"generation {header.generation} is none, or does not come after its base generation "
            f"{header.base_generation}"
        )
    return None


def check_location(
    location: BlockLocation, previous: BlockLocation | None, header: LayerHeader
) -> None:
    """Raise FormatError unless a block may follow the one before it in this layer."""
    end, last = HEADER_BYTES, None
    if previous is not None:
        end, last = previous.offset + previous.size_bytes, previous.last
    if location.offset != end:
        raise FormatError(f"a block lies at {location.offset}, the parts before it end at {end}")
    if location.size_bytes <= BLOCK_HEADER_BYTES or location.entries < 1:
        raise FormatError(
            f"block at {location.offset} has {location.size_bytes} bytes and {location.entries} "
            "entries, which is impossible"
        )
    if location.tombstones > (0 if header.is_base else location.entries):
        raise FormatError(
            f"block at {location.offset} has {location.tombstones} tombstones, a base has none "
            "and a delta one per entry at most"
        )
    if last is not None and location.first <= last:
        raise FormatError(f"block at {location.offset} does not come after the one before it")
    if not _is_range(location):
        raise FormatError(f"block at {location.offset} has an impossible first or last entry")


def _is_range(location: BlockLocation) -> bool:
    """Whether first and last entry are possible for so many entries."""
    if max(len(location.first[1]), len(location.last[1])) > KEY_BYTES_MAX:
        return False
    return (
        location.first == location.last
        if location.entries == 1
        else (location.first < location.last)
    )


def _seal(checked: bytes) -> bytes:
    return checksum_of(checked) + checked


def _check_size(part: bytes, name: str, size_bytes: int) -> None:
    """Refuse what is left of a file that was cut off. Raises FormatError."""
    if len(part) != size_bytes:
        raise FormatError(f"{name} is {len(part)} bytes, must be {size_bytes}")


def _verify(part: bytes, name: str, magic: bytes) -> bytes:
    """Verify the fields that all parts share; return the checksum. Raises FormatError."""
    checksum, found, version, reserved = _COMMON.unpack_from(part)
    if found != magic:
        raise FormatError(f"{name} magic is {found!r}, must be {magic!r}")
    if checksum != checksum_of(memoryview(part)[CHECKSUM_BYTES:]):
        raise FormatError(f"{name} checksum {checksum.hex()} does not match its bytes")
    if version != LAYER_VERSION:
        raise FormatVersionError(
            f"{name} format version {version} is unknown, this build reads {LAYER_VERSION}"
        )
    if reserved:
        raise FormatError(f"reserved bytes of the {name} are not zero")
    return bytes(checksum)


def encode_header(header: LayerHeader) -> bytes:
    """Return the header, sealed."""
    packed = _HEADER.pack(
        b"",
        LAYER_MAGIC,
        LAYER_VERSION,
        0,
        header.cluster_id,
        header.stage,
        header.section_version,
        header.generation,
        header.base_generation,
        header.feature_level,
        _HEADER_RESERVED,
    )
    return _seal(packed[CHECKSUM_BYTES:])


def decode_header(part: bytes) -> LayerHeader:
    """Read and verify the first 80 bytes of a file; raises FormatError saying what is wrong."""
    _check_size(part, "layer header", HEADER_BYTES)
    _verify(part, "layer header", LAYER_MAGIC)
    *_, cluster_id, stage, version, generation, base, level, reserved = _HEADER.unpack(part)
    if reserved != _HEADER_RESERVED:
        raise FormatError("reserved bytes of the layer header are not zero")
    header = LayerHeader(cluster_id, stage, version, generation, base, level)
    reason = invalid_header(header)
    if reason is not None:
        raise FormatError(f"layer header is impossible: {reason}")
    return header


def encode_index(locations: Sequence[BlockLocation]) -> bytes:
    """Return the index of these blocks, sealed."""
    parts = [_INDEX.pack(b"", INDEX_MAGIC, LAYER_VERSION, 0, len(locations), 0)[CHECKSUM_BYTES:]]
    for location in locations:
        (first_kind, first_key), (last_kind, last_key) = location.first, location.last
        packed = _LOCATION.pack(
            location.offset,
            location.size_bytes,
            location.raw_bytes,
            location.entries,
            location.tombstones,
            location.checksum,
            first_kind,
            last_kind,
            len(first_key),
            len(last_key),
            0,
        )
        parts += (packed, first_key, last_key)
    return _seal(b"".join(parts))


def decode_index(part: bytes, trailer: Trailer, header: LayerHeader) -> tuple[BlockLocation, ...]:
    """Read and verify an index that the trailer names; raises FormatError saying what is wrong."""
    if len(part) < INDEX_HEADER_BYTES:
        raise FormatError(f"index is {len(part)} bytes, its header alone is {INDEX_HEADER_BYTES}")
    checksum = _verify(part, "index", INDEX_MAGIC)
    if checksum != trailer.index_checksum:
        raise FormatError(
            f"index is {checksum.hex()}, the trailer names {trailer.index_checksum.hex()}"
        )
    *_, count, reserved = _INDEX.unpack_from(part)
    if reserved:
        raise FormatError("reserved bytes of the index are not zero")
    locations: list[BlockLocation] = []
    offset = INDEX_HEADER_BYTES
    for _ in range(count):
        location, offset = _decode_location(part, offset)
        check_location(location, locations[-1] if locations else None, header)
        locations.append(location)
    if offset != len(part):
        raise FormatError(f"locations end at byte {offset} of an index of {len(part)}")
    _check_totals(locations, trailer)
    return tuple(locations)


def _decode_location(part: bytes, offset: int) -> tuple[BlockLocation, int]:
    """Return the location at `offset` of the index, and where the next one begins."""
    first_offset = offset + LOCATION_BYTES
    if first_offset > len(part):
        raise FormatError(f"location at byte {offset} of the index is cut off")
    (
        block_offset,
        size_bytes,
        raw_bytes,
        entries,
        tombstones,
        checksum,
        first_kind,
        last_kind,
        first_bytes,
        last_bytes,
        reserved,
    ) = _LOCATION.unpack_from(part, offset)
    if reserved:
        raise FormatError("reserved bytes of a location are not zero")
    last_offset = first_offset + first_bytes
    end = last_offset + last_bytes
    if end > len(part):
        raise FormatError(f"keys of the location at byte {offset} of the index are cut off")
    first = (first_kind, part[first_offset:last_offset])
    last = (last_kind, part[last_offset:end])
    location = BlockLocation(
        block_offset, size_bytes, entries, tombstones, raw_bytes, first, last, checksum
    )
    return location, end


def _check_totals(locations: Sequence[BlockLocation], trailer: Trailer) -> None:
    """Raise FormatError unless blocks fill the file up to the index and add up to the totals."""
    last = locations[-1] if locations else None
    end = last.offset + last.size_bytes if last else HEADER_BYTES
    if end != trailer.index_offset:
        raise FormatError(f"blocks end at {end}, the index begins at {trailer.index_offset}")
    totals = Totals(
        len(locations),
        sum(location.entries for location in locations),
        sum(location.tombstones for location in locations),
        sum(location.raw_bytes for location in locations),
    )
    if totals != trailer.totals:
        raise FormatError(f"trailer states {trailer.totals}, the index adds up to {totals}")


def encode_trailer(trailer: Trailer) -> bytes:
    """Return the trailer, sealed."""
    packed = _TRAILER.pack(
        b"",
        TRAILER_MAGIC,
        LAYER_VERSION,
        0,
        trailer.index_offset,
        trailer.index_bytes,
        *trailer.totals,
        trailer.header_checksum,
        trailer.index_checksum,
    )
    return _seal(packed[CHECKSUM_BYTES:])


def decode_trailer(part: bytes) -> Trailer:
    """Read and verify the last 104 bytes of a file; raises FormatError saying what is wrong."""
    _check_size(part, "trailer", TRAILER_BYTES)
    _verify(part, "trailer", TRAILER_MAGIC)
    numbers = _TRAILER.unpack(part)[4:]
    offset, size_bytes, blocks, entries, tombstones, raw_bytes, header_sum, index_sum = numbers
    totals = Totals(blocks, entries, tombstones, raw_bytes)
    return Trailer(offset, size_bytes, totals, header_sum, index_sum)
