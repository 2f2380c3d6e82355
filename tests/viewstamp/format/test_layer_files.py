"""Layer files: written block by block, read in parts, and refused when anything is amiss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.viewstamp.format.snapshot_builders import (
    CLUSTER_ID,
    Patches,
    chains,
    gone,
    layer_of,
    tampered,
)
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.layer import (
    Block,
    LayerHeader,
    LayerReader,
    LayerWriter,
    check_layer,
    compress,
    file_digest,
    raw_blocks,
    reader_of,
)
from viewstamp.format.layer_parts import decode_header, decode_trailer
from viewstamp.format.section import SectionEntry

HEADER = LayerHeader(CLUSTER_ID, 2, 1, 3, 0, 1)
# Large enough that two of them are in no block together.
LARGE = bytes(140_000)
ENTRIES = [
    SectionEntry(1, b"a", LARGE),
    SectionEntry(1, b"b", LARGE),
    SectionEntry(2, b"", LARGE),
    SectionEntry(2, b"c", b""),
]
LAYER = layer_of(ENTRIES)
SMALL = layer_of([SectionEntry(1, b"a", b"x"), SectionEntry(1, b"b", b"y")])
DELTA = layer_of([SectionEntry(1, b"a", b"x"), SectionEntry(1, b"b", None)], base=2)


@pytest.mark.parametrize("decode", [decode_header, decode_trailer])
def test_what_is_left_of_a_file_that_was_cut_off_is_refused(decode: Callable[[bytes], Any]) -> None:
    """A part of any other size says which size it should have, and no struct fails."""
    for part in (b"", LAYER[:10], LAYER[:200]):
        with pytest.raises(FormatError, match=r"must be (80|104)"):
            decode(part)


def blocks_of(entries: list[SectionEntry]) -> list[Block]:
    """The blocks of some entries."""
    return [compress(raw) for raw in raw_blocks(entries)]


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 3), st.binary(max_size=2)),
        st.none() | st.binary(max_size=3) | st.integers(100_000, 200_000).map(bytes),
        max_size=8,
    ),
    st.tuples(st.integers(0, 4), st.binary(max_size=2)),
)
def test_entries_come_back_from_anywhere(
    found: dict[tuple[int, bytes], bytes | None], start: tuple[int, bytes]
) -> None:
    """A delta gives back its entries, all of them or those from any place on."""
    entries = [SectionEntry(*here, found[here]) for here in sorted(found)]
    reader = check_layer(layer_of(entries, base=2))

    assert list(reader.entries()) == entries
    assert list(reader.entries(start)) == [entry for entry in entries if entry[:2] >= start]
    assert reader.entry_count == len(entries)
    assert reader.tombstone_count == sum(entry.canonical is None for entry in entries)


def test_writer_knows_what_it_wrote() -> None:
    """Sizes, counts and digest of the writer are those of the file and of its reader."""
    writer = LayerWriter(HEADER)
    data = writer.begin() + b"".join(map(writer.add, blocks_of(ENTRIES))) + writer.finish()
    reader = reader_of(data)

    assert data == LAYER
    assert writer.digest == file_digest([data[:100], data[100:]])
    assert (writer.header, writer.size_bytes) == (HEADER, len(data))
    assert (writer.entries, writer.tombstones) == (4, 0)
    assert (reader.header, reader.size_bytes) == (HEADER, len(data))
    assert reader.raw_bytes == writer.raw_bytes == sum(block.raw_bytes for block in reader.blocks)
    assert [block.entries for block in reader.blocks] == [1, 1, 2]


def test_blocks_are_read_as_they_were_written() -> None:
    """A block from the file is byte for byte the one that was added."""
    reader = reader_of(LAYER)

    assert [reader.read_block(index) for index in range(3)] == [
        block.data for block in blocks_of(ENTRIES)
    ]
    with pytest.raises(IndexError):
        reader.read_block(3)


def test_only_what_is_needed_is_read() -> None:
    """Opening reads header, trailer and index; entries from a place on read its block first."""
    reads: list[tuple[int, int]] = []

    def read(offset: int, size_bytes: int) -> bytes:
        reads.append((offset, size_bytes))
        return LAYER[offset : offset + size_bytes]

    reader = LayerReader(read, len(LAYER))
    assert len(reads) == 3
    assert next(reader.entries((2, b""))) == ENTRIES[2]
    assert reads[3:] == [reader.blocks[2][:2]]


def test_empty_layers_are_layers() -> None:
    """A section without entities, and a delta without changes, have a file of no blocks."""
    for base in (0, 2):
        reader = check_layer(layer_of([], base=base))
        assert (list(reader.entries()), reader.blocks) == ([], ())
        assert reader.header.is_base is (base == 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cluster_id", b""),
        ("stage", 0),
        ("stage", 1 << 32),
        ("section_version", 0),
        ("generation", 0),
        ("generation", 1 << 64),
        ("base_generation", 3),
        ("base_generation", -1),
        ("feature_level", -1),
    ],
)
def test_impossible_headers_are_not_written(field: str, value: Any) -> None:
    """No layer begins with a header that no reader would take."""
    fields = {name: getattr(HEADER, name) for name in HEADER.__slots__} | {field: value}
    with pytest.raises(ValueError, match="cannot write a layer"):
        LayerWriter(LayerHeader(**fields))


def test_writer_keeps_its_order_of_calls() -> None:
    """A layer begins once and ends once, and has blocks only in between."""
    writer = LayerWriter(HEADER)
    (block,) = blocks_of([ENTRIES[0]])
    refuses_blocks_and_end(writer, block)
    writer.begin()
    with pytest.raises(ValueError, match="begins once"):
        writer.begin()
    writer.finish()
    refuses_blocks_and_end(writer, block)


def refuses_blocks_and_end(writer: LayerWriter, block: Block) -> None:
    """Check that the writer takes no block and does not finish."""
    with pytest.raises(ValueError, match="between `begin` and `finish`"):
        writer.add(block)
    with pytest.raises(ValueError, match="between `begin` and `finish`"):
        writer.finish()


(FIRST,) = blocks_of([SectionEntry(1, b"a", b"x"), SectionEntry(1, b"b", b"y")])
(SINGLE,) = blocks_of([SectionEntry(1, b"a", b"x")])
(DELETING,) = blocks_of([SectionEntry(1, b"a", b"x"), SectionEntry(1, b"b", None)])


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (FIRST._replace(data=FIRST.data[:-1]), "block checksum .* does not match"),
        (FIRST._replace(entries=3), "its maker"),
        (FIRST._replace(tombstones=1), "its maker"),
        (FIRST._replace(raw_bytes=1), "its maker"),
        (FIRST._replace(first=FIRST.last), "impossible first or last entry"),
        (FIRST._replace(last=(1, bytes(1025))), "impossible first or last entry"),
        (SINGLE._replace(last=(1, b"b")), "impossible first or last entry"),
        (DELETING, "has 1 tombstones, a base has none"),
    ],
)
def test_bad_blocks_are_not_added(block: Block, message: str) -> None:
    """A block that another process made is checked against its description."""
    writer = LayerWriter(HEADER)
    writer.begin()
    with pytest.raises(FormatError, match=message):
        writer.add(block)


def test_blocks_are_added_in_order() -> None:
    """A block must come behind the one before it."""
    writer = LayerWriter(HEADER)
    writer.begin()
    writer.add(FIRST)
    with pytest.raises(FormatError, match="does not come after the one before it"):
        writer.add(SINGLE)


def u16(value: int) -> bytes:
    """A number of 2 bytes."""
    return value.to_bytes(2, "little")


def u32(value: int) -> bytes:
    """A number of 4 bytes."""
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    """A number of 8 bytes."""
    return value.to_bytes(8, "little")


# Intact checksums over impossible bytes: layer, patches, message.
IMPOSSIBLE: dict[str, tuple[bytes, Patches, str]] = {
    "header magic": (SMALL, {"header": [(16, b"VSLX")]}, "layer header magic is b'VSLX'"),
    "header start": (SMALL, {"header": [(22, b"\1")]}, "reserved bytes of the layer header"),
    "header end": (SMALL, {"header": [(79, b"\1")]}, "reserved bytes of the layer header"),
    "stage": (SMALL, {"header": [(40, u32(0))]}, "stage 0 is none"),
    "section version": (SMALL, {"header": [(44, u32(0))]}, "section version 0 is none"),
    "base generation": (SMALL, {"header": [(56, u64(3))]}, "its base generation 3"),
    "trailer magic": (SMALL, {"trailer": [(16, b"VSLX")]}, "trailer magic is b'VSLX'"),
    "trailer reserved": (SMALL, {"trailer": [(22, b"\1")]}, "reserved bytes of the trailer"),
    "index offset": (SMALL, {"trailer": [(24, u64(80))]}, "does not end at"),
    "index beyond": (SMALL, {"trailer": [(24, u64(1 << 63)), (32, u64(1 << 63))]}, "not end at"),
    "blocks": (SMALL, {"trailer": [(40, u64(2))]}, "the index adds up to"),
    "entries": (SMALL, {"trailer": [(48, u64(3))]}, "the index adds up to"),
    "tombstones": (SMALL, {"trailer": [(56, u64(1))]}, "the index adds up to"),
    "raw bytes": (SMALL, {"trailer": [(64, u64(1))]}, "the index adds up to"),
    "another header": (SMALL, {"trailer": [(72, bytes(16))]}, "names another header"),
    "another index": (SMALL, {"trailer": [(88, bytes(16))]}, "the trailer names 0+$"),
    "index magic": (SMALL, {"index": [(16, b"VSLX")]}, "index magic is b'VSLX'"),
    "index start": (SMALL, {"index": [(22, b"\1")]}, "reserved bytes of the index"),
    "index reserved": (SMALL, {"index": [(28, b"\1")]}, "reserved bytes of the index"),
    "more locations": (SMALL, {"index": [(24, u32(2))]}, "location at byte 90 of the index is cut"),
    "no locations": (SMALL, {"index": [(24, u32(0))]}, "locations end at byte 32 of an index"),
    "block offset": (SMALL, {"index": [(32, u64(81))]}, "lies at 81, the parts before it end"),
    "block bytes": (SMALL, {"index": [(40, u32(41))]}, "blocks end at 121, the index begins"),
    "tiny block": (SMALL, {"index": [(40, u32(40))]}, "has 40 bytes and 2 entries"),
    "index raw bytes": (
        SMALL,
        {"index": [(44, u32(9))], "trailer": [(64, u64(9))]},
        "block 0 and the index disagree about its numbers",
    ),
    "block without entries": (SMALL, {"index": [(48, u32(0))]}, "and 0 entries, which is"),
    "tombstones in a base": (SMALL, {"index": [(52, u32(1))]}, "a base has none"),
    "too many tombstones": (DELTA, {"index": [(52, u32(3))]}, "one per entry at most"),
    "tombstones of a delta": (
        DELTA,
        {"index": [(52, u32(2))], "trailer": [(56, u64(2))]},
        "block 0 and the index disagree about its numbers",
    ),
    "another block": (SMALL, {"index": [(56, bytes(16))]}, "it belongs elsewhere"),
    "first entry": (SMALL, {"index": [(-2, b"0")]}, "disagree about its first or last entry"),
    "last entry": (SMALL, {"index": [(-1, b"z")]}, "disagree about its first or last entry"),
    "no range": (SMALL, {"index": [(-1, b"a")]}, "has an impossible first or last entry"),
    "key beyond": (SMALL, {"index": [(82, u16(2))]}, "keys of the location at byte 32"),
    "key too short": (SMALL, {"index": [(82, u16(0)), (76, u32(2))]}, "locations end at byte 89"),
    "location reserved": (SMALL, {"index": [(84, b"\1")]}, "reserved bytes of a location"),
    "block inside": (SMALL, {"block": [(22, b"\1")]}, "reserved bytes of the block header"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_layers_are_refused(name: str) -> None:
    """A layer that no correct writer made is refused despite correct checksums, with the reason."""
    layer, patches, message = IMPOSSIBLE[name]
    check_layer(tampered(layer, {}))
    with pytest.raises(FormatError, match=message):
        check_layer(tampered(layer, patches))


@pytest.mark.parametrize("part", ["header", "index", "trailer", "block"])
def test_later_versions_are_not_called_damage(part: str) -> None:
    """An intact part of a later format version is not called damaged."""
    with pytest.raises(FormatVersionError, match="format version 2 is unknown"):
        check_layer(tampered(SMALL, {part: [(20, b"\2")]}))


def test_a_short_index_is_refused() -> None:
    """An index too short for its own header is refused."""
    trailer_offset = len(SMALL) - 104
    patches: Patches = {"trailer": [(24, u64(trailer_offset - 8)), (32, u64(8))]}
    with pytest.raises(FormatError, match="index is 8 bytes, its header alone is 32"):
        check_layer(tampered(SMALL, patches))


def test_order_across_blocks_is_checked() -> None:
    """The first entry of a block must come after the last of the block before."""
    layer = layer_of(ENTRIES[:2])
    assert len(reader_of(layer).blocks) == 2
    # The keys of both locations: one byte each, at the end of a location of 56 bytes.
    same = [(32 + 58 + 56, b"a"), (32 + 58 + 57, b"a")]
    with pytest.raises(FormatError, match="does not come after the one before it"):
        check_layer(tampered(layer, {"index": same}))


def test_parts_of_other_layers_are_refused() -> None:
    """Header, index and trailer of an equally long file of another generation do not fit."""
    other = layer_of([SectionEntry(1, b"a", b"x"), SectionEntry(1, b"b", b"y")], generation=4)
    assert len(other) == len(SMALL)
    with pytest.raises(FormatError, match="it belongs to another layer"):
        check_layer(other[:80] + SMALL[80:])
    with pytest.raises(FormatError, match="it belongs to another layer"):
        check_layer(SMALL[:-104] + other[-104:])


def test_a_short_read_is_refused() -> None:
    """A file that ends before its stated size is refused."""
    reader = reader_of(SMALL)
    with pytest.raises(FormatError, match="too few for header, index and trailer"):
        reader_of(SMALL[:200])
    with pytest.raises(FormatError, match="layer is cut off: 0 of 104 bytes"):
        LayerReader(lambda offset, size: SMALL[offset : offset + size], len(SMALL) + 104)
    assert check_layer(reader) is reader


@given(
    st.sampled_from(["header", "index", "trailer", "block"]),
    st.integers(0, 103),
    st.binary(min_size=1, max_size=9),
)
def test_sealed_nonsense_gives_format_errors_only(part: str, offset: int, data: bytes) -> None:
    """Any part with correct checksums raises only FormatError."""
    for layer in (SMALL, DELTA):
        with contextlib.suppress(FormatError):
            check_layer(tampered(layer, {part: [(offset, data)]}))


@given(st.binary(max_size=400))
def test_any_bytes_give_format_errors_only(data: bytes) -> None:
    """Any bytes as a layer raise only FormatError."""
    for layer in (data, SMALL[:80] + data + SMALL[-104:]):
        with pytest.raises(FormatError):
            check_layer(layer)


def test_tombstones_are_for_deltas() -> None:
    """The same entries make a delta, and no base."""
    ((_, users), *_) = chains()[2]
    entries = [users[0], gone(users[1])]
    assert list(check_layer(layer_of(entries, base=1)).entries()) == entries
    with pytest.raises(FormatError, match="a base has none"):
        layer_of(entries)
