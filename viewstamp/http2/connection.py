"""One end of an HTTP/2 connection, without input and output (RFC 9113).

Whoever owns the socket gives `receive` what came, acts on the events, and sends what `output`
returns. Nothing here waits, and nothing asks a clock: the time comes with what is received.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from viewstamp.http2 import frames
from viewstamp.http2.blocks import BlockReader
from viewstamp.http2.errors import ConnectionFault, ErrorCode, StreamClosed, StreamFault
from viewstamp.http2.events import ConnectionFailed, Event, QueueEmptied, StreamReset
from viewstamp.http2.frames import CONNECTION, PREFACE, Kind, Setting
from viewstamp.http2.incoming import Incoming
from viewstamp.http2.limits import Allowances, Limits, Nuisance
from viewstamp.http2.outgoing import Outgoing
from viewstamp.http2.streams import MAY_SEND, Http2Stream, State, StreamStep

STREAMS_MAX_UNTOLD: Final = 100
"""How many streams a client opens before the server has said how many it takes."""


class Role(Enum):
    """Which end of a connection this is."""

    CLIENT = "client"
    SERVER = "server"


class Connection:
    """Keeps the streams of a connection, and sends on them."""

    def __init__(self, role: Role, limits: Limits, now_ms: int = 0) -> None:
        self.role = role
        self.limits = limits
        self.streams: dict[int, Http2Stream] = {}
        """Those that are neither idle nor closed."""
        self.is_over = False
        """Whether nothing is received or sent any more, except what `output` still has."""
        self.peer_streams_max = STREAMS_MAX_UNTOLD
        """How many streams of ours the peer takes at once."""
        self.last_peer_id = 0
        """The last stream that the peer has opened."""
        self.last_local_id = -1 if role is Role.CLIENT else 0
        """The last stream that we have opened."""
        self.served_until: int | None = None
        """The last stream of the peer that is served, since we said that we go away."""
        self.forgotten: dict[int, None] = {}
        """Streams that ended before the peer knew it, the newest last."""
        self.peer_goes_away = False
        """Whether the peer takes no new streams."""
        self.events: list[Event] = []
        self.outgoing = Outgoing()
        self.incoming = Incoming(limits.window_bytes, limits.stream_window_bytes, self.outgoing)
        self.reader = BlockReader(limits.section_bytes_max)
        self._allowances = Allowances(now_ms)
        self._now_ms = now_ms

    # --- Life ---

    def begin(self) -> None:
        """Send what a connection begins with."""
        if self.role is Role.CLIENT:
            self.outgoing.add(PREFACE)
        self.outgoing.add(frames.settings_frame(self._settings()))
        more = self.limits.window_bytes - frames.WINDOW_BYTES_DEFAULT
        if more > 0:
            self.outgoing.add(frames.window_frame(CONNECTION, more))

    def _settings(self) -> dict[Setting, int]:
        limits = self.limits
        settings = {
            Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            Setting.MAX_FRAME_SIZE: limits.frame_bytes_max,
            Setting.MAX_HEADER_LIST_SIZE: limits.section_bytes_max,
        }
        if self.role is Role.CLIENT:
            return {Setting.ENABLE_PUSH: 0} | settings
        return {Setting.MAX_CONCURRENT_STREAMS: limits.streams_max} | settings

    def output(self) -> bytes:
        """Return what is to be sent now; a caller who cannot send it has to close the socket.

        More may be ready afterwards: `has_more` tells. It may also have made events.
        """
        if self.outgoing.has_turns:
            self.told(self.outgoing.take_turns())
        return self.outgoing.take()

    def take_events(self) -> list[Event]:
        """Return what has happened, and forget it."""
        events, self.events = self.events, []
        return events

    @property
    def has_more(self) -> bool:
        """Whether more data would leave now."""
        return self.outgoing.has_turns

    @property
    def has_waiting(self) -> bool:
        """Whether data of any stream wait."""
        return any(stream.queue for stream in self.streams.values())

    def hold(self, *, is_held: bool) -> None:
        """Let data wait, since what left before has not been taken over; or no longer."""
        self.outgoing.is_held = is_held

    def ping(self, payload: bytes) -> None:
        """Ask for a sign of life; `payload` has eight bytes and comes back."""
        self.outgoing.add(frames.frame(Kind.PING, 0, CONNECTION, payload))

    def announce_end(self) -> None:
        """Tell the peer to open no more streams; those under way and those that come still are."""
        self.outgoing.add(frames.goaway_frame(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR, ""))

    def refuse_new(self) -> None:
        """Serve no stream after the last one that has come; those under way go on."""
        self.served_until = self.last_peer_id
        self.outgoing.add(frames.goaway_frame(self.last_peer_id, ErrorCode.NO_ERROR, ""))

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, message: str = "") -> None:
        """End the connection and everything on it."""
        if not self.is_over:
            self.outgoing.add(frames.goaway_frame(self.last_peer_id, code, message))
            self.is_over = True

    # --- Receiving ---

    def note_time(self, now_ms: int) -> None:
        """Say what time it is, in milliseconds of a clock that never goes back."""
        self._now_ms = now_ms

    def charge(self, nuisance: Nuisance) -> None:
        """Count what a peer may do only so often. Raises ConnectionFault."""
        self._allowances.take(nuisance, self._now_ms)

    def fail(self, fault: ConnectionFault) -> None:
        """End the connection because of what the peer did."""
        self.close(fault.code, fault.message)
        self.events.append(ConnectionFailed(fault.code, fault.message))

    def fail_stream(self, fault: StreamFault) -> None:
        """End a stream because of what the peer did on it. Raises ConnectionFault."""
        self.charge(Nuisance.FAULT)
        was_open = fault.stream_id in self.streams
        self._reset(fault.stream_id, fault.code)
        if was_open:
            self.events.append(
                StreamReset(fault.stream_id, fault.code, by_peer=False, message=fault.message)
            )

    # --- Sending ---

    def open(self, block: bytes, *, is_end: bool = False) -> int:
        """Begin a stream with the fields of a request; return its number. Raises StreamClosed."""
        stream_id = self.last_local_id + 2
        if not self.may_open:
            raise StreamClosed("this connection opens no more streams")
        self._allowances.forgive_pings()
        self.last_local_id = stream_id
        stream = self.new_stream(stream_id)
        self.outgoing.add_fields(stream_id, block, is_end=is_end)
        if is_end:
            stream.move(StreamStep.LOCAL_END)
        return stream_id

    @property
    def may_open(self) -> bool:
        """Whether another stream may be opened, as far as this connection is concerned."""
        is_open = not (self.is_over or self.peer_goes_away)
        has_ids = self.last_local_id + 2 <= frames.STREAM_ID_MAX
        return self.role is Role.CLIENT and is_open and has_ids

    def send_fields(self, stream_id: int, block: bytes) -> None:
        """Send the fields of a response. Raises StreamClosed."""
        stream = self._sending(stream_id)
        self.outgoing.add_fields(stream.id, block, is_end=False)

    def send_data(self, stream_id: int, data: bytes, *, is_end: bool = False) -> bool:
        """Send data; return whether none wait for windows. Raises StreamClosed."""
        stream = self._sending(stream_id)
        stream.end_is_queued = is_end
        self.outgoing.queue(stream, data)
        self._pump(stream)
        return not stream.queue

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """Send the last fields, behind all data; they end our side. Raises StreamClosed."""
        stream = self._sending(stream_id)
        stream.trailers, stream.end_is_queued = block, True
        self._pump(stream)

    def send_answer(self, stream_id: int, block: bytes, data: bytes, trailers: bytes) -> None:
        """Send a whole response: its fields, its data, its last fields. Raises StreamClosed.

        As `send_fields`, `send_data` and `send_trailers` do, at half the price.
        """
        stream = self._sending(stream_id)
        self.outgoing.add_fields(stream.id, block, is_end=False)
        self.outgoing.queue(stream, data)
        stream.trailers, stream.end_is_queued = trailers, True
        self._pump(stream)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream at once; nothing happens if it has ended."""
        if stream_id in self.streams:
            self._reset(stream_id, code)

    def give_back(self, stream_id: int, size: int) -> None:
        """Say that so many bytes of received data were used, also of a stream that has ended."""
        self.incoming.give_back(size)
        stream = self.streams.get(stream_id)
        if stream is not None and stream.state is not State.REMOTE_DONE:
            self.incoming.give_back_stream(stream, size)

    def waiting_bytes(self, stream_id: int) -> int:
        """Return how much waits for windows on a stream."""
        stream = self.streams.get(stream_id)
        return 0 if stream is None else stream.queued_bytes

    # --- Streams ---

    def new_stream(self, stream_id: int) -> Http2Stream:
        """Keep a new stream.

        A peer that has not read our settings yet may send as much as is usual (section 6.9.3).
        """
        receive_window = max(self.limits.stream_window_bytes, frames.WINDOW_BYTES_DEFAULT)
        stream = Http2Stream(stream_id, self.outgoing.stream_window_bytes, receive_window)
        self.streams[stream_id] = stream
        return stream

    def forget_if_closed(self, stream: Http2Stream) -> None:
        """Keep nothing of a stream that both sides have ended."""
        if stream.state is State.CLOSED:
            self.streams.pop(stream.id, None)

    def drop(self, stream: Http2Stream) -> None:
        """Keep nothing of a stream that was reset."""
        self.outgoing.forget(stream)
        del self.streams[stream.id]

    def told(self, emptied: Iterable[Http2Stream]) -> None:
        """Tell of streams whose data have all left."""
        for stream in emptied:
            self.events.append(QueueEmptied(stream.id))
            self.forget_if_closed(stream)

    def _sending(self, stream_id: int) -> Http2Stream:
        stream = self.streams.get(stream_id)
        if stream is None or stream.state not in MAY_SEND or stream.end_is_queued:
            raise StreamClosed(f"stream {stream_id} takes nothing more")
        self._allowances.forgive_pings()
        return stream

    def _pump(self, stream: Http2Stream) -> None:
        self.outgoing.pump(stream)
        self.forget_if_closed(stream)

    def _reset(self, stream_id: int, code: ErrorCode) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.drop(stream)
        self.outgoing.add(frames.reset_frame(stream_id, code))
        self.forgotten[stream_id] = None
        if len(self.forgotten) > self.limits.forgotten_max:
            del self.forgotten[next(iter(self.forgotten))]
