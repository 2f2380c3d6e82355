"""A lean generator of unary gRPC calls, the same for every system that is measured.

A general gRPC library in Python spends more on a call than etcd does, and would measure itself.
This module speaks just enough HTTP/2: it encodes header blocks once, sends bodies within the
connection's window, and reads only the frames of a response. A response that carries no data is a
failure, since gRPC errors have trailers alone.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_FRAME_HEADER_BYTES: Final = 9
_INITIAL_WINDOW_BYTES: Final = 65_535
_WINDOW_BYTES_MAX: Final = 2**31 - 1
_FRAME_BYTES_MAX: Final = 16_384
_SETTING_INITIAL_WINDOW: Final = 4
# The window is updated once so many bytes were read.
_WINDOW_REFILL_BYTES: Final = 2**29
# Positions in HPACK's static table.
_POST, _HTTP, _PATH, _AUTHORITY, _AUTHORIZATION, _CONTENT_TYPE = 0x83, 0x86, 4, 1, 23, 31


class CallFailed(Exception):  # noqa: N818 - reads as the sentence it is
    """The other side refused a call, or ended the connection."""


@dataclass(slots=True)
class Samples:
    """The latencies of the calls that were answered during the measurement, and its duration."""

    warm_up_s: float
    duration_s: float
    started: float = field(default_factory=time.perf_counter)
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    commands: int = 0

    @property
    def ends(self) -> float:
        """The time at which to stop sending."""
        return self.started + self.warm_up_s + self.duration_s

    def add(self, sent: float, now: float, commands: int = 1) -> None:
        """Note an answer; answers during the warm-up, or too late, do not count."""
        if self.started + self.warm_up_s <= now < self.ends:
            self.latencies_s.append(now - sent)
            self.commands += commands


@dataclass(frozen=True, slots=True)
class CallShape:
    """How calls are made: how many at a time, over how many connections, what each counts for."""

    in_flight: int
    connections: int
    commands: int = 1


def _integer(value: int, prefix_bits: int, first: int = 0) -> bytes:
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((first | value,))
    encoded = bytearray((first | limit,))
    value -= limit
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _text(text: str) -> bytes:
    return _integer(len(text), 7) + text.encode()


def header_block(path: str, authority: str, token: str = "") -> bytes:
    """Return the header block of a call, in literals that no table remembers."""
    block = bytes((_POST, _HTTP)) + _integer(_PATH, 4) + _text(path)
    block += _integer(_AUTHORITY, 4) + _text(authority)
    block += _integer(_CONTENT_TYPE, 4) + _text("application/grpc")
    block += b"\0" + _text("te") + _text("trailers")
    if token:
        block += _integer(_AUTHORIZATION, 4) + _text(f"Bearer {token}")
    return block


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def _data_frames(stream: int, body: bytes) -> bytes:
    parts = [body[at : at + _FRAME_BYTES_MAX] for at in range(0, len(body), _FRAME_BYTES_MAX)]
    last = len(parts) - 1
    return b"".join(
        _frame(_DATA, _END_STREAM if index == last else 0, stream, part)
        for index, part in enumerate(parts)
    )


class Connection(asyncio.Protocol):
    """One connection that keeps a number of calls in flight until the samples are complete."""

    def __init__(
        self,
        block: bytes,
        body: Callable[[], bytes],
        in_flight: int,
        samples: Samples,
        commands: int,
    ) -> None:
        self._block = block
        self._body = body
        self._in_flight_max = in_flight
        self._samples = samples
        self._commands_per_call = commands
        self._buffer = b""
        self._next_stream = 1
        self._sent: dict[int, float] = {}
        self._answered: set[int] = set()
        self._window = _INITIAL_WINDOW_BYTES  # bodies that may still be sent, of all streams
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._read_bytes = 0
        self._transport: asyncio.Transport
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the connection and send the first calls."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        window = _SETTING_INITIAL_WINDOW.to_bytes(2, "big") + _WINDOW_BYTES_MAX.to_bytes(4, "big")
        grown = (_WINDOW_BYTES_MAX - _INITIAL_WINDOW_BYTES).to_bytes(4, "big")
        opening = _PREFACE + _frame(_SETTINGS, 0, 0, window) + _frame(_WINDOW_UPDATE, 0, 0, grown)
        transport.write(opening)
        for _ in range(self._in_flight_max):
            self._call()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail, unless everything was answered."""
        self._fail(f"the connection was lost: {error}")

    def data_received(self, data: bytes) -> None:
        """Parse the frames, and send a new call for each answered one."""
        self._read_bytes += len(data)
        buffer = self._buffer + data if self._buffer else data
        at, size = 0, len(buffer)
        while at + _FRAME_HEADER_BYTES <= size:
            end = at + _FRAME_HEADER_BYTES + int.from_bytes(buffer[at : at + 3], "big")
            if end > size:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            if kind == _DATA:
                self._answered.add(stream)
            elif kind != _HEADERS:
                self._control(kind, flags, stream, buffer[at + _FRAME_HEADER_BYTES : end])
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                self._settle(stream)
            at = end
        self._buffer = buffer[at:]
        self._flush()

    def _settle(self, stream: int) -> None:
        now = time.perf_counter()
        sent = self._sent.pop(stream)
        if stream not in self._answered:
            self._fail("a call was refused: its answer has no data")
            return
        self._answered.remove(stream)
        self._samples.add(sent, now, self._commands_per_call)
        if now < self._samples.ends:
            self._call()
        elif not self._sent and not self.done.done():
            self.done.set_result(None)

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == _SETTINGS and not flags & _ACK:
            self._transport.write(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind in (_RESET, _GO_AWAY):
            self._fail(f"the other side ended a call or the connection: {payload!r}")

    def _call(self) -> None:
        stream, body = self._next_stream, self._body()
        self._next_stream += 2
        self._sent[stream] = time.perf_counter()
        message = b"\0" + len(body).to_bytes(4, "big") + body
        head = _frame(_HEADERS, _END_HEADERS, stream, self._block)
        self._waiting.append((head + _data_frames(stream, message), len(message)))

    def _flush(self) -> None:
        ready = []
        if self._read_bytes > _WINDOW_REFILL_BYTES:
            ready.append(_frame(_WINDOW_UPDATE, 0, 0, self._read_bytes.to_bytes(4, "big")))
            self._read_bytes = 0
        while self._waiting and self._waiting[0][1] <= self._window:
            frames, size = self._waiting.popleft()
            self._window -= size
            ready.append(frames)
        if ready:
            self._transport.write(b"".join(ready))

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(CallFailed(why))


async def keep_in_flight(
    address: str, block: bytes, body: Callable[[], bytes], call: CallShape, samples: Samples
) -> None:
    """Call over and over until the samples are complete. Raises CallFailed, OSError."""
    host, _, port = address.rpartition(":")
    share = -(-call.in_flight // call.connections)
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(
            lambda: Connection(block, body, share, samples, call.commands), host, int(port)
        )
        for _ in range(call.connections)
    ]
    try:
        await asyncio.gather(*(connection.done for _, connection in opened))
    finally:
        for transport, _ in opened:
            transport.abort()
