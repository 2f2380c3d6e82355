"""Layer files: one section's entities, or what changed in them, in (kind, key) order.

A layer file is a header, blocks, an index of the blocks, and a trailer; the byte tables are in
`viewstamp.format.layer_parts` and `viewstamp.format.block`. This module writes and reads whole
files. It does no input or output: a writer returns the bytes to append, and a reader gets a
function that reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from blake3 import blake3

from viewstamp.format import CHECKSUM_BYTES, FormatError
from viewstamp.format.block import (
    Block,
    BlockBuilder,
    RawBlock,
    compress,
    decode_block,
    raw_blocks,
    verify_block,
)
from viewstamp.format.layer_parts import (
    HEADER_BYTES,
    INDEX_HEADER_BYTES,
    TRAILER_BYTES,
    BlockLocation,
    LayerHeader,
    Totals,
    Trailer,
    check_location,
    decode_header,
    decode_index,
    decode_trailer,
    encode_header,
    encode_index,
    encode_trailer,
    invalid_header,
)
from viewstamp.format.section import Position, SectionEntry

__all__ = [
    "LayerHeader",
    "LayerWriter",
    "LayerReader",
    "BlockLocation",
    "check_layer",
    "reader_of",
    "file_digest",
    "Block",
    "BlockBuilder",
    "RawBlock",
    "compress",
    "decode_block",
    "raw_blocks",
]


class LayerWriter:
    """Makes the bytes of a layer file: `begin` once, `add` per block, `finish` once.

    Each returns the bytes to append to the file. Nothing is read or written here.
    """

    def __init__(self, header: LayerHeader) -> None:
        """Raises ValueError for a header that no layer may have."""
        reason = invalid_header(header)
        if reason is not None:
            raise ValueError(f"cannot write a layer: {reason}")
        self._header = header
        self._hasher = blake3()
        self._header_checksum = b""
        self._locations: list[BlockLocation] = []
        self._is_finished = False
        self.size_bytes = 0
        self.entries = 0
        self.tombstones = 0
        self.raw_bytes = 0

    @property
    def header(self) -> LayerHeader:
        """The header of the layer."""
        return self._header

    @property
    def digest(self) -> bytes:
        """BLAKE3, 32 bytes, of all bytes so far; after `finish` it names the file."""
        return self._hasher.digest()

    def begin(self) -> bytes:
        """Return the header."""
        if self.size_bytes:
            raise ValueError("a layer begins once")
        data = encode_header(self._header)
        self._header_checksum = data[:CHECKSUM_BYTES]
        return self._append(data)

    def add(self, block: Block) -> bytes:
        """Verify a block against its index entry, and return it without decompressing it.

        Raises FormatError for a damaged block, one out of order or a tombstone in a base.
        """
        self._check_open()
        header = verify_block(block.data)
        if header[2:] != (block.raw_bytes, block.entries, block.tombstones):
            raise FormatError(
                f"block states raw bytes, entries, tombstones {header[2:]}, its maker "
                f"{(block.raw_bytes, block.entries, block.tombstones)}"
            )
        location = BlockLocation(
            self.size_bytes,
            len(block.data),
            block.entries,
            block.tombstones,
            block.raw_bytes,
            block.first,
            block.last,
            header.checksum,
        )
        previous = self._locations[-1] if self._locations else None
        check_location(location, previous, self._header)
        self._locations.append(location)
        self.entries += block.entries
        self.tombstones += block.tombstones
        self.raw_bytes += block.raw_bytes
        return self._append(block.data)

    def finish(self) -> bytes:
        """Return index and trailer."""
        self._check_open()
        self._is_finished = True
        index = encode_index(self._locations)
        totals = Totals(len(self._locations), self.entries, self.tombstones, self.raw_bytes)
        index_checksum = index[:CHECKSUM_BYTES]
        trailer = Trailer(
            self.size_bytes, len(index), totals, self._header_checksum, index_checksum
        )
        return self._append(index + encode_trailer(trailer))

    def _check_open(self) -> None:
        if not self.size_bytes or self._is_finished:
            raise ValueError("blocks are added between `begin` and `finish`, which comes once")

    def _append(self, data: bytes) -> bytes:
        self._hasher.update(data)
        self.size_bytes += len(data)
        return data


class LayerReader:
    """Reads a layer file through a function; header and index are verified at once."""

    def __init__(self, read: Callable[[int, int], bytes], size_bytes: int) -> None:
        """Read header, trailer and index; `read(offset, size)` returns that part of the file.

        `size_bytes` is the size of the file. Raises FormatError saying what is wrong.
        """
        self._read = read
        self._size_bytes = size_bytes
        if size_bytes < HEADER_BYTES + INDEX_HEADER_BYTES + TRAILER_BYTES:
            raise FormatError(f"layer is {size_bytes} bytes, too few for header, index and trailer")
        end = size_bytes - TRAILER_BYTES
        header = self._exactly(0, HEADER_BYTES)
        self._header = decode_header(header)
        trailer = decode_trailer(self._exactly(end, TRAILER_BYTES))
        if trailer.header_checksum != header[:CHECKSUM_BYTES]:
            raise FormatError("the trailer names another header: it belongs to another layer")
        if trailer.index_offset + trailer.index_bytes != end:
            raise FormatError(
                f"index at {trailer.index_offset} of {trailer.index_bytes} bytes does not end at "
                f"{end}, where the trailer begins"
            )
        index = self._exactly(trailer.index_offset, trailer.index_bytes)
        self._blocks = decode_index(index, trailer, self._header)
        self._totals = trailer.totals

    @property
    def header(self) -> LayerHeader:
        """The header of the layer."""
        return self._header

    @property
    def blocks(self) -> Sequence[BlockLocation]:
        """The places of its blocks, in order."""
        return self._blocks

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self._size_bytes

    @property
    def entry_count(self) -> int:
        """Entities and tombstones in it."""
        return self._totals.entries

    @property
    def tombstone_count(self) -> int:
        """Tombstones in it."""
        return self._totals.tombstones

    @property
    def raw_bytes(self) -> int:
        """Bytes of its blocks before compression."""
        return self._totals.raw_bytes

    def read_block(self, index: int) -> bytes:
        """Return a block as stored, verified against the index but not decompressed.

        Raises FormatError saying what is wrong, and IndexError.
        """
        location = self._blocks[index]
        data = self._exactly(location.offset, location.size_bytes)
        header = verify_block(data)
        if header.checksum != location.checksum:
            raise FormatError(
                f"block {index} is {header.checksum.hex()}, the index names "
                f"{location.checksum.hex()}: it belongs elsewhere"
            )
        if header[2:] != (location.raw_bytes, location.entries, location.tombstones):
            raise FormatError(f"block {index} and the index disagree about its numbers")
        return data

    def entries(self, start: Position | None = None) -> Iterator[SectionEntry]:
        """Yield the entries in order, beginning with the first one at or after `start`.

        Raises FormatError at the first block that is damaged.
        """
        first = 0
        if start is not None:
            first = bisect_left(self._blocks, start, key=_last_of)
        for index in range(first, len(self._blocks)):
            entries = self._decode(index)
            if start is not None and index == first:
                entries = [entry for entry in entries if entry[:2] >= start]
            yield from entries

    def _decode(self, index: int) -> list[SectionEntry]:
        location = self._blocks[index]
        entries = decode_block(self.read_block(index))
        if entries[0][:2] != location.first or entries[-1][:2] != location.last:
            raise FormatError(f"block {index} and the index disagree about its first or last entry")
        return entries

    def _exactly(self, offset: int, size_bytes: int) -> bytes:
        data = self._read(offset, size_bytes)
        if len(data) != size_bytes:
            raise FormatError(
                f"layer is cut off: {len(data)} of {size_bytes} bytes at offset {offset}"
            )
        return data


def reader_of(data: bytes) -> LayerReader:
    """Return a reader of a whole layer file in memory; raises FormatError."""
    return LayerReader(lambda offset, size_bytes: data[offset : offset + size_bytes], len(data))


def check_layer(layer: bytes | LayerReader) -> LayerReader:
    """Verify every byte of a layer file, given as bytes or by a reader; return its reader.

    Raises FormatError saying what is wrong.
    """
    reader = reader_of(layer) if isinstance(layer, bytes) else layer
    for _ in reader.entries():
        pass
    return reader


def file_digest(chunks: Iterable[bytes]) -> bytes:
    """Return the digest that names a file: BLAKE3, 32 bytes, of its bytes."""
    hasher = blake3()
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.digest()


def _last_of(location: BlockLocation) -> Position:
    return location.last
