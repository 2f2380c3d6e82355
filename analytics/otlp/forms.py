"""Tells by its first bytes in which form a file holds OTLP. Pure: bytes in, a form out.

| form | what it looks like |
|---|---|
| lines | a line has whole JSON documents |
| documents | JSON over several lines, or an array over several lines |
| message | one protobuf message: a field 1 (`resource_spans`) after the other, up to the end |
| fixed | each message has its length in 4 bytes before it, as the collector writes files |
| varint | each message has its length before it, as protobuf's delimited streams have it |
| foreign | nothing of these |
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from analytics.otlp.json_documents import BETWEEN, BrokenDocument, documents
from viewstamp.limits import MIB


class OtlpForm(Enum):
    """How a file holds OTLP."""

    LINES = "lines"
    DOCUMENTS = "documents"
    MESSAGE = "message"
    FIXED = "fixed"
    VARINT = "varint"
    FOREIGN = "foreign"


# So much of a file, without its compression, tells its form.
HEAD_BYTES: Final = 64 * 1024
# A larger message, or file of documents, is refused: Python's values take ten times as much memory.
MESSAGE_BYTES_MAX: Final = 32 * MIB
# The first line of a document over several lines is short.
FIRST_LINE_BYTES_MAX: Final = 4096
LENGTH_BYTES: Final = 4
VARINT_BYTES_MAX: Final = 10
FIELD_1: Final = 0x0A
SIGNALS: Final = re.compile(
    rb'"(resource_?(spans|metrics|logs|profiles)|batches)"\s*:', re.IGNORECASE
)
GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"


def recognize(head: bytes, is_whole: bool) -> OtlpForm:
    """Return the form of a file that begins with these bytes, or is nothing but them."""
    text = head[_beginning(head) :]
    if text[:1] in (b"{", b"["):
        return _of_json(text)
    if _is_fixed(head):
        return OtlpForm.FIXED
    if _walks(head, len(head) if is_whole else None):
        return OtlpForm.MESSAGE
    if _is_varint(head):
        return OtlpForm.VARINT
    return OtlpForm.LINES if SIGNALS.search(text) else OtlpForm.FOREIGN


def varint(data: bytes, at: int = 0) -> tuple[int, int] | None:
    """Return the number at a position and the position after it; None if there is none."""
    number = 0
    for place, byte in enumerate(data[at : at + VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    return None


def _beginning(head: bytes) -> int:
    """Return where text begins, behind a mark of byte order and white space."""
    # A character that is cut at the end of the head is of no matter here.
    found = BETWEEN.match(head.decode(errors="replace"))
    return len(found.group().encode()) if found else 0


def _of_json(text: bytes) -> OtlpForm:
    """Return the form of text that begins as JSON does."""
    if SIGNALS.search(text) is None:
        return OtlpForm.FOREIGN
    first, *others = text.split(b"\n")
    if not others or len(first) > FIRST_LINE_BYTES_MAX or _is_document(first):
        return OtlpForm.LINES
    # Behind a first line that is cut come whole ones, unless an array goes over several lines.
    cut = not text.startswith(b"[") and any(map(_is_document, others[:-1]))
    return OtlpForm.LINES if cut else OtlpForm.DOCUMENTS


def _is_document(line: bytes) -> bool:
    """Return whether a line has a document of OTLP, whole."""
    if SIGNALS.search(line) is None:
        return False
    found = list(documents(line.decode(errors="replace")))
    return any(isinstance(one, dict) for one in found) and not isinstance(found[0], BrokenDocument)


def _is_fixed(head: bytes) -> bool:
    """Return whether the head begins with a length of 4 bytes and a message."""
    length = int.from_bytes(head[:LENGTH_BYTES], "big")
    rest = head[LENGTH_BYTES:]
    if not 0 < length <= MESSAGE_BYTES_MAX:
        return False
    if rest[:1] == b"{" or rest.startswith((ZSTD, GZIP)):
        return True
    return _walks(rest[:length], length)


def _is_varint(head: bytes) -> bool:
    """Return whether the head begins with a length in protobuf's way and a message."""
    told = varint(head)
    if told is None or not 0 < told[0] <= MESSAGE_BYTES_MAX:
        return False
    length, at = told
    return _walks(head[at : at + length], length)


def _walks(data: bytes, size: int | None) -> bool:
    """Return whether fields 1 follow each other from the beginning to the size, if it is known.

    Sees only `data`: what lies behind them is taken for granted.
    """
    at = 0
    while at < len(data):
        told = varint(data, at + 1) if data[at] == FIELD_1 else None
        if told is None:
            # The length of a field may be cut at the end of the head.
            return data[at] == FIELD_1 and at > 0 and at + VARINT_BYTES_MAX > len(data)
        length, at = told[0], told[1] + told[0]
        if length == 0 and size is None:
            return False
    return 0 < at <= (MESSAGE_BYTES_MAX if size is None else size)
