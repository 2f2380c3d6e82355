"""Blocks return their entries, have a bounded size, and are not decoded when damaged."""

from __future__ import annotations

import contextlib
import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.viewstamp.format.snapshot_builders import block_of, raw_entry, sealed
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.block import (
    ENTRY_HEADER_BYTES,
    KEY_BYTES_MAX,
    BlockBuilder,
    compress,
    decode_block,
    raw_blocks,
)
from viewstamp.format.section import SectionEntry
from viewstamp.limits import ENTITY_BYTES_MAX, LAYER_BLOCK_BYTES_MAX

ENTRIES = st.dictionaries(
    st.tuples(st.integers(0, (1 << 32) - 1) | st.integers(1, 2), st.binary(max_size=3)),
    st.none() | st.binary(max_size=3) | st.integers(0, 200_000).map(bytes),
    max_size=10,
).map(lambda found: [SectionEntry(*here, found[here]) for here in sorted(found)])
SMALL = SectionEntry(1, b"a", b"small")
ONE = raw_entry(1, b"a", b"x")
TWO = ONE + raw_entry(1, b"b")


@given(ENTRIES)
def test_entries_come_back_in_bounded_blocks(entries: list[SectionEntry]) -> None:
    """Blocks hold the entries in order, state their content, and keep to their size."""
    blocks = [compress(raw) for raw in raw_blocks(entries)]
    decoded = [decode_block(block.data) for block in blocks]

    assert [entry for block in decoded for entry in block] == entries
    for block, held in zip(blocks, decoded, strict=True):
        assert (block.first, block.last) == (held[0][:2], held[-1][:2])
        assert block.entries == len(held)
        assert block.tombstones == sum(entry.canonical is None for entry in held)
        assert block.raw_bytes <= LAYER_BLOCK_BYTES_MAX or block.entries == 1
    for this, after in zip(blocks, decoded[1:], strict=False):
        header_and_key = ENTRY_HEADER_BYTES + len(after[0].key)
        following = header_and_key + len(after[0].canonical or b"")
        assert this.raw_bytes + following > LAYER_BLOCK_BYTES_MAX, "the block was closed too early"


def test_builder_tells_when_a_block_is_full() -> None:
    """A block is full once an entry did not fit, and that entry begins the next one."""
    builder = BlockBuilder()
    large = SectionEntry(1, b"b", bytes(LAYER_BLOCK_BYTES_MAX))
    is_full = []
    for entry in (SMALL, large):
        builder.add(entry)
        is_full.append(builder.is_full)
    assert is_full == [False, True]
    assert builder.size_bytes == 18 + ENTRY_HEADER_BYTES + 1 + LAYER_BLOCK_BYTES_MAX
    first = builder.take_raw()
    assert (first.first, first.last, first.entries) == (SMALL[:2], SMALL[:2], 1)

    assert not builder.is_full
    assert decode_block(compress(builder.take_raw()).data) == [large]
    assert builder.size_bytes == 0


@pytest.mark.parametrize(("spare_bytes", "blocks"), [(0, 1), (-1, 2)])
def test_a_block_is_filled_to_the_last_byte(spare_bytes: int, blocks: int) -> None:
    """Entries share a block up to exactly its limit, and not a byte beyond."""
    headers_and_keys = 2 * (ENTRY_HEADER_BYTES + 1)
    rest = bytes(LAYER_BLOCK_BYTES_MAX - headers_and_keys - 100 - spare_bytes)
    entries = [SectionEntry(1, b"a", bytes(100)), SectionEntry(1, b"b", rest)]
    assert len(list(raw_blocks(entries))) == blocks


def test_builder_refuses_to_run_ahead() -> None:
    """Nothing is taken that is not there, and no second full block is piled up."""
    builder = BlockBuilder()
    with pytest.raises(ValueError, match="no entry was added"):
        builder.take_raw()
    for key in (b"a", b"b"):
        builder.add(SectionEntry(1, key, bytes(LAYER_BLOCK_BYTES_MAX)))
    with pytest.raises(ValueError, match="a full block must be taken"):
        builder.add(SectionEntry(1, b"c", b""))


def test_order_holds_across_blocks() -> None:
    """An entry must come after those of blocks that were taken before."""
    builder = BlockBuilder()
    builder.add(SMALL)
    builder.take_raw()
    with pytest.raises(ValueError, match="entry 61 of kind 1 does not come after 61 of kind 1"):
        builder.add(SMALL)


@pytest.mark.parametrize(
    "entry",
    [
        SectionEntry(-1, b"a", b""),
        SectionEntry(1 << 32, b"", b""),
        SectionEntry(1 << 32, b"", None),
        SectionEntry(1, bytes(KEY_BYTES_MAX + 1), b""),
        SectionEntry(1, bytes(KEY_BYTES_MAX + 1), None),
        SectionEntry(1, b"", bytes(ENTITY_BYTES_MAX - ENTRY_HEADER_BYTES + 1)),
    ],
    ids=["negative kind", "kind", "kind of a tombstone", "key", "key of a tombstone", "entity"],
)
def test_oversized_entries_are_refused(entry: SectionEntry) -> None:
    """An entry that no reader would accept is not written."""
    with pytest.raises(ValueError, match="an entry has a kind up to"):
        BlockBuilder().add(entry)


def test_the_largest_entry_fits() -> None:
    """An entity of exactly the limit, which hardly compresses, makes a block of its own."""
    words = ((n * 0x9E3779B97F4A7C15) % 2**64 for n in range(ENTITY_BYTES_MAX // 8))
    noise = b"".join(map(struct.Struct("<Q").pack, words))
    key = bytes(KEY_BYTES_MAX)
    entry = SectionEntry(1, key, noise[: ENTITY_BYTES_MAX - ENTRY_HEADER_BYTES - KEY_BYTES_MAX])
    (raw,) = raw_blocks([entry])

    assert len(raw.raw) == ENTITY_BYTES_MAX
    assert decode_block(compress(raw).data) == [entry]


def patched(offset: int, data: bytes) -> bytes:
    """A block of one entry with header bytes replaced, sealed again."""
    block = block_of(ONE, 1)
    return sealed(block[:offset] + data + block[offset + len(data) :])


def u32(value: int) -> bytes:
    """A number of the header."""
    return value.to_bytes(4, "little")


UNSIZED = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(ONE)
DAMAGED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "block is 0 bytes"),
    "half a header": (block_of(ONE, 1)[:39], "block is 39 bytes"),
    "magic": (patched(16, b"VSLX"), "block magic is b'VSLX'"),
    "checksum": (bytes(16) + block_of(ONE, 1)[16:], "block checksum 0+ does not match"),
    "reserved": (patched(22, b"\1"), "reserved bytes of the block header"),
    "frame bytes": (patched(24, u32(5)), "hold a header and a frame of 5"),
    "longer": (sealed(block_of(ONE, 1) + b"\0"), "hold a header and a frame of"),
    "no entries": (patched(32, u32(0)), "0 entries, 0 of them tombstones"),
    "too many tombstones": (patched(36, u32(2)), "1 entries, 2 of them tombstones"),
    "too many raw bytes": (patched(28, u32(ENTITY_BYTES_MAX + 1)), "raw bytes of 1 entries exceed"),
    "a block too large": (
        patched(28, u32(LAYER_BLOCK_BYTES_MAX + 1) + u32(2)),
        "raw bytes of 2 entries exceed 262144",
    ),
    "more entries than bytes": (patched(32, u32(2)), "too few for 2 entries"),
    "stated size": (patched(28, u32(len(ONE) + 1)), "zstd frame states 14 bytes, the block 15"),
    "no stated size": (block_of(ONE, 1, frame=UNSIZED), "zstd frame states"),
    "no frame": (block_of(ONE, 1, frame=b""), "zstd frame of the block is damaged"),
    "no zstd": (block_of(ONE, 1, frame=b"no zstd frame"), "zstd frame of the block is damaged"),
    "cut frame": (
        block_of(ONE, 1, frame=block_of(ONE, 1)[40:-1]),
        "zstd frame of the block is damaged",
    ),
    "two frames": (
        block_of(ONE, 1, frame=2 * block_of(ONE, 1)[40:]),
        "zstd frame of the block is damaged",
    ),
    "an entry cut off": (block_of(ONE + bytes(11), 2), "entry 1 of a block of 2 is cut off"),
    "an entry too many": (block_of(TWO, 1), "entries take 14 of 27 raw bytes"),
    "a canonical that is cut off": (block_of(ONE[:-1], 1), "entries take 14 of 13 raw bytes"),
    "twice": (block_of(ONE + ONE, 2), "entry 61 of kind 1 does not come after 61 of kind 1"),
    "keys out of order": (block_of(TWO + ONE, 3), "does not come after 62 of kind 1"),
    "kinds out of order": (block_of(raw_entry(2, b"") + ONE, 2), "after without key of kind 2"),
    "a long key": (
        block_of(raw_entry(1, bytes(KEY_BYTES_MAX + 1)), 1),
        "key of an entry of kind 1 exceeds 1024 bytes",
    ),
    "a flag": (block_of(raw_entry(1, b"a", flags=2), 1), "impossible flags 0x0002"),
    "a full tombstone": (
        block_of(raw_entry(1, b"a", b"x", flags=1), 1, 1),
        "impossible flags 0x0001",
    ),
    "an uncounted tombstone": (
        block_of(raw_entry(1, b"a", flags=1), 1),
        "with 1 tombstones, the block states 0",
    ),
    "a tombstone too few": (block_of(ONE, 1, 1), "with 0 tombstones, the block states 1"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_blocks_are_refused(name: str) -> None:
    """A block that no correct writer made is refused, and the message says why."""
    block, message = DAMAGED[name]
    with pytest.raises(FormatError, match=message):
        decode_block(block)


def test_a_later_version_is_not_called_damage() -> None:
    """An intact block of a later format version is not called damaged."""
    with pytest.raises(FormatVersionError, match="block format version 2 is unknown"):
        decode_block(patched(20, b"\2"))


def test_a_bomb_is_not_decompressed() -> None:
    """A frame that states a size beyond the limit is refused before it is decompressed."""
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 << 20))
    assert len(bomb) < 10_000
    with pytest.raises(FormatError, match="zstd frame states 67108864 bytes"):
        decode_block(block_of(ONE, 1, frame=bomb))


def test_a_frame_longer_than_it_states_is_refused() -> None:
    """A frame that would decompress to more than it states is not believed."""
    frame = bytearray(zstandard.ZstdCompressor(level=1).compress(bytes(200)))
    assert frame[5] == 200
    frame[5] = len(ONE)
    with pytest.raises(FormatError, match="zstd frame of the block is damaged"):
        decode_block(block_of(ONE, 1, frame=bytes(frame)))


@given(st.binary(max_size=100))
def test_any_bytes_give_format_errors_only(data: bytes) -> None:
    """Any bytes, as a block, a frame or raw, raise only FormatError."""
    for block in (
        data,
        sealed(b"".ljust(16) + b"VSLB\1\0\0\0" + data),
        block_of(ONE, 1, frame=block_of(ONE, 1)[40:44] + data),
        block_of(data, 1),
        block_of(data, 2, 1),
    ):
        with contextlib.suppress(FormatError):
            decode_block(block)
