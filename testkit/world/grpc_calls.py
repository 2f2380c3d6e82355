"""The client's side of gRPC in a world: channels and calls, below the library's own Python classes.

`grpc.aio` is two layers: Python classes that the product uses, and a core below them. Here the core
is replaced, so what a call raises, and when, is decided by the library's own code. These classes
have the methods of `cygrpc.AioChannel` and `cygrpc._AioCall` which that code calls.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import grpc
from grpc._cython import cygrpc
from grpc.aio._channel import Channel

from testkit.world.network import Dialling, Pipe, WorldConnection, place_of
from testkit.world.schedule import NS_PER_MS, NS_PER_S
from viewstamp.grpc_transport import Options
from viewstamp.limits import KIB, MIB

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess

# What may be under way, or unread, before a writer waits.
WINDOW_BYTES: Final = 1 * MIB
CREDIT_BYTES: Final = 256 * KIB
_CONNECT_NS: Final = 20 * NS_PER_S
_BACKOFF_MS: Final = 1_000
_RESOLVE_MS: Final = 30_000
_BACKOFF_MAX_MS: Final = 120_000
_NOT_CONNECTED: Final = (
    "failed to connect to all addresses; last error: UNKNOWN: {}: Failed to connect to remote host:"
    " {}"
)


def keepalive_ns(options: dict[str, Any]) -> int | None:
    """Return after how much silence a connection of these options is given up."""
    every_ms = options.get("grpc.keepalive_time_ms")
    if every_ms is None:
        return None
    return (int(every_ms) + int(options.get("grpc.keepalive_timeout_ms", 20_000))) * NS_PER_MS


class NotConnectedError(Exception):
    """There is no connection; the message says why, in the library's words."""


class WorldChannel(Channel):
    """A channel of the library, with the core of a world."""

    def __init__(self, process: WorldProcess, address: str, options: Options) -> None:
        """Connect at the first call."""
        self._unary_unary_interceptors: list[Any] = []
        self._unary_stream_interceptors: list[Any] = []
        self._stream_unary_interceptors: list[Any] = []
        self._stream_stream_interceptors: list[Any] = []
        self._loop = process.loop
        self._channel: Any = ChannelCore(process, address, dict(options))
        self._active_calls: Any = _CallsInOrder()


class _CallsInOrder:
    """The calls of a channel that still exist, in the order in which they were made.

    The library has a set, whose order is that of addresses in memory.
    """

    def __init__(self) -> None:
        self._calls: WeakKeyDictionary[Any, None] = WeakKeyDictionary()

    def add(self, call: Any) -> None:
        """Remember a call."""
        self._calls[call] = None

    def discard(self, call: Any) -> None:
        """Forget a call."""
        self._calls.pop(call, None)

    def clear(self) -> None:
        """Forget all."""
        self._calls.clear()

    def __iter__(self) -> Iterator[Any]:
        """Yield the calls that exist."""
        return iter(list(self._calls))


class ChannelCore:
    """One connection at a time to one address, and when the next one is tried."""

    def __init__(self, process: WorldProcess, address: str, options: dict[str, Any]) -> None:
        self.process = process
        self.address = address
        self.network = process.world.network
        self._options = options
        self._connection: WorldConnection | None = None
        self._is_dialling = False
        self._failure = ""
        self._waiting: list[tuple[asyncio.Future[None], bool]] = []
        self._failures = 0
        self._is_closed = False
        self._resolved = ""
        self._resolved_ns = 0

    # --- For the library ---

    def call(
        self, method: bytes, deadline: float | None, _: Any, wait_for_ready: bool | None, __: int
    ) -> CallCore:
        """Return the core of a new call."""
        if self._is_closed:
            raise cygrpc.UsageError("Channel is closed.")
        return CallCore(self, method.decode(), deadline, bool(wait_for_ready))

    def closed(self) -> bool:
        """Return whether it was closed."""
        return self._is_closed

    def closing(self) -> None:
        """Take no more calls."""
        self._is_closed = True

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close(self._connection.client, "Channel closed")

    def get_registered_call_handle(self, _: bytes) -> int:
        """Return 0: no method is prepared."""
        return 0

    # --- Connecting ---

    async def connection(self, *, wait_for_ready: bool) -> WorldConnection:
        """Return the connection, made if needed. Raises NotConnectedError unless it may wait."""
        while self._connection is None or self._connection.client.is_broken:
            if self._failure and not wait_for_ready:
                raise NotConnectedError(self._failure)
            self._dial()
            future: asyncio.Future[None] = self.process.loop.create_future()
            self._waiting.append((future, wait_for_ready))
            await future
        return self._connection

    def _dial(self) -> None:
        if self._is_dialling or self._failure:
            return
        self._is_dialling = True
        patience_ms = self._options.get("grpc.min_reconnect_backoff_ms")
        patience_ns = _CONNECT_NS if patience_ms is None else max(int(patience_ms), 20) * NS_PER_MS
        end_ns = self.process.world.schedule.now_ns + patience_ns
        silence_ns = keepalive_ns(self._options)
        self.network.dial(Dialling(self.process, self.place(), silence_ns, end_ns, self._dialled))

    def place(self) -> str:
        """Return where to connect. The library resolves a name again only after a while."""
        now_ns = self.process.world.schedule.now_ns
        again_ms = int(self._options.get("grpc.dns_min_time_between_resolutions_ms", _RESOLVE_MS))
        if not self._resolved or now_ns >= self._resolved_ns + again_ms * NS_PER_MS:
            place = place_of(self.process.machine.host, self.address)
            self._resolved, self._resolved_ns = self.network.resolve(place), now_ns
        return self._resolved

    def _dialled(self, connection: WorldConnection | None, why: str) -> None:
        self._is_dialling = False
        if connection is not None and self._is_closed:
            connection.close(connection.client, "Channel closed")
        self._connection = connection
        if connection is None:
            self._failed(why)
            return
        self._failures = 0
        waiting, self._waiting = self._waiting, []
        for future, _ in waiting:
            _settle(future, None)

    def _failed(self, why: str) -> None:
        """Let calls fail that do not wait, and try again after a while if others do."""
        self._failure = _NOT_CONNECTED.format(self.address, why)
        waiting, self._waiting = self._waiting, []
        for future, may_wait in waiting:
            if may_wait:
                self._waiting.append((future, True))
            else:
                _settle(future, NotConnectedError(self._failure))
        first_ms = int(self._options.get("grpc.initial_reconnect_backoff_ms", _BACKOFF_MS))
        most_ms = int(self._options.get("grpc.max_reconnect_backoff_ms", _BACKOFF_MAX_MS))
        pause_ms = min(most_ms, first_ms * (1 << min(self._failures, 16)))
        self._failures += 1
        self.process.loop.call_later(pause_ms / 1000, self._try_again)

    def _try_again(self) -> None:
        self._failure = ""
        self._waiting = [each for each in self._waiting if not each[0].done()]
        if self._waiting and not self._is_closed:
            self._dial()


class CallCore:
    """One call: what was received, how it ended, and who waits for either."""

    def __init__(
        self, channel: ChannelCore, method: str, deadline: float | None, wait_for_ready: bool
    ) -> None:
        self._channel = channel
        self._loop = channel.process.loop
        self._method = method
        self._deadline = deadline
        self._wait_for_ready = wait_for_ready
        self._status: Any = None
        self._is_locally_cancelled = False
        self._initial_metadata: Any = None
        self._callbacks: list[Callable[[], None]] = []
        self._changed = _Changed(self._loop)
        self._final: tuple[Any, ...] | None = None
        self._has_one_answer = False
        self._received: deque[bytes] = deque()
        self._pipe: Pipe | None = None
        self._connection: WorldConnection | None = None
        self._stream = 0
        self._unread_bytes = 0
        self._sent_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        if deadline is not None:
            left_s = max(0.0, deadline - time.time())
            self._timer = self._loop.call_later(left_s, self._too_late)

    # --- State ---

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._status is not None

    def cancelled(self) -> bool:
        """Return whether it ended by being cancelled."""
        return self.done() and bool(self._status.code() == grpc.StatusCode.CANCELLED.value[0])

    def is_locally_cancelled(self) -> bool:
        """Return whether this side cancelled it."""
        return self._is_locally_cancelled

    def is_ok(self) -> bool:
        """Return whether it ended well."""
        return self.done() and bool(self._status.code() == grpc.StatusCode.OK.value[0])

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - time.time())

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call something once the call has ended."""
        if self.done():
            callback()
        else:
            self._callbacks.append(callback)

    def cancel(self, details: str) -> bool:
        """End it from this side."""
        if self.done():
            return False
        self._is_locally_cancelled = True
        self._end(grpc.StatusCode.CANCELLED, details)
        return True

    def set_internal_error(self, why: str) -> None:
        """End it as the library does where a write failed."""
        self._end(grpc.StatusCode.INTERNAL, "Internal error from Core", why)
        # The library then forgets with which status the call had ended.
        code = grpc.StatusCode.INTERNAL.value[0]
        self._status = cygrpc.AioRpcStatus(code, "Internal error from Core", (), why)

    async def status(self) -> Any:
        """Wait for the end, and return how it ended."""
        while self._status is None:
            await self._changed.wait()
        return self._status

    async def initial_metadata(self) -> Any:
        """Wait for the server's first metadata."""
        while self._initial_metadata is None:
            await self._changed.wait()
        return self._initial_metadata

    # --- Calls of the four shapes ---

    async def unary_unary(self, request: bytes, metadata: Any, _: Any) -> bytes | None:
        """Send a request and return its answer, None if the call failed."""
        self._has_one_answer = True
        if not await self._begin(metadata):
            return None
        self._send(("message", request))
        self._send(("half_close",))
        await self.status()
        return self._received.popleft() if self.is_ok() else None

    async def initiate_unary_stream(self, request: bytes, metadata: Any, _: Any) -> None:
        """Send a request that is answered by a stream."""
        if await self._begin(metadata):
            self._send(("message", request))
            self._send(("half_close",))
            await self.initial_metadata()

    async def stream_unary(self, metadata: Any, sent: Callable[[], None], _: Any) -> bytes | None:
        """Begin a stream that has one answer, and return it, None if the call failed."""
        self._has_one_answer = True
        if await self._begin(metadata):
            sent()
            await self.status()
        else:
            sent()
        return self._received.popleft() if self.is_ok() else None

    async def initiate_stream_stream(self, metadata: Any, sent: Callable[[], None], _: Any) -> None:
        """Begin two streams."""
        is_begun = await self._begin(metadata)
        sent()
        if is_begun:
            await self.initial_metadata()

    async def send_serialized_message(self, message: bytes) -> None:
        """Return once the transport has taken a message."""
        while self._sent_bytes > WINDOW_BYTES and not self.done():
            await self._changed.wait()
        if not self.done():
            self._sent_bytes += len(message)
            self._send(("message", message))
        await asyncio.sleep(0)
        if self.done() and not self._is_locally_cancelled:
            # It ended while this was being written: the library calls that an internal error.
            raise cygrpc.InternalError("the call ended before the message was sent")

    async def send_receive_close(self) -> None:
        """Say that nothing more is sent."""
        self._send(("half_close",))

    async def receive_serialized_message(self) -> Any:
        """Return the next message, EOF at the end."""
        while not self._received:
            if self.done():
                return cygrpc.EOF
            await self._changed.wait()
        message = self._received.popleft()
        self._end_when_read()
        self._unread_bytes += len(message)
        if self._unread_bytes >= CREDIT_BYTES:
            self._send(("credit", self._unread_bytes))
            self._unread_bytes = 0
        return message

    # --- Transport ---

    async def _connected(self) -> WorldConnection | None:
        """Return the connection, None if the call ends before: by its deadline, too."""
        connecting: asyncio.Task[WorldConnection] = self._loop.create_task(
            self._channel.connection(wait_for_ready=self._wait_for_ready)
        )
        self.add_done_callback(lambda: _call_off(connecting))
        try:
            return await connecting
        except NotConnectedError as error:
            self._end(grpc.StatusCode.UNAVAILABLE, str(error))
        except asyncio.CancelledError:
            if not self.done() or self._is_locally_cancelled:
                raise
        return None

    async def _begin(self, metadata: Any) -> bool:
        """Connect and send the first metadata; return whether the call is under way."""
        connection = await self._connected()
        if connection is None or self.done():
            return False
        listening = self._channel.network.listeners.get(connection.address)
        if listening is None:  # the server stops, and has said goodbye on this connection
            self._end(grpc.StatusCode.UNAVAILABLE, "the server takes no more calls")
            return False
        self._connection = connection
        self._stream = connection.new_stream()
        back = Pipe(connection.server, connection.client, self._take)
        served = listening.server.new_call(connection, self._stream, back)
        self._pipe = Pipe(connection.client, connection.server, served.take)
        connection.client.streams[self._stream] = self._lost
        pairs = tuple((key, value) for key, value in metadata)
        self._send(("headers", self._method, pairs, self.time_remaining()))
        return True

    def _send(self, frame: tuple[Any, ...]) -> None:
        if self._pipe is not None and not self.done():
            self._pipe.send(frame)

    def _take(self, frame: tuple[Any, ...]) -> None:
        if self.done():
            return
        kind = frame[0]
        if kind == "initial":
            self._initial_metadata = frame[1]
        elif kind == "message":
            self._received.append(frame[1])
        elif kind == "credit":
            self._sent_bytes -= frame[1]
        else:
            self._final = frame
        self._end_when_read()
        self._changed.tell()

    def _end_when_read(self) -> None:
        """End as the server said, once every message that came before was read."""
        if self._final is not None and (self._has_one_answer or not self._received):
            _, code, details, trailing = self._final
            self._end(code, details, trailing=trailing, tell=False)

    def _lost(self, why: str) -> None:
        self._end(grpc.StatusCode.UNAVAILABLE, why, tell=False)

    def _too_late(self) -> None:
        self._end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _end(
        self,
        code: grpc.StatusCode,
        details: str,
        debug: str = "",
        *,
        trailing: Any = (),
        tell: bool = True,
    ) -> None:
        if self.done():
            return
        if tell:
            self._send(("cancel",))
        if code is not grpc.StatusCode.OK:
            self._received.clear()
        if self._initial_metadata is None:
            self._initial_metadata = ()
        self._status = cygrpc.AioRpcStatus(code.value[0], details, trailing, debug or details)
        if self._connection is not None:
            self._connection.client.streams.pop(self._stream, None)
        if self._timer is not None:
            self._timer.cancel()
        self._changed.tell()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class _Changed:
    """Wakes everybody who waits for a change of a call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Return after the next change."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        await future

    def tell(self) -> None:
        """Wake them."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _settle(future, None)


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _call_off(task: asyncio.Task[Any]) -> None:
    task.cancel()
