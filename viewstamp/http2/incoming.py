"""The windows that we have opened to the peer, and when they are opened again."""

from __future__ import annotations

from typing import Final

from viewstamp.http2 import frames
from viewstamp.http2.errors import ConnectionFault, ErrorCode
from viewstamp.http2.frames import CONNECTION
from viewstamp.http2.outgoing import Outgoing
from viewstamp.http2.streams import Http2Stream

_RETURN_AT: Final = 2
"""A window is opened again when this part of it, one in so many, was used."""


class Incoming:
    """The windows that we have opened: for all streams together, and helpers for each."""

    def __init__(self, window_bytes: int, stream_window_bytes: int, outgoing: Outgoing) -> None:
        self._window_bytes = window_bytes
        self._stream_window_bytes = stream_window_bytes
        self._outgoing = outgoing
        self.left = max(window_bytes, frames.WINDOW_BYTES_DEFAULT)  # no setting makes it smaller
        """How many bytes of all streams the peer may still send."""
        self._unreturned = 0

    def use(self, size: int) -> None:
        """Take note of data of whichever stream. Raises ConnectionFault."""
        self.left -= size
        if self.left < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")

    def give_back(self, size: int) -> None:
        """Allow the peer to send that much again, on whichever stream."""
        self._unreturned += size
        if self._unreturned * _RETURN_AT >= self._window_bytes:
            self._outgoing.add(frames.window_frame(CONNECTION, self._unreturned))
            self.left += self._unreturned
            self._unreturned = 0

    def give_back_stream(self, stream: Http2Stream, size: int) -> None:
        """Allow the peer to send that much again on this stream."""
        stream.unreturned += size
        if stream.unreturned * _RETURN_AT >= self._stream_window_bytes:
            self._outgoing.add(frames.window_frame(stream.id, stream.unreturned))
            stream.receive_window += stream.unreturned
            stream.unreturned = 0
