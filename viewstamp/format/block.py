"""Blocks: up to 256 KiB of a layer's entries, compressed and checked as one.

A block is a header of 40 bytes followed at once by one zstd frame. Integers are unsigned and
little-endian.

====== ==== ================================================================================
offset size block header
====== ==== ================================================================================
0      16   checksum: BLAKE3-128 of all other bytes of the block, 16 to its end
16     4    magic, the ASCII letters "VSLB"
20     2    format version, 1
22     2    reserved, zero
24     4    bytes of the zstd frame (F); the block is 40 + F bytes long
28     4    raw bytes: what the frame decompresses to. At most 262,144; a block of one entry
            alone may have up to 16,777,216
32     4    entries, at least 1
36     4    tombstones among them
40     F    one zstd frame (RFC 8878) that states its content size, which is the raw bytes
====== ==== ================================================================================

The raw bytes are the entries, one behind the other, strictly ascending by (kind, key), kinds as
numbers and keys as byte strings:

====== ==== ================================================================================
offset size entry
====== ==== ================================================================================
0      4    kind
4      4    length of the canonical bytes (C); 0 in a tombstone
8      2    length of the key (K), at most 1024
10     2    flags: 1 for a tombstone, else 0
12     K    key
12+K   C    canonical bytes: the entity's pinned encoding, which may be empty
====== ==== ================================================================================

A reader verifies in this order: length, magic, checksum, version, reserved bytes, numbers, the
content size that the frame states, then what it decompresses to. So no more than 16 MiB are ever
decompressed, and only after the checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from viewstamp.format import CHECKSUM_BYTES, FormatError, FormatVersionError
from viewstamp.format.prepare import checksum_of
from viewstamp.format.section import Position, SectionEntry
from viewstamp.limits import ENTITY_BYTES_MAX, LAYER_BLOCK_BYTES_MAX

BLOCK_MAGIC: Final = b"VSLB"
BLOCK_VERSION: Final = 1
BLOCK_HEADER_BYTES: Final = 40
ENTRY_HEADER_BYTES: Final = 12
KEY_BYTES_MAX: Final = 1024
ZSTD_LEVEL: Final = 1

_TOMBSTONE: Final = 1
_KIND_MAX: Final = (1 << 32) - 1
_HEADER = struct.Struct("<16s4sHHIIII")
_ENTRY = struct.Struct("<IIHH")
assert _HEADER.size == BLOCK_HEADER_BYTES
assert _ENTRY.size == ENTRY_HEADER_BYTES
# The header of every entry.
_START: Final[Position] = (-1, b"")


class EntryTooLargeError(ValueError):
    """An entry that no block may hold: a section with it cannot be written."""


class RawBlock(NamedTuple):
    """Encoded entries on their way to `compress`."""

    raw: bytes
    entries: int
    tombstones: int
    first: Position
    last: Position


class Block(NamedTuple):
    """A finished block, and what the index of a layer must know about it."""

    data: bytes
    """The block as it goes into the file."""
    entries: int
    """Entities and tombstones."""
    tombstones: int
    raw_bytes: int
    first: Position
    last: Position


class BlockHeader(NamedTuple):
    """The header of a block whose checksum was verified."""

    checksum: bytes
    frame_bytes: int
    raw_bytes: int
    entries: int
    tombstones: int


class BlockBuilder:
    """Encodes entries into raw blocks.

    The caller takes a block whenever one is full, and the rest at the end:

        for entry in entries:
            builder.add(entry)
            if builder.is_full:
                use(builder.take_raw())
        while builder.size_bytes:
            use(builder.take_raw())
    """

    __slots__ = ("_full", "_parts", "_raw_bytes", "_entries", "_tombstones", "_first", "_last")

    def __init__(self) -> None:
        self._full: RawBlock | None = None
        self._last = _START
        self._begin(_START)

    @property
    def size_bytes(self) -> int:
        """Raw bytes that were added and not yet taken."""
        return self._raw_bytes + (len(self._full.raw) if self._full else 0)

    @property
    def is_full(self) -> bool:
        """Whether a block waits to be taken, because the last entry did not fit into it."""
        return self._full is not None

    def add(self, entry: SectionEntry) -> None:
        """Append an entry. It must follow all earlier ones, also those of blocks already taken.

        Raises ValueError for an entry out of order or too large, and while a full block waits.
        """
        kind, key, canonical = entry
        here = (kind, key)
        if here <= self._last:
            raise ValueError(f"entry {_name(here)} does not come after {_name(self._last)}")
        if canonical is None:
            header = _encode_tombstone(kind, key)
            canonical = b""
            tombstones = 1
        else:
            header = _encode_header(kind, key, canonical)
            tombstones = 0
        size_bytes = ENTRY_HEADER_BYTES + len(key) + len(canonical)
        if self._raw_bytes + size_bytes > LAYER_BLOCK_BYTES_MAX or not self._entries:
            self._make_room(here)
        self._parts += (header, key, canonical)
        self._raw_bytes += size_bytes
        self._entries += 1
        self._tombstones += tombstones
        self._last = here

    def take_raw(self) -> RawBlock:
        """Return the full block, or else the entries added since; ValueError if there are none."""
        block = self._full
        if block is not None:
            self._full = None
            return block
        if not self._entries:
            raise ValueError("no entry was added since the last block was taken")
        block = self._close()
        self._begin(_START)
        return block

    def _make_room(self, here: Position) -> None:
        """Begin a block at `here`, after closing the one under way, if there is one."""
        if self._entries:
            if self._full is not None:
                raise ValueError("a full block must be taken before more entries are added")
            self._full = self._close()
        self._begin(here)

    def _begin(self, first: Position) -> None:
        self._parts: list[bytes] = []
        self._raw_bytes = 0
        self._entries = 0
        self._tombstones = 0
        self._first = first

    def _close(self) -> RawBlock:
        raw = b"".join(self._parts)
        return RawBlock(raw, self._entries, self._tombstones, self._first, self._last)


def raw_blocks(entries: Iterable[SectionEntry]) -> Iterator[RawBlock]:
    """Encode ascending entries into raw blocks; raises ValueError as `BlockBuilder.add` does."""
    builder = BlockBuilder()
    for entry in entries:
        builder.add(entry)
        if builder.is_full:
            yield builder.take_raw()
    while builder.size_bytes:
        yield builder.take_raw()


def compress(raw: RawBlock) -> Block:
    """Make the block of encoded entries: the costly part. Any thread may call it."""
    import zstandard  # imported late: a client that reads no blocks does not need it

    frame = zstandard.ZstdCompressor(
        level=ZSTD_LEVEL, write_content_size=True, write_checksum=False, write_dict_id=False
    ).compress(raw.raw)
    checked = (
        _HEADER.pack(
            b"",
            BLOCK_MAGIC,
            BLOCK_VERSION,
            0,
            len(frame),
            len(raw.raw),
            raw.entries,
            raw.tombstones,
        )[CHECKSUM_BYTES:]
        + frame
    )
    data = checksum_of(checked) + checked
    return Block(data, raw.entries, raw.tombstones, len(raw.raw), raw.first, raw.last)


def verify_block(data: bytes) -> BlockHeader:
    """Verify a block without decompressing it; raises FormatError saying what is wrong."""
    if len(data) < BLOCK_HEADER_BYTES:
        raise FormatError(f"block is {len(data)} bytes, its header alone is {BLOCK_HEADER_BYTES}")
    checksum, magic, version, reserved, *numbers = _HEADER.unpack_from(data)
    if magic != BLOCK_MAGIC:
        raise FormatError(f"block magic is {magic!r}, must be {BLOCK_MAGIC!r}")
    if checksum != checksum_of(memoryview(data)[CHECKSUM_BYTES:]):
        raise FormatError(f"block checksum {checksum.hex()} does not match its bytes")
    if version != BLOCK_VERSION:
        raise FormatVersionError(
            f"block format version {version} is unknown, this build reads {BLOCK_VERSION}"
        )
    if reserved:
        raise FormatError("reserved bytes of the block header are not zero")
    header = BlockHeader(checksum, *numbers)
    reason = _invalid(header, len(data))
    if reason is not None:
        raise FormatError(f"block is impossible: {reason}")
    return header


def decode_block(data: bytes) -> list[SectionEntry]:
    """Return the entries of a block, verified; raises FormatError saying what is wrong."""
    import zstandard

    header = verify_block(data)
    frame = memoryview(data)[BLOCK_HEADER_BYTES:]
    try:
        content_bytes = zstandard.frame_content_size(frame)
        if content_bytes != header.raw_bytes:
            raise FormatError(
                f"zstd frame states {content_bytes} bytes, the block {header.raw_bytes}"
            )
        # Exactly the stated size is allocated, and nothing is written beyond it.
        raw = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"zstd frame of the block is damaged: {error}") from error
    return _decode_entries(raw, header)


def _invalid(header: BlockHeader, size_bytes: int) -> str | None:
    """Why no correct writer can have made this header, or None."""
    if BLOCK_HEADER_BYTES + header.frame_bytes != size_bytes:
        return f"{size_bytes} bytes hold a header and a frame of {header.frame_bytes}"
    if header.entries < 1 or header.tombstones > header.entries:
        return f"{header.entries} entries, {header.tombstones} of them tombstones"
    raw_bytes_max = LAYER_BLOCK_BYTES_MAX if header.entries > 1 else ENTITY_BYTES_MAX
    if header.raw_bytes > raw_bytes_max:
        return f"{header.raw_bytes} raw bytes of {header.entries} entries exceed {raw_bytes_max}"
    if header.raw_bytes < header.entries * ENTRY_HEADER_BYTES:
        return f"{header.raw_bytes} raw bytes are too few for {header.entries} entries"
    return None


def _decode_entries(raw: bytes, header: BlockHeader) -> list[SectionEntry]:
    """Take decompressed bytes apart. A loop without calls, since it runs for every entity."""
    entries: list[SectionEntry] = []
    append, unpack, make, new = entries.append, _ENTRY.unpack_from, SectionEntry, tuple.__new__
    last_kind, last_key = _START
    offset = tombstones = 0
    limit = len(raw) - ENTRY_HEADER_BYTES
    for index in range(header.entries):
        if offset > limit:
            raise FormatError(f"entry {index} of a block of {header.entries} is cut off")
        kind, canonical_bytes, key_bytes, flags = unpack(raw, offset)
        key_offset = offset + ENTRY_HEADER_BYTES
        canonical_offset = key_offset + key_bytes
        offset = canonical_offset + canonical_bytes
        key = raw[key_offset:canonical_offset]
        if kind < last_kind or (kind == last_kind and key <= last_key) or key_bytes > KEY_BYTES_MAX:
            raise FormatError(_misplaced((kind, key), (last_kind, last_key)))
        canonical: bytes | None = raw[canonical_offset:offset]
        if flags:
            if flags != _TOMBSTONE or canonical_bytes:
                raise FormatError(f"entry {_name((kind, key))} has impossible flags {flags:#06x}")
            canonical = None
            tombstones += 1
        append(new(make, (kind, key, canonical)))
        last_kind, last_key = kind, key
    if offset != len(raw) or tombstones != header.tombstones:
        raise FormatError(
            f"entries take {offset} of {len(raw)} raw bytes with {tombstones} tombstones, "
            f"the block states {header.tombstones}"
        )
    return entries


def _encode_header(kind: int, key: bytes, canonical: bytes) -> bytes:
    if (
        len(key) > KEY_BYTES_MAX
        or not 0 <= kind <= _KIND_MAX
        or ENTRY_HEADER_BYTES + len(key) + len(canonical) > ENTITY_BYTES_MAX
    ):
        raise EntryTooLargeError(_too_large(kind, key, len(canonical)))
    return _ENTRY.pack(kind, len(canonical), len(key), 0)


def _encode_tombstone(kind: int, key: bytes) -> bytes:
    if len(key) > KEY_BYTES_MAX or not 0 <= kind <= _KIND_MAX:
        raise EntryTooLargeError(_too_large(kind, key, 0))
    return _ENTRY.pack(kind, 0, len(key), _TOMBSTONE)


def _too_large(kind: int, key: bytes, canonical_bytes: int) -> str:
    return (
        f"an entry has a kind up to {_KIND_MAX}, a key of up to {KEY_BYTES_MAX} bytes and "
        f"{ENTITY_BYTES_MAX} bytes in all; this one has kind {kind}, a key of {len(key)} bytes "
        f"and {canonical_bytes} more"
    )


def _misplaced(here: Position, last: Position) -> str:
    if len(here[1]) > KEY_BYTES_MAX:
        return f"key of an entry of kind {here[0]} exceeds {KEY_BYTES_MAX} bytes"
    return f"entry {_name(here)} does not come after {_name(last)}"


def _name(position: Position) -> str:
    kind, key = position
    return f"{key.hex() or 'without key'} of kind {kind}"
