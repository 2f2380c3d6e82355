"""Frames: their heads, what each kind must look like, and how ours are written.

The rules of RFC 9113, section 6, that need no memory are a table, so that what is read is checked
in one place before anything acts on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from viewstamp.http2.errors import ErrorCode

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# 24 bits of length, as 16 and 8; kind; flags; stream.
HEAD: Final = Struct(">HBBBL")
HEAD_BYTES: Final = 9
STREAM_ID_MAX: Final = 2**31 - 1
WINDOW_BYTES_MAX: Final = 2**31 - 1
WINDOW_BYTES_DEFAULT: Final = 65_535
FRAME_BYTES_MIN: Final = 16_384
"""What every peer takes as the payload of a frame."""
FRAME_BYTES_MAX: Final = 2**24 - 1
PING_BYTES: Final = 8
CONNECTION: Final = 0
"""The stream of frames that are about the whole connection."""

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

_U32: Final = Struct(">L")
_TWO_U32: Final = Struct(">LL")
_SETTING: Final = Struct(">HL")
_RESERVED_BIT: Final = 0x7FFF_FFFF


class Kind(IntEnum):
    """The kinds of frames; others are ignored (RFC 9113, section 5.5)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """The settings that have a meaning here; others are ignored (RFC 9113, section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class FrameShape(NamedTuple):
    """What a kind of frame must look like.

    `of_stream` says that it names a stream, `of_connection` that it names none. A payload outside
    of its bounds ends the connection, or only the stream of a kind that allows that.
    """

    of_stream: bool
    of_connection: bool
    bytes_min: int
    bytes_max: int
    ends_stream_only: bool = False


SHAPES: Final[dict[int, FrameShape]] = {
    Kind.DATA: FrameShape(True, False, 0, FRAME_BYTES_MAX),
    Kind.HEADERS: FrameShape(True, False, 0, FRAME_BYTES_MAX),
    Kind.PRIORITY: FrameShape(True, False, 5, 5, ends_stream_only=True),
    Kind.RST_STREAM: FrameShape(True, False, 4, 4),
    Kind.SETTINGS: FrameShape(False, True, 0, FRAME_BYTES_MAX),
    Kind.PUSH_PROMISE: FrameShape(True, False, 4, FRAME_BYTES_MAX),
    Kind.PING: FrameShape(False, True, PING_BYTES, PING_BYTES),
    Kind.GOAWAY: FrameShape(False, True, 8, FRAME_BYTES_MAX),
    Kind.WINDOW_UPDATE: FrameShape(True, True, 4, 4),
    Kind.CONTINUATION: FrameShape(True, False, 0, FRAME_BYTES_MAX),
}


# --- Writing ---


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    length = len(payload)
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def data_head(stream_id: int, length: int, *, is_end: bool) -> bytes:
    """Return the head of a frame of data."""
    return HEAD.pack(length >> 8, length & 0xFF, Kind.DATA, END_STREAM if is_end else 0, stream_id)


def header_frames(stream_id: int, block: bytes, frame_bytes_max: int, *, is_end: bool) -> bytes:
    """Return a block of fields as a HEADERS frame, and CONTINUATION frames if it is long."""
    end = END_STREAM if is_end else 0
    if len(block) <= frame_bytes_max:
        return frame(Kind.HEADERS, end | END_HEADERS, stream_id, block)
    pieces = [block[at : at + frame_bytes_max] for at in range(0, len(block), frame_bytes_max)]
    frames = [frame(Kind.HEADERS, end, stream_id, pieces[0])]
    frames += [frame(Kind.CONTINUATION, 0, stream_id, piece) for piece in pieces[1:-1]]
    frames.append(frame(Kind.CONTINUATION, END_HEADERS, stream_id, pieces[-1]))
    return b"".join(frames)


def settings_frame(settings: dict[Setting, int]) -> bytes:
    """Return our settings."""
    payload = b"".join(_SETTING.pack(setting, value) for setting, value in settings.items())
    return frame(Kind.SETTINGS, 0, CONNECTION, payload)


def reset_frame(stream_id: int, code: int) -> bytes:
    """Return what ends a stream at once."""
    return frame(Kind.RST_STREAM, 0, stream_id, _U32.pack(code))


def window_frame(stream_id: int, size: int) -> bytes:
    """Return the permission to send `size` bytes more."""
    return frame(Kind.WINDOW_UPDATE, 0, stream_id, _U32.pack(size))


def goaway_frame(last_stream_id: int, code: int, text: str) -> bytes:
    """Return that streams after the last one are not served any more."""
    payload = _TWO_U32.pack(last_stream_id, code) + text.encode()
    return frame(Kind.GOAWAY, 0, CONNECTION, payload)


# --- Reading ---


def read_u31(payload: bytes) -> int:
    """Return a number whose first bit means nothing."""
    number: int = _U32.unpack_from(payload)[0]
    return number & _RESERVED_BIT


def read_code(payload: bytes) -> int:
    """Return the code of a reset; it may be one that nobody knows."""
    code: int = _U32.unpack(payload)[0]
    return code


def read_goaway(payload: bytes) -> tuple[int, int, bytes]:
    """Return the last stream that is served, the code, and what is told to people."""
    last_stream_id, code = _TWO_U32.unpack_from(payload)
    return last_stream_id & _RESERVED_BIT, code, payload[_TWO_U32.size :]


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield settings and values, in order. Call it with a multiple of six bytes."""
    yield from _SETTING.iter_unpack(payload)


SETTING_BYTES: Final = _SETTING.size
SETTING_BOUNDS: Final[dict[int, tuple[int, int, ErrorCode]]] = {
    Setting.ENABLE_PUSH: (0, 1, ErrorCode.PROTOCOL_ERROR),
    Setting.INITIAL_WINDOW_SIZE: (0, WINDOW_BYTES_MAX, ErrorCode.FLOW_CONTROL_ERROR),
    Setting.MAX_FRAME_SIZE: (FRAME_BYTES_MIN, FRAME_BYTES_MAX, ErrorCode.PROTOCOL_ERROR),
}
"""The least and the largest value of a setting, and what any other one means."""
