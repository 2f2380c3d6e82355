"""Blocks of fields: how they are read with memory and written without (RFC 7541).

**Reading.** A peer that sends the same fields again mostly sends the same bytes. As long as its
table has not changed since, these bytes mean the same, so their section is looked up and nothing is
decoded. The same holds for the head of a block: what comes before the first field that the peer
does not have in its table. Of a block whose other fields differ from call to call, such as a
deadline, only these are decoded. A block that changes the table is never remembered, and makes all
others forgotten.

**Writing.** Our blocks never add to the peer's table, so the bytes of a block mean the same on
every connection at any time. Answers are made once, for all connections of a process. What differs
from call to call comes last, and does not belong to the head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import hpack
from hpack.hpack import encode_integer

from viewstamp.http2.field_decoder import Decoding, FieldDecoder
from viewstamp.http2.fields import Field, FieldSection, MessagePart
from viewstamp.limits import KIB

# How many blocks, and heads of blocks, of a peer are remembered, and how long they and their
# fields are at most.
REMEMBERED_MAX: Final = 64
REMEMBERED_BYTES_MAX: Final = 4 * KIB
EMPTY_TABLE: Final = b"\x20"
"""Begins a block of somebody who uses no table any more (RFC 7541, section 6.3)."""
# Blocks that begin with the same bytes mostly have heads of the same length. In ours these are the
# method, the scheme, and the length of the path.
_BEGIN_BYTES: Final = 4


class _Head(NamedTuple):
    """A head without a flaw, and its size as the decoder counts it."""

    section: FieldSection
    size_bytes: int


class BlockReader:
    """Reads the blocks of one peer, in the order in which they came."""

    def __init__(self, section_bytes_max: int) -> None:
        """Take sections of so many bytes, counted as RFC 9113 counts them."""
        self._decoder = FieldDecoder(section_bytes_max)
        self.known: dict[bytes, FieldSection] = {}
        """Blocks whose meaning is remembered, as long as the table does not change."""
        self.heads: dict[bytes, _Head] = {}
        """Heads of blocks, likewise."""
        self.lengths: dict[bytes, int] = {}
        """How long the last head was, by the first bytes of its block."""

    def read(self, part: MessagePart, block: bytes) -> FieldSection:
        """Return the fields of a block. Raises ConnectionFault: the tables would differ."""
        section = self.known.get(block)
        if section is not None and section.part is part:
            return section
        before = self._decoder.changes
        section = self._decoded(part, block)
        if self._decoder.changes != before:
            self.known.clear()
            self.heads.clear()
        elif max(len(block), section.size_bytes) <= REMEMBERED_BYTES_MAX:
            _remember(self.known, block, section)
        return section

    def _decoded(self, part: MessagePart, block: bytes) -> FieldSection:
        length = self.lengths.get(block[:_BEGIN_BYTES], 0)
        head = self.heads.get(block[:length])
        if head is None or head.section.part is not part:
            return self._decoded_whole(part, block)
        rest = Decoding(block, length, head.size_bytes)
        self._decoder.decode_rest(rest)
        return head.section.followed_by(rest.fields)

    def _decoded_whole(self, part: MessagePart, block: bytes) -> FieldSection:
        decoding = Decoding(block)
        self._decoder.decode_head(decoding)
        head = _Head(FieldSection(part, decoding.fields), decoding.size_bytes)
        length, fields, decoding.fields = decoding.at, decoding.fields, []
        self._decoder.decode_rest(decoding)
        if head.section.flaw:
            return FieldSection(part, fields + decoding.fields)
        if fields and max(length, head.size_bytes) <= REMEMBERED_BYTES_MAX:
            _remember(self.heads, block[:length], head)
            _remember(self.lengths, block[:_BEGIN_BYTES], length)
        return head.section.followed_by(decoding.fields)


def _remember(memory: dict[bytes, Any], key: bytes, value: Any) -> None:
    if len(memory) >= REMEMBERED_MAX:
        memory.clear()
    memory[key] = value


_ENCODER: Final = hpack.Encoder()


def write(fields: Iterable[Field]) -> bytes:
    """Return a block that means these fields on any connection."""
    return _ENCODER.encode([(name, value, True) for name, value in fields])


def write_varying(fields: Iterable[Field]) -> bytes:
    """Return the end of a block: fields that a peer need not remember, since they will differ."""
    return b"".join([b"\0" + _text(name) + _text(value) for name, value in fields])


def _text(text: bytes) -> bytes:
    return bytes(encode_integer(len(text), 7)) + text
