"""Blocks of fields: how they are read with memory and written without (RFC 7541).

**Reading.** A peer that sends the same fields again mostly sends the same bytes. As long as its
table has not changed since, these bytes mean the same, so their section is looked up and nothing is
decoded. A block that changes the table is never remembered, and makes all others forgotten.

**Writing.** Our blocks never add to the peer's table, so the bytes of a block mean the same on
every connection at any time. Answers are made once, for all connections of a process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import hpack
from hpack.table import HeaderTable

from viewstamp.http2.errors import ConnectionFault, ErrorCode
from viewstamp.http2.fields import Field, FieldSection, MessagePart
from viewstamp.limits import KIB

# How many blocks of a peer are remembered, and how long they and their fields are at most.
REMEMBERED_MAX: Final = 64
REMEMBERED_BYTES_MAX: Final = 4 * KIB
EMPTY_TABLE: Final = b"\x20"
"""Begins a block of somebody who uses no table any more (RFC 7541, section 6.3)."""


class _WatchedTable(HeaderTable):
    """The table of a peer; `changes` grows with each change."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        """Add an entry, perhaps in the place of others."""
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        """How many bytes the table has at most."""
        return super().maxsize

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        self.changes += 1
        HeaderTable.maxsize.fset(self, size)  # type: ignore[attr-defined]


class BlockReader:
    """Reads the blocks of one peer, in the order in which they came."""

    def __init__(self, section_bytes_max: int) -> None:
        """Take sections of so many bytes, counted as RFC 9113 counts them."""
        self._decoder = hpack.Decoder(max_header_list_size=section_bytes_max)
        self._table = _WatchedTable()
        self._decoder.header_table = self._table
        self.known: dict[tuple[MessagePart, bytes], FieldSection] = {}
        """Blocks whose meaning is remembered, as long as the table does not change."""

    def read(self, part: MessagePart, block: bytes) -> FieldSection:
        """Return the fields of a block. Raises ConnectionFault: the tables would differ."""
        section = self.known.get((part, block))
        if section is not None:
            return section
        before = self._table.changes
        section = FieldSection(part, self._decoded(block))
        if self._table.changes != before:
            self.known.clear()
        elif max(len(block), section.size_bytes) <= REMEMBERED_BYTES_MAX:
            if len(self.known) >= REMEMBERED_MAX:
                self.known.clear()
            self.known[part, block] = section
        return section

    def _decoded(self, block: bytes) -> list[Field]:
        try:
            return [
                (bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)
            ]
        except hpack.OversizedHeaderListError as error:
            text = f"fields have more than {self._decoder.max_header_list_size} bytes"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text) from error
        except hpack.HPACKError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from error


_ENCODER: Final = hpack.Encoder()


def write(fields: Iterable[Field]) -> bytes:
    """Return a block that means these fields on any connection."""
    return _ENCODER.encode([(name, value, True) for name, value in fields])
