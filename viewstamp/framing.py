"""Framing of packed messages: `repeated bytes items = 1` without the message around it.

Each item is the byte 0x0A, its length as a varint, and its bytes. Blobs are joined by
concatenation, taken apart here, or parsed whole as a typed batch (see `viewstamp.routing`).
"""

from __future__ import annotations

from collections.abc import Iterable

FRAME_TAG = 0x0A
EMPTY_FRAME = b"\x0a\x00"
_VARINT_BYTES_MAX = 10


class FramingError(ValueError):
    """Bytes that are not a sequence of frames; the message says where and why."""


def encode_varint(value: int) -> bytes:
    """Return `value` (0 <= value < 2**64) as a protobuf varint."""
    if value < 0x4000:
        return _SHORT_VARINTS[value]
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_varint(buffer: bytes, offset: int) -> tuple[int, int]:
    """Return the varint at `offset` and the offset after it. Raises FramingError."""
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if offset + index >= len(buffer):
            raise FramingError(f"varint at byte {offset} is cut off")
        byte = buffer[offset + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, offset + index + 1
    raise FramingError(f"varint at byte {offset} is longer than {_VARINT_BYTES_MAX} bytes")


# Varints of up to two bytes, looked up: nearly all lengths, and most ids, are that short.
# The table is joined from single bytes, because each command of the command line waits for it.
_BYTES = tuple(bytes((value,)) for value in range(0x100))
_SHORT_VARINTS = (
    *_BYTES[:0x80],
    *(low + high for high in _BYTES[1:0x80] for low in _BYTES[0x80:]),
)
_SHORT_PREFIXES = tuple(bytes((FRAME_TAG, length)) for length in range(0x80))


def frame(item: bytes) -> bytes:
    """Return one item with its frame."""
    if len(item) < 0x80:
        return _SHORT_PREFIXES[len(item)] + item
    return bytes((FRAME_TAG,)) + encode_varint(len(item)) + item


def frame_all(items: Iterable[bytes]) -> bytes:
    """Return the items framed and joined."""
    return b"".join(map(frame, items))


def unframe(blob: bytes) -> list[bytes]:
    """Return the items of a blob. Raises FramingError if it is not whole frames."""
    items = []
    offset = 0
    while offset < len(blob):
        if blob[offset] != FRAME_TAG:
            raise FramingError(f"expected frame tag 0x0A at byte {offset}, got {blob[offset]:#04x}")
        length, start = decode_varint(blob, offset + 1)
        offset = start + length
        if offset > len(blob):
            raise FramingError(
                f"frame at byte {start} wants {length} bytes, {len(blob) - start} left"
            )
        items.append(blob[start:offset])
    return items


def first_frame(blob: bytes) -> bytes:
    """Return the first item of a blob, empty if there is none. Raises FramingError."""
    if not blob:
        return b""
    if blob[0] != FRAME_TAG:
        raise FramingError(f"expected frame tag 0x0A at byte 0, got {blob[0]:#04x}")
    length, start = decode_varint(blob, 1)
    if start + length > len(blob):
        raise FramingError(f"frame at byte {start} wants {length} bytes, {len(blob) - start} left")
    return blob[start : start + length]
