"""Blocks of fields, read by ours and by the decoder of the library hpack.

Method: property-based. Sequences of blocks go to both, so that tables fill, shrink and lose their
oldest entries. What ours remembers must never show.
"""

from __future__ import annotations

from typing import Final

import hpack
import pytest
from hpack.hpack import encode_integer
from hypothesis import given, settings
from hypothesis import strategies as st

from viewstamp.http2 import ErrorCode, FieldSection, write_block, write_varying
from viewstamp.http2.blocks import REMEMBERED_BYTES_MAX, REMEMBERED_MAX, BlockReader
from viewstamp.http2.errors import ConnectionFault
from viewstamp.http2.fields import Field, MessagePart

SECTION_BYTES_MAX: Final = 3_000
HUFFMAN: Final = hpack.Encoder().huffman_coder
NAMES: Final = (
    *(b":method", b":scheme", b":path", b":authority", b":status", b"te", b"a", b"B", b""),
    *(b"content-length", b"grpc-timeout", b"traceparent", b"connection", b"x" * 130),
)
VALUES: Final = (b"POST", b"/a", b"200", b"", b"7", b" trailers\t", b"\n", b"v" * 700)
ADDED, RESIZED, NEVER_ADDED, NOT_ADDED, INDEXED = 0x40, 0x20, 0x10, 0x00, 0x80
BITS: Final = {INDEXED: 7, ADDED: 6, RESIZED: 5, NEVER_ADDED: 4, NOT_ADDED: 4}
REQUEST: Final[tuple[Field, ...]] = (
    *((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a")),
    *((b"te", b"trailers"), (b"content-length", b"7")),
)


def number(kind: int, value: int) -> bytes:
    """Return an instruction's kind with a number behind it in the same byte."""
    coded = encode_integer(value, BITS[kind])
    return bytes([kind | coded[0], *coded[1:]])


def text(value: bytes, is_compressed: bool) -> bytes:
    """Return a name or a value."""
    coded = HUFFMAN.encode(value) if is_compressed else value
    length = encode_integer(len(coded), 7)
    return bytes([length[0] | 0x80 * is_compressed, *length[1:]]) + coded


INDICES: Final = st.sampled_from([0, 2, 3, 4, 6, 8, 61, *range(62, 68), 75, 127, 300])
TEXTS: Final = st.builds(text, st.sampled_from(NAMES + VALUES), st.booleans())
KINDS: Final = st.sampled_from([ADDED, NEVER_ADDED, NOT_ADDED])
INSTRUCTIONS: Final = st.one_of(
    st.builds(number, st.just(INDEXED), INDICES),
    st.builds(lambda kind, *texts: bytes([kind]) + b"".join(texts), KINDS, TEXTS, TEXTS),
    st.builds(lambda kind, name, value: number(kind, name) + value, KINDS, INDICES, TEXTS),
)
SIZES: Final = st.sampled_from([0, 40, 100, 1_000, 4_096, 4_097])
SIZE_CHANGES: Final = st.builds(number, st.just(RESIZED), SIZES)
BEGINS: Final = st.sampled_from(
    [b"", write_block(REQUEST), b"\x83\x86\x84", b"\x83\x86\x84\xbe", b"\xbe\xbf", b"\x88"]
)
ENDS: Final = st.one_of(
    st.just(b""),
    st.lists(INSTRUCTIONS, max_size=4).map(b"".join),
    st.lists(INSTRUCTIONS, max_size=4).map(
        lambda parts: write_varying(REQUEST[3:]) + b"".join(parts)
    ),
    SIZE_CHANGES,
    st.binary(max_size=6),
)
BLOCKS: Final = st.one_of(
    st.builds(bytes.__add__, BEGINS, ENDS),
    st.builds(bytes.__add__, SIZE_CHANGES, st.lists(INSTRUCTIONS, max_size=4).map(b"".join)),
    st.builds(lambda block, size: block[:size], BEGINS, st.integers(0, 40)),
)


def seen(section: FieldSection) -> tuple[object, ...]:
    """Return everything that a section says."""
    return (
        *(section.part, section.pseudo, section.fields, section.size_bytes),
        *(section.flaw, section.content_length, section.is_informational),
    )


class Reference:
    """Reads blocks with the library, and remembers nothing but the table."""

    def __init__(self) -> None:
        self.decoder = hpack.Decoder(max_header_list_size=SECTION_BYTES_MAX)

    def read(self, part: MessagePart, block: bytes) -> FieldSection | ErrorCode:
        """Return a section, or with which code the connection ends."""
        try:
            decoded = self.decoder.decode(block, raw=True)
            return FieldSection(part, [(name, value) for name, value in decoded])
        except hpack.OversizedHeaderListError:
            return ErrorCode.ENHANCE_YOUR_CALM
        except hpack.HPACKError:
            return ErrorCode.COMPRESSION_ERROR


def read_by_ours(reader: BlockReader, part: MessagePart, block: bytes) -> FieldSection | ErrorCode:
    """Return a section, or with which code the connection ends."""
    try:
        return reader.read(part, block)
    except ConnectionFault as fault:
        return fault.code


def judged(result: FieldSection | ErrorCode) -> object:
    """Return what can be compared."""
    return seen(result) if isinstance(result, FieldSection) else result


def check_that_both_agree(blocks: list[tuple[MessagePart, bytes]]) -> None:
    """Have both read blocks in order, until a connection would be over."""
    reader, reference = BlockReader(SECTION_BYTES_MAX), Reference()
    ours: object = ()
    for part, block in blocks:
        if isinstance(ours, tuple):
            ours = judged(read_by_ours(reader, part, block))
            assert ours == judged(reference.read(part, block))


@settings(max_examples=1_000, deadline=None)
@given(st.data())
def test_both_decoders_read_alike(data: st.DataObject) -> None:
    """Block by block, new or again, both find the same fields and flaws, or the same fault."""
    few = data.draw(st.lists(BLOCKS, min_size=1, max_size=5))
    part = st.sampled_from([MessagePart.REQUEST, *MessagePart])
    blocks = data.draw(st.lists(st.tuples(part, st.sampled_from(few)), max_size=20))
    check_that_both_agree(blocks)


FIELDS: Final = st.tuples(
    st.sampled_from([b"a", b"b"]),
    st.sampled_from([b"1", b"2", b"v" * 60]),
    st.sampled_from([False, False, True]),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(FIELDS, max_size=3), st.sampled_from([*[None] * 6, 0, 40, 120]), st.booleans()
        ),
        min_size=10,
        max_size=30,
    )
)
def test_an_encoder_with_a_table_is_understood(
    sections: list[tuple[list[tuple[bytes, bytes, bool]], int | None, bool]],
) -> None:
    """The same few fields arrive whole, however their entries move and are evicted."""
    encoder, reader = hpack.Encoder(), BlockReader(SECTION_BYTES_MAX)
    for fields, table_bytes, is_compressed in sections:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        block = encoder.encode(fields, huffman=is_compressed)
        read = reader.read(MessagePart.TRAILERS, block)
        assert read.fields == tuple((name, value) for name, value, _ in fields)


HEAD: Final = write_block(REQUEST)
REST: Final = write_varying([(b"grpc-timeout", b"1S")])
LONG: Final = write_varying([(b"long", b"x" * (SECTION_BYTES_MAX - 200))])


@pytest.mark.parametrize(
    ("part", "rest"),
    [
        pytest.param(MessagePart.TRAILERS, b"\0\1a\1b", id="as another part"),
        pytest.param(MessagePart.REQUEST, LONG, id="too large together"),
        pytest.param(MessagePart.REQUEST, b"\x20", id="a size behind fields"),
        pytest.param(MessagePart.REQUEST, REST + b"\x20", id="a size behind the rest"),
        pytest.param(MessagePart.REQUEST, b"\0\1a\2b", id="cut off"),
        pytest.param(MessagePart.REQUEST, b"\xbe", id="no such entry"),
        pytest.param(MessagePart.REQUEST, b"\0\5:path\1/", id="a path again"),
        pytest.param(MessagePart.REQUEST, b"\0\x0econtent-length\0018", id="another length"),
    ],
)
def test_a_head_that_is_known_excuses_nothing(part: MessagePart, rest: bytes) -> None:
    """Behind a head that was read before, the same is wrong as in a block that is new."""
    check_that_both_agree([(MessagePart.REQUEST, HEAD + REST), (part, HEAD + rest)])


@pytest.mark.parametrize("between", [b"", b"\x40\x01a\x01b", b"\x20\x3f\xe1\x1f"])
def test_a_head_is_read_once(between: bytes) -> None:
    """Blocks that differ behind their head share it, until the table changes."""
    reader = BlockReader(SECTION_BYTES_MAX)
    sections = []
    for deadline in (b"1S", b"2S", b"3S"):
        block = write_block(REQUEST) + write_varying([(b"grpc-timeout", deadline)])
        sections.append(reader.read(MessagePart.REQUEST, block))
        reader.read(MessagePart.TRAILERS, between)
    heads = {id(section.head) for section in sections}
    assert len(heads) == (3 if between else 1)
    assert [section.rest[0][1] for section in sections] == [b"1S", b"2S", b"3S"]


def test_memory_of_heads_has_bounds() -> None:
    """A peer whose heads always differ, or are long, fills no memory."""
    reader = BlockReader(section_bytes_max=64_000)
    rest = write_varying([(b"grpc-timeout", b"1S")])
    for count in range(10 * REMEMBERED_MAX):
        head = write_block([*REQUEST, (b"number", b"%d" % count)])
        reader.read(MessagePart.REQUEST, head + rest)
        assert 0 < len(reader.heads) <= REMEMBERED_MAX
    reader.heads.clear()
    long = write_block([*REQUEST, (b"long", b"x" * REMEMBERED_BYTES_MAX)])
    reader.read(MessagePart.REQUEST, long + rest)
    assert reader.heads == {}
