"""The replies that clients have not acknowledged, byte for byte. Changed at retirement alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from coordinator.mux.sessions import Entity
from coordinator.mux.types import RequestReply, SpanReply

WINDOW_KIND: Final = 3
REPLY_KIND: Final = 4
# What a kept reply weighs beside its bytes: objects and dictionary slots, roughly.
REPLY_OVERHEAD_BYTES: Final = 256

_SESSION_KEY = struct.Struct(">Q")
_REPLY_KEY = struct.Struct(">QQ")
# Acknowledged number, last retired number.
_WINDOW = struct.Struct(">QQ")
# View, op, first revision, number of spans.
_REPLY = struct.Struct(">QQQI")
_LENGTH = struct.Struct(">I")
# Index, length of the error.
_ERROR = struct.Struct(">II")


@dataclass(slots=True)
class Window:
    """What is kept for one session: replies by number, those above `acked` alone."""

    acked: int = 0
    last_retired: int = 0
    replies: dict[int, RequestReply] = field(default_factory=dict)


class ReplyTable:
    """The windows of the sessions that live at the last retired prepare."""

    def __init__(self) -> None:
        """Begin without windows."""
        self._windows: dict[int, Window] = {}
        self._bytes = 0

    @property
    def replies_bytes(self) -> int:
        """Bytes of all replies kept; admission compares it with SESSION_REPLIES_BYTES_MAX."""
        return self._bytes

    def window(self, session_id: int) -> Window | None:
        """Return the window of a session, to be read alone."""
        return self._windows.get(session_id)

    def open(self, session_id: int) -> None:
        """Begin the window of a session whose registration retires."""
        self._windows[session_id] = Window()

    def close(self, session_id: int) -> None:
        """Forget the window of a session whose end retires."""
        window = self._windows.pop(session_id)
        self._bytes -= sum(map(weight, window.replies.values()))

    def acknowledge(self, session_id: int, acked: int) -> None:
        """Forget the replies up to `acked`, none beyond the last that retired."""
        window = self._windows.get(session_id)
        if window is None:
            return
        acked = min(acked, window.last_retired)
        if acked <= window.acked:
            return
        for number in [number for number in window.replies if number <= acked]:
            self._bytes -= weight(window.replies.pop(number))
        window.acked = acked

    def store(self, reply: RequestReply) -> None:
        """Keep the reply of a request that took effect, unless its session has ended."""
        window = self._windows.get(reply.session_id)
        if window is None:
            return
        assert reply.number == window.last_retired + 1, (
            f"reply {reply.number} of session {reply.session_id} after {window.last_retired}"
        )
        window.last_retired = reply.number
        window.replies[reply.number] = reply
        self._bytes += weight(reply)

    def entities(self) -> Iterator[Entity]:
        """Yield every entity in (kind, key) order; integers are big-endian and unsigned.

        WINDOW_KIND: key u64 session id; u64 acked, u64 last retired number. REPLY_KIND: key u64
        session id, u64 number; u64 view, u64 op, u64 first revision, u32 spans, then per span u32
        length and bytes of the results, u32 refusals, each u32 index, u32 length, bytes.
        """
        for session_id in sorted(self._windows):
            window = self._windows[session_id]
            packed = _WINDOW.pack(window.acked, window.last_retired)
            yield WINDOW_KIND, _SESSION_KEY.pack(session_id), packed
        for session_id in sorted(self._windows):
            replies = self._windows[session_id].replies
            for number in sorted(replies):
                yield REPLY_KIND, _REPLY_KEY.pack(session_id, number), _canonical(replies[number])


def weight(reply: RequestReply) -> int:
    """Return the bytes that a kept reply counts for."""
    total = REPLY_OVERHEAD_BYTES
    for span in reply.spans:
        total += len(span.results)
        for error in span.errors:
            total += len(error.error)
    return total


def _canonical(reply: RequestReply) -> bytes:
    """Return the canonical bytes of a reply."""
    head = _REPLY.pack(reply.view, reply.op, reply.first_revision, len(reply.spans))
    return head + b"".join(map(_canonical_span, reply.spans))


def _canonical_span(span: SpanReply) -> bytes:
    """Return the canonical bytes of one span of a reply."""
    parts = [_LENGTH.pack(len(span.results)), span.results, _LENGTH.pack(len(span.errors))]
    for error in span.errors:
        parts += (_ERROR.pack(error.index, len(error.error)), error.error)
    return b"".join(parts)
