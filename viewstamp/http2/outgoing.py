"""What leaves on a connection: frames in order, and data as far as the peer's windows allow."""

from __future__ import annotations

from typing import Final

from viewstamp.http2 import frames
from viewstamp.http2.blocks import EMPTY_TABLE
from viewstamp.http2.errors import ConnectionFault, ErrorCode, StreamFault
from viewstamp.http2.frames import WINDOW_BYTES_MAX
from viewstamp.http2.streams import Http2Stream, StreamStep
from viewstamp.limits import KIB

# How many bytes of data leave at once: the rest waits until these were taken over.
OUTPUT_BYTES_MAX: Final = 256 * KIB


class Outgoing:
    """Writes frames; data wait here for windows.

    Streams that wait for the window of the connection take turns, a frame each, so that a large
    message does not keep small ones waiting.
    """

    def __init__(self) -> None:
        self.window = frames.WINDOW_BYTES_DEFAULT
        """How many bytes of all streams the peer still takes."""
        self.stream_window_bytes = frames.WINDOW_BYTES_DEFAULT
        """What the peer takes of a new stream."""
        self.frame_bytes_max: int = frames.FRAME_BYTES_MIN
        self.must_empty_table = False
        """Whether the next block has to say that we use no table."""
        self.is_held = False
        """Whether data stay here, since what left before has not been taken over."""
        self._parts: list[bytes | memoryview] = []
        self._data_bytes = 0
        """How many bytes of data the parts have."""
        self._turns: dict[int, Http2Stream] = {}
        """Streams that wait for anything but their own windows, in the order of their turns."""

    def take(self) -> bytes:
        """Return everything that is to be sent now, and forget it."""
        parts, self._parts, self._data_bytes = self._parts, [], 0
        return b"".join(parts)

    @property
    def has_turns(self) -> bool:
        """Whether more data would leave now."""
        return bool(self._turns) and self.window > 0 and not self.is_held

    def add(self, frame: bytes) -> None:
        """Append a frame."""
        self._parts.append(frame)

    # --- Fields ---

    def add_fields(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        """Append a block of fields, in as many frames as it needs."""
        if self.must_empty_table:
            block, self.must_empty_table = EMPTY_TABLE + block, False
        self._parts.append(
            frames.header_frames(stream_id, block, self.frame_bytes_max, is_end=is_end)
        )

    # --- Data ---

    def queue(self, stream: Http2Stream, data: bytes) -> None:
        """Let data wait behind what waits already."""
        if data:
            stream.queue.append(data)
            stream.queued_bytes += len(data)

    def pump(self, stream: Http2Stream) -> bool:
        """Send what windows allow; return whether something waited and nothing does any more."""
        had_any = bool(stream.queue)
        while stream.queue and self._send_one(stream):
            pass
        return self._settle(stream) and had_any

    def _send_one(self, stream: Http2Stream) -> bool:
        """Send one frame of a stream, if windows allow; return whether they did."""
        size = min(stream.send_window, self.window, self.frame_bytes_max)
        if self.is_held or self._data_bytes >= OUTPUT_BYTES_MAX:
            size = 0
        if size <= 0:
            if stream.send_window > 0:
                self._turns[stream.id] = stream
            return False
        data = stream.queue.popleft()
        if len(data) > size:
            rest = memoryview(data)  # without copying a large message once for each frame
            stream.queue.appendleft(rest[size:])
            data = rest[:size]
        sent = len(data)
        stream.queued_bytes -= sent
        stream.send_window -= sent
        self.window -= sent
        self._data_bytes += sent
        is_end = stream.end_is_queued and not stream.queue and stream.trailers is None
        self._parts += (frames.data_head(stream.id, sent, is_end=is_end), data)
        if is_end:
            self._end(stream)
        return True

    def _end(self, stream: Http2Stream) -> None:
        stream.end_is_queued = False
        stream.move(StreamStep.LOCAL_END)

    def _settle(self, stream: Http2Stream) -> bool:
        """End our side if that was all; return whether nothing waits."""
        if stream.queue:
            return False
        if stream.end_is_queued:
            if stream.trailers is None:
                self._parts.append(frames.data_head(stream.id, 0, is_end=True))
            else:
                self.add_fields(stream.id, stream.trailers, is_end=True)
            self._end(stream)
        return True

    def forget(self, stream: Http2Stream) -> None:
        """Drop what waits on a stream that has ended."""
        stream.queue.clear()
        stream.queued_bytes = 0
        self._turns.pop(stream.id, None)

    # --- Windows ---

    def allow(self, size: int) -> list[Http2Stream]:
        """Take the peer's permission for all streams; return those whose data have all left.

        Raises ConnectionFault.
        """
        if size == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window grows by nothing")
        if self.window + size > WINDOW_BYTES_MAX:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
        self.window += size
        return self.take_turns()

    def allow_stream(self, stream: Http2Stream, size: int) -> bool:
        """Take the permission for one stream; return whether all of its data have left by it.

        Raises StreamFault.
        """
        if size == 0:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "a window grows by nothing")
        if stream.send_window + size > WINDOW_BYTES_MAX:
            raise StreamFault(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
        stream.send_window += size
        return self.pump(stream)

    def take_turns(self) -> list[Http2Stream]:
        """Send of each stream in turn what may leave; return those whose data have all left."""
        emptied = []
        while self.has_turns and self._data_bytes < OUTPUT_BYTES_MAX:
            stream = self._turns.pop(next(iter(self._turns)))
            if stream.queue and self._send_one(stream) and stream.queue:
                self._turns[stream.id] = stream
            elif self._settle(stream):
                emptied.append(stream)
        return emptied
