"""Decodes blocks of fields, and keeps the table of one peer for it (RFC 7541).

It does what the decoder of the library `hpack` does, which tests hold it against, and takes half
of the time: almost all instructions are an index or a short text, and few are compressed.
"""

from __future__ import annotations

from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.hpack import decode_integer
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from viewstamp.http2.errors import ConnectionFault, ErrorCode
from viewstamp.http2.fields import FIELD_OVERHEAD_BYTES, Field
from viewstamp.limits import KIB

TABLE_BYTES_MAX: Final = 4 * KIB
"""How large a table a peer may have here: we announce nothing else (RFC 9113, section 6.5.2)."""

_STATIC: Final[tuple[Field, ...]] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_STATIC_LAST: Final = len(_STATIC) - 1
# How each kind of instruction begins, and how many bits of its first byte are a number.
_INDEXED: Final = 0x80
_INDEXED_BITS: Final = 7
_ADDED: Final = 0x40
_ADDED_BITS: Final = 6
_RESIZED: Final = 0x20
_RESIZED_BITS: Final = 5
_NEVER_ADDED: Final = 0x10
_NOT_ADDED_BITS: Final = 4
_HUFFMAN: Final = 0x80
_TEXT_BITS: Final = 7
_SHORT_MAX: Final = 0x7F


class Decoding:
    """Where in a block the decoder is, and the fields before that, with their size as it counts."""

    __slots__ = ("at", "block", "fields", "size_bytes")

    def __init__(self, block: bytes, at: int = 0, size_bytes: int = 0) -> None:
        self.block = block
        self.at = at
        self.fields: list[Field] = []
        self.size_bytes = size_bytes


class FieldDecoder:
    """Decodes the blocks of one peer in order. All methods raise ConnectionFault."""

    def __init__(self, section_bytes_max: int) -> None:
        """Decode sections of so many bytes, counted as RFC 9113 counts them."""
        self.changes = 0
        """Grows with each change of the table: what a block means is the same between two."""
        self._section_bytes_max = section_bytes_max
        self._entries: list[Field] = []
        """Entries of the table, the newest last."""
        self._entries_bytes = 0
        self._entries_bytes_max: int = TABLE_BYTES_MAX

    def decode_head(self, decoding: Decoding) -> None:
        """Decode up to the first field of which the peer says that nobody need remember it."""
        self._decode(decoding, _NEVER_ADDED)

    def decode_rest(self, decoding: Decoding) -> None:
        """Decode to the end."""
        self._decode(decoding, 0)

    def _decode(self, decoding: Decoding, least: int) -> None:
        """Decode as long as instructions begin with `least` and more."""
        try:
            while decoding.at < len(decoding.block) and decoding.block[decoding.at] >= least:
                self._instruction(decoding)
        except (HPACKDecodingError, IndexError) as error:
            text = str(error) or "the block is cut off"
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, text) from error

    def _instruction(self, decoding: Decoding) -> None:
        first = decoding.block[decoding.at]
        if first >= _INDEXED:
            field = self._entry(_number(decoding, _INDEXED_BITS))
        elif first >= _ADDED:
            field = self._literal(decoding, _ADDED_BITS)
            self._add(field)
        elif first >= _RESIZED:
            self._resize(decoding)
            return
        else:
            field = self._literal(decoding, _NOT_ADDED_BITS)
        decoding.fields.append(field)
        decoding.size_bytes += _size_of(field)
        if decoding.size_bytes > self._section_bytes_max:
            text = f"fields have more than {self._section_bytes_max} bytes"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text)

    def _literal(self, decoding: Decoding, bits: int) -> Field:
        index = _number(decoding, bits)
        name = self._entry(index)[0] if index else _text(decoding)
        return name, _text(decoding)

    # --- The table ---

    def _entry(self, index: int) -> Field:
        if 0 < index <= _STATIC_LAST:
            return _STATIC[index]
        if 0 < index <= _STATIC_LAST + len(self._entries):
            return self._entries[_STATIC_LAST - index]
        raise HPACKDecodingError(f"the table has no entry {index}")

    def _add(self, field: Field) -> None:
        """Add an entry; one that is larger than the table empties it (section 4.4)."""
        self.changes += 1
        self._entries.append(field)
        self._entries_bytes += _size_of(field)
        self._evict()

    def _resize(self, decoding: Decoding) -> None:
        if decoding.size_bytes:
            raise HPACKDecodingError("the size of the table changes behind a field")
        size = _number(decoding, _RESIZED_BITS)
        if size > TABLE_BYTES_MAX:
            raise HPACKDecodingError(f"the table may not have {size} bytes")
        self.changes += 1
        self._entries_bytes_max = size
        self._evict()

    def _evict(self) -> None:
        while self._entries_bytes > self._entries_bytes_max:
            self._entries_bytes -= _size_of(self._entries.pop(0))


def _size_of(field: Field) -> int:
    return len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES


def _number(decoding: Decoding, bits: int) -> int:
    """Return a number whose first bits end a byte (section 5.1)."""
    most = (1 << bits) - 1
    number = decoding.block[decoding.at] & most
    if number < most:
        decoding.at += 1
        return number
    number, used = decode_integer(decoding.block[decoding.at :], bits)
    decoding.at += used
    return number


def _text(decoding: Decoding) -> bytes:
    """Return a name or a value (section 5.2)."""
    is_compressed = decoding.block[decoding.at] >= _HUFFMAN
    size = _number(decoding, _TEXT_BITS)
    begin, decoding.at = decoding.at, decoding.at + size
    if decoding.at > len(decoding.block):
        raise HPACKDecodingError("a name or a value is cut off")
    text = decoding.block[begin : decoding.at]
    return decode_huffman(text) if is_compressed else text
