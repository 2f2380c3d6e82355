"""What goes wrong on a connection, and the codes that tell it (RFC 9113, section 7)."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Why a stream or a connection ended."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):  # noqa: N818 - it is what the peer did, not what we raise at it.
    """The peer broke a rule, and the connection cannot go on (RFC 9113, section 5.4.1)."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class StreamFault(Exception):  # noqa: N818
    """The peer broke a rule on one stream; the others go on (RFC 9113, section 5.4.2)."""

    def __init__(self, stream_id: int, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.code = code
        self.message = message


class StreamClosed(Exception):  # noqa: N818
    """The caller wants to send on a stream that takes nothing more; nothing was sent."""
