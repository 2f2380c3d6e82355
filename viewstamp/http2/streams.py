"""The life of a stream: which steps lead where, and what it remembers (RFC 9113, section 5.1)."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final

from viewstamp.http2.fields import FieldSection


class State(IntEnum):
    """Who may still send. Streams that are idle or closed are not kept."""

    OPEN = 0
    LOCAL_DONE = 1
    """We have ended our side (half-closed, local)."""
    REMOTE_DONE = 2
    """The peer has ended its side (half-closed, remote)."""
    CLOSED = 3


class StreamStep(IntEnum):
    """What moves a stream; fields and data alone do not."""

    LOCAL_END = 0
    REMOTE_END = 1
    RESET = 2


TRANSITIONS: Final[dict[tuple[State, StreamStep], State]] = {
    (State.OPEN, StreamStep.LOCAL_END): State.LOCAL_DONE,
    (State.OPEN, StreamStep.REMOTE_END): State.REMOTE_DONE,
    (State.OPEN, StreamStep.RESET): State.CLOSED,
    (State.LOCAL_DONE, StreamStep.REMOTE_END): State.CLOSED,
    (State.LOCAL_DONE, StreamStep.RESET): State.CLOSED,
    (State.REMOTE_DONE, StreamStep.LOCAL_END): State.CLOSED,
    (State.REMOTE_DONE, StreamStep.RESET): State.CLOSED,
}
"""What is not here is impossible, or a fault of whoever tried."""

MAY_RECEIVE: Final = frozenset({State.OPEN, State.LOCAL_DONE})
MAY_SEND: Final = frozenset({State.OPEN, State.REMOTE_DONE})


class Http2Stream:
    """What a connection knows of one stream.

    Windows are in bytes: `send_window` is what the peer still takes, `receive_window` what we have
    allowed it to send. `unreturned` was used by the layer above, and is not yet allowed again.
    """

    __slots__ = (
        "end_is_queued",
        "expects",
        "has_fields",
        "id",
        "left_bytes",
        "queue",
        "queued_bytes",
        "receive_window",
        "send_window",
        "state",
        "trailers",
        "unreturned",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.state = State.OPEN
        self.send_window = send_window
        self.receive_window = receive_window
        self.unreturned = 0
        self.has_fields = False
        """Whether the first section of the peer has come; a later one has its trailers."""
        self.left_bytes: int | None = None
        """What the peer has announced in content-length and not yet sent."""
        self.queue: deque[bytes | memoryview] = deque()
        """Data that wait for a window."""
        self.queued_bytes = 0
        self.trailers: bytes | None = None
        """The block that ends our side behind what waits."""
        self.end_is_queued = False
        """Whether our side ends behind what waits, with trailers or without."""

    def move(self, step: StreamStep) -> None:
        """Take a step that the table has."""
        self.state = TRANSITIONS[self.state, step]

    def begin_remote(self, section: FieldSection) -> None:
        """Note the first section of the peer's message."""
        self.has_fields = True
        self.left_bytes = section.content_length
