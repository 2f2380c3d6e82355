"""One socket with an HTTP/2 connection on it: bytes in, bytes out, and signs of life.

Everything that a turn of the event loop makes ready leaves in one write. For a peer that does not
read, data wait in their streams, where writers see them. What is owed beside data has a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from viewstamp.http2 import (
    Connection,
    ConnectionFailed,
    Event,
    FrameReceiver,
    Limits,
    PingAnswered,
    QueueEmptied,
    Role,
    StreamReset,
)
from viewstamp.http2.events import DataReceived, FieldsReceived, GoingAway, SettingsReceived
from viewstamp.http2.fields import MessagePart
from viewstamp.limits import MIB
from viewstamp.wire.signs_of_life import LoopWatch, spoken_for
from viewstamp.wire.tally import Tally
from viewstamp.wire.tls import ALPN, speaks_http2

_PING: Final = b"vs-alive"
# How much may wait for a peer that does not read: only answers to what it sends come to so much.
_UNSENT_BYTES_MAX: Final = 2 * MIB
# How long a closing socket has for what it still has to send.
_CLOSE_S: Final = 5.0
_WATCH_MS_MIN: Final = 1
# While a peer owes a sign of life a socket looks so often. A pause of its own counts as one look.
_LOOKS_PER_TIMEOUT: Final = 4
_NS_PER_MS: Final = 1_000_000
_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class SocketPatience:
    """How long a socket waits, in milliseconds; None is for ever.

    After `keepalive_ms` without a byte from the peer it asks for a sign of life, and ends after
    `keepalive_timeout_ms` without one. It ends where the peer's settings do not come within
    `greeting_ms`, once there was no stream for `idle_ms`, and in any case after `age_ms`.
    """

    keepalive_ms: int | None = None
    keepalive_timeout_ms: int = 20_000
    greeting_ms: int | None = None
    idle_ms: int | None = None
    age_ms: int | None = None


class StreamOwner(Protocol):
    """What is told of one stream."""

    def fields_received(self, event: FieldsReceived) -> None:
        """Take fields."""
        ...

    def data_received(self, event: DataReceived) -> None:
        """Take data; the owner gives their bytes back when they are used."""
        ...

    def ended_early(self, code: int, message: str) -> None:
        """Learn that the stream was reset, or that its connection is gone."""
        ...

    def may_write(self) -> None:
        """Learn that everything that waited has left."""
        ...


class Http2Socket(asyncio.Protocol):
    """Carries the bytes of one connection; its owner says what becomes of streams."""

    transport: asyncio.Transport

    def __init__(self, role: Role, limits: Limits, patience: SocketPatience) -> None:
        self._now_ms = monotonic_ms()
        self.connection = Connection(role, limits, self._now_ms)
        self.owners: dict[int, StreamOwner] = {}
        """Who is told of a stream, until it has ended."""
        self.tally = Tally()
        """The calls of this connection."""
        self.messages_sent = self.messages_received = 0
        self.heard_ms = self._now_ms
        """When the last byte of the peer came, by the monotonic clock."""
        self.closes_when_idle = False
        """Whether it closes with its last stream."""
        self.is_gone = False
        """Whether nothing comes or goes any more."""
        self.why = ""
        """Why it is gone."""
        self.made: Callable[[], None] = lambda: None
        """Called once the socket is connected."""
        self.lost: Callable[[], None] = lambda: None
        """Called once nothing comes or goes any more."""
        self.closed: Callable[[], None] = lambda: None
        """Called once the socket itself is closed."""
        self.emptied: Callable[[], None] = lambda: None
        """Called when everything that waited on a stream has left."""
        self.opened: Callable[[FieldsReceived], None] | None = None
        """Called with the request of a new stream of the peer."""
        self.goes_away: Callable[[GoingAway], None] = lambda _: None
        self.settled: Callable[[SettingsReceived], None] = lambda _: None
        self._receiver = FrameReceiver(self.connection)
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._is_flush_due = False
        self._begun_ms = self._used_ms = self._now_ms
        self._is_asked = self._is_greeted = self._is_closing = False
        self._is_connected = self._has_begun = False
        self._spoken_for: LoopWatch | None = None
        self._due_ms = self._now_ms
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            FieldsReceived: self._fields,
            DataReceived: self._data,
            StreamReset: self._reset,
            QueueEmptied: self._emptied,
            SettingsReceived: self._settings,
            PingAnswered: lambda _: None,  # any byte is a sign of life
            GoingAway: self._going_away,
            ConnectionFailed: self._failed,
        }

    # --- For asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._is_connected = True
        # What came before, such as TLS, counts neither as silence nor as idleness.
        self._begun_ms = self.heard_ms = self._used_ms = self._due_ms = monotonic_ms()
        if not speaks_http2(self.transport):
            self.abort(f"the peer did not agree on HTTP/2, which ALPN calls {ALPN!r}")
            return
        self.connection.begin()
        self.flush_soon()
        self._watch()
        self.made()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self.heard_ms, self._is_asked = monotonic_ms(), False
        for event in self._receiver.receive(data, self.heard_ms):
            self._handle(event)
        self.flush_soon()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everybody that it is over."""
        self._end(f"connection lost: {error}" if error else "Socket closed")
        if self._closing is not None:
            self._closing.cancel()
        self.closed()

    def pause_writing(self) -> None:
        """Let data wait in their streams."""
        self.connection.hold(is_held=True)

    def resume_writing(self) -> None:
        """Go on."""
        self.connection.hold(is_held=False)
        self.flush_soon()

    # --- For owners ---

    def flush_soon(self) -> None:
        """Send what is ready at the end of this turn of the event loop."""
        if not self._is_flush_due and not self.is_gone:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def disown(self, stream_id: int) -> None:
        """Tell nobody of a stream any more."""
        self.owners.pop(stream_id, None)
        self._used_ms = monotonic_ms()
        if self.closes_when_idle and not self.owners:
            self.close()

    def close(self) -> None:
        """Send what is ready, and close."""
        if not self.is_gone and not self._is_closing:
            self.connection.close()
            self._flush()
            self._close_transport()

    def _close_transport(self) -> None:
        """Close once everything is sent, and in any case soon.

        Python's transport of TLS is of no more use once it is closed a second time.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self._speak_for_itself()
        self._closing = self._loop.call_later(_CLOSE_S, self.transport.abort)
        if not self.transport.is_closing():
            self.transport.close()

    def abort(self, why: str) -> None:
        """Close at once, connected or not."""
        if not self.is_gone:
            self._speak_for_itself()
            if self._is_connected:
                self.transport.abort()
            self._end(why)

    # --- Events ---

    def _handle(self, event: Event) -> None:
        self._handlers[type(event)](event)

    def _fields(self, event: FieldsReceived) -> None:
        owner = self.owners.get(event.stream_id)
        if owner is not None:
            owner.fields_received(event)
        elif self.opened is not None and event.section.part is MessagePart.REQUEST:
            self.opened(event)

    def _data(self, event: DataReceived) -> None:
        owner = self.owners.get(event.stream_id)
        if owner is None:
            self.connection.give_back(event.stream_id, len(event.data))
        else:
            owner.data_received(event)

    def _reset(self, event: StreamReset) -> None:
        owner = self.owners.pop(event.stream_id, None)
        if owner is not None:
            owner.ended_early(event.code, event.message)

    def _emptied(self, event: QueueEmptied) -> None:
        owner = self.owners.get(event.stream_id)
        if owner is not None:
            owner.may_write()
        self.emptied()

    def _settings(self, event: SettingsReceived) -> None:
        self._is_greeted = True
        self.settled(event)

    def _going_away(self, event: GoingAway) -> None:
        self.goes_away(event)

    def _failed(self, event: ConnectionFailed) -> None:
        self._flush()
        self._close_transport()
        self._end(f"the peer broke the protocol: {event.message}")

    # --- Parts ---

    def _flush(self) -> None:
        self._is_flush_due = False
        if self.is_gone or self._is_closing:
            return
        data = self.connection.output()
        if data:
            self._write(data)
        for event in self.connection.take_events():
            self._handle(event)
        if self.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self.abort("the peer does not read")
        elif self.connection.has_more:
            self.flush_soon()

    def _write(self, data: bytes) -> None:
        """Send bytes; from the first ones on a thread may tell that this process lives."""
        if self._spoken_for is None:
            self.transport.write(data)
        else:
            with self._spoken_for.lock:
                self.transport.write(data)
        if not self._has_begun:
            self._has_begun = True
            self._spoken_for = spoken_for(self)

    def _speak_for_itself(self) -> None:
        """Have nobody else write any more: the descriptor may be another's soon."""
        if self._spoken_for is not None:
            with self._spoken_for.lock:
                self._spoken_for.speakers.pop(self, None)

    def _watch(self) -> None:
        """End what has lasted too long, and look again when something else may have."""
        now_ms = monotonic_ms()
        # Nobody was heard while this loop stood still: that is no silence of the peer.
        self.heard_ms = min(now_ms, self.heard_ms + max(0, now_ms - self._due_ms))
        left_ms = [
            left_ms
            for patience in self._patiences()
            if not self.is_gone and (left_ms := patience(now_ms)) is not None
        ]
        if left_ms and not self.is_gone and not self._is_closing:
            wait_ms = max(_WATCH_MS_MIN, min(left_ms))
            self._due_ms = now_ms + wait_ms
            self._timer = self._loop.call_later(wait_ms / _MS_PER_S, self._watch)

    def _patiences(self) -> tuple[Callable[[int], int | None], ...]:
        return (
            *(self._greeting_left_ms, self._silence_left_ms),
            *(self._idle_left_ms, self._age_left_ms),
        )

    def _greeting_left_ms(self, now_ms: int) -> int | None:
        """Return how long the first settings may still take; close if that is over."""
        if self._patience.greeting_ms is None or self._is_greeted:
            return None
        left_ms = self._begun_ms + self._patience.greeting_ms - now_ms
        if left_ms <= 0:
            self.abort("no settings came in time")
        return left_ms

    def _silence_left_ms(self, now_ms: int) -> int | None:
        """Return how long the peer may still be silent; ask for a sign of life, or close."""
        patience = self._patience
        if patience.keepalive_ms is None:
            return None
        left_ms = self.heard_ms + patience.keepalive_ms - now_ms
        if left_ms > 0:
            return left_ms
        if not self._is_asked:
            self._is_asked = True
            self.connection.ping(_PING)
            self.flush_soon()
        left_ms += patience.keepalive_timeout_ms
        if left_ms <= 0:
            self.abort("ping timeout")
        return min(left_ms, patience.keepalive_timeout_ms // _LOOKS_PER_TIMEOUT)

    def _idle_left_ms(self, now_ms: int) -> int | None:
        """Return how long there may still be no stream; close if that is over."""
        if self._patience.idle_ms is None:
            return None
        if self.owners:
            self._used_ms = now_ms
        left_ms = self._used_ms + self._patience.idle_ms - now_ms
        if left_ms <= 0:
            self.close()
        return left_ms

    def _age_left_ms(self, now_ms: int) -> int | None:
        """Return how long the connection may still last, whatever it does; close if that is
        over."""
        if self._patience.age_ms is None:
            return None
        left_ms = self._begun_ms + self._patience.age_ms - now_ms
        if left_ms <= 0:
            self.abort("the connection has lasted as long as it may")
        return left_ms

    def _end(self, why: str) -> None:
        if self.is_gone:
            return
        self.is_gone, self.why = True, why
        self._speak_for_itself()
        if self._timer is not None:
            self._timer.cancel()
        # First: whoever begins another call now must not get this socket.
        self.lost()
        owners, self.owners = self.owners, {}
        for owner in owners.values():
            owner.ended_early(-1, why)


def monotonic_ms() -> int:
    """Return the time of a clock that never goes back."""
    return time.monotonic_ns() // _NS_PER_MS
