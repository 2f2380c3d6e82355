"""A channel in the shape of `grpc.aio.Channel`: one connection at a time, made when needed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, Self

import grpc

from viewstamp.grpc_transport import Options, TlsTexts
from viewstamp.http2 import Field, SettingsReceived, write_block, write_varying
from viewstamp.wire.binding import UNIX_PREFIX
from viewstamp.wire.client_call import ClientCall, Serialize, WireMethod
from viewstamp.wire.dialler import Dialler, words_of
from viewstamp.wire.inbox import Bell, HeldBytes
from viewstamp.wire.metadata import fields_of, timeout_field
from viewstamp.wire.options import WireOptions
from viewstamp.wire.socket import Http2Socket, monotonic_ms
from viewstamp.wire.tally import Tally

_BACKOFF_GROWTH: Final = 1.6
_MS_PER_S: Final = 1_000
_USER_AGENT: Final = b"grpc-python-viewstamp/1"
_BLOCKS_KNOWN: Final = 256
# Metadata that differ from call to call, as those of W3C Trace Context do: they are sent last.
_VARYING: Final = frozenset({"traceparent", "tracestate", "baggage"})

Metadata = Iterable[tuple[str, str | bytes]] | None


@lru_cache(maxsize=_BLOCKS_KNOWN)
def _head_block(path: str, authority: str, scheme: str, metadata: tuple[Any, ...]) -> bytes:
    """Return the fields of a request that are likely to be sent again."""
    begin: list[Field] = [
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", _USER_AGENT),
    ]
    return write_block(begin + fields_of(metadata))


class _Callable:
    """A method of one kind; calling it begins a call."""

    def __init__(self, channel: WireChannel, method: WireMethod, *, sends_one: bool) -> None:
        self._channel = channel
        self._method = method
        self._sends_one = sends_one

    def __call__(
        self,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Metadata = None,
        wait_for_ready: bool | None = None,
        **_: Any,
    ) -> ClientCall:
        """Begin a call; a method that sends a stream takes an iterator, or none.

        Raises UsageError if the channel is closed, and whatever the serializer does.
        """
        # All that may fail comes first: a call that has begun has to end.
        self._channel.check_open()
        block = self._channel.request_block(self._method.path, metadata)
        only = self._method.written(request) if self._sends_one else b""
        call = ClientCall(self._channel, self._method, block, timeout)
        self._channel.begin(call, wait_for_ready=bool(wait_for_ready))
        if self._sends_one:
            call.send_only(only)
        elif request is not None:
            call.feed(request)
        return call


class WireChannel:
    """Makes calls to one address."""

    def __init__(self, address: str, options: Options, tls: TlsTexts | None = None) -> None:
        """Raises UnusableTexts, UnknownOption."""
        self.options = WireOptions.of(options)
        self.held = HeldBytes(self.options.received_bytes_max)
        """What is held of all messages that came."""
        self.address = address
        self.tally = Tally()
        """The calls of all connections."""
        self._authority = "localhost" if address.startswith(UNIX_PREFIX) else address
        self._authority = self.options.server_name or self._authority
        self._dialler = Dialler(address, self.options, tls)
        self._scheme = "http" if tls is None else "https"
        self._next_backoff_ms = float(self.options.backoff_ms)
        self._socket: Http2Socket | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failed_until_s = 0.0
        self._failure = ""
        self._waiting: dict[ClientCall, None] = {}
        """Calls without a stream, in their order."""
        self._calls: dict[ClientCall, bool] = {}
        """Calls under way, and whether each waits in spite of failures."""
        self._leaving: dict[Http2Socket, None] = {}
        """Sockets whose servers take no new calls."""
        self._bell = Bell()
        self._is_closed = False

    # --- In the shape of the library ---

    def unary_unary(self, method: str, request_serializer: Serialize = None, response_deserializer: Callable[[bytes], Any] | None = None, **_: Any) -> Any:  # fmt: skip # noqa: E501
        """Return a method that sends one message and is answered by one."""
        made = WireMethod(method, request_serializer, response_deserializer)
        return _Callable(self, made, sends_one=True)

    def unary_stream(self, method: str, request_serializer: Serialize = None, response_deserializer: Callable[[bytes], Any] | None = None, **_: Any) -> Any:  # fmt: skip # noqa: E501
        """Return a method that sends one message and is answered by many."""
        made = WireMethod(method, request_serializer, response_deserializer)
        return _Callable(self, made, sends_one=True)

    def stream_unary(self, method: str, request_serializer: Serialize = None, response_deserializer: Callable[[bytes], Any] | None = None, **_: Any) -> Any:  # fmt: skip # noqa: E501
        """Return a method that sends many messages and is answered by one."""
        made = WireMethod(method, request_serializer, response_deserializer)
        return _Callable(self, made, sends_one=False)

    def stream_stream(self, method: str, request_serializer: Serialize = None, response_deserializer: Callable[[bytes], Any] | None = None, **_: Any) -> Any:  # fmt: skip # noqa: E501
        """Return a method that sends and is answered by many messages."""
        made = WireMethod(method, request_serializer, response_deserializer)
        return _Callable(self, made, sends_one=False)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return whether calls are possible."""
        if self._is_closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if self._socket is not None:
            return grpc.ChannelConnectivity.READY
        if self._connecting is None and try_to_connect:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        if self._connecting is not None:
            return grpc.ChannelConnectivity.CONNECTING
        has_failed = time.monotonic() < self._failed_until_s
        return (
            grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if has_failed
            else grpc.ChannelConnectivity.IDLE
        )

    async def close(self, grace: float | None = None) -> None:
        """Close, after `grace` seconds for calls under way; those that are left are cancelled."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace or 0):
                while self._calls:
                    await self._bell.wait()
        for call in list(self._calls):
            call.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        for socket in self.sockets:
            socket.close()

    async def __aenter__(self) -> Self:
        """Return the channel."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    # --- For calls ---

    def request_block(self, path: str, metadata: Metadata) -> bytes:
        """Return the fields of a request. Raises ValueError, TypeError for wrong metadata."""
        given = [(key, value) for key, value in metadata or ()]
        likely = tuple([each for each in given if each[0] not in _VARYING])
        block = _head_block(path, self._authority, self._scheme, likely)
        if len(likely) == len(given):
            return block
        return block + write_varying(fields_of(each for each in given if each[0] in _VARYING))

    def check_open(self) -> None:
        """Raise UsageError once the channel is closed."""
        if self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")

    def begin(self, call: ClientCall, *, wait_for_ready: bool) -> None:
        """Give a call a stream, now or once there is one."""
        self._calls[call] = wait_for_ready
        self.tally.begin(monotonic_ms())
        self.place(call)

    def place(self, call: ClientCall) -> None:
        """Give a call under way a stream, or have it wait for one; also for a second time."""
        if self._start(call):
            return
        if self._socket is None and self._connecting is None:
            if time.monotonic() < self._failed_until_s and not self._calls[call]:
                asyncio.get_running_loop().call_soon(
                    call.fail, grpc.StatusCode.UNAVAILABLE, self._failure
                )
                return
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        self._waiting[call] = None

    @property
    def sockets(self) -> list[Http2Socket]:
        """The connection for new calls, and those that older ones are left on."""
        return [*self._leaving, *([] if self._socket is None else [self._socket])]

    def ended(self, call: ClientCall) -> None:
        """Forget a call; another one may have its stream."""
        self.tally.end(is_ok=call.has_succeeded)
        self._calls.pop(call, None)
        self._waiting.pop(call, None)
        self._bell.ring()
        self._start_waiting()

    def _start(self, call: ClientCall) -> bool:
        socket = self._socket
        if socket is None:
            return False
        connection = socket.connection
        if not connection.may_open:
            self._leave(socket)
            return False
        if len(connection.streams) >= connection.peer_streams_max:
            return False
        block = call.block
        left_s = call.timeout_left_s
        if left_s is not None:
            block += write_varying([(b"grpc-timeout", timeout_field(left_s))])
        call.start(socket, socket.connection.open(block))
        return True

    def _start_waiting(self) -> None:
        for call in list(self._waiting):
            if self._socket is None or not self._start(call):
                return
            self._waiting.pop(call, None)

    # --- Connecting ---

    async def _connect(self) -> None:
        """Connect once, or again and again while a call waits in spite of failures."""
        while True:
            try:
                socket = await self._dialler.dial()
            except Exception as error:  # an address that is none, among others
                if not self._failed(error):
                    self._connecting = None
                    return
                await asyncio.sleep(max(0.0, self._failed_until_s - time.monotonic()))
                continue
            self._connecting = None
            self._next_backoff_ms = float(self.options.backoff_ms)
            self._use(socket)
            return

    def _failed(self, error: Exception) -> bool:
        """Note a failure, and tell it to calls; return whether some wait in spite of it."""
        self._failed_until_s = time.monotonic() + self._next_backoff_ms / _MS_PER_S
        self._next_backoff_ms = min(
            self.options.backoff_ms_max, self._next_backoff_ms * _BACKOFF_GROWTH
        )
        why = words_of(error)
        self._failure = (
            f"failed to connect to all addresses; last error: UNAVAILABLE: {self.address}: {why}"
        )
        for call in [call for call in self._waiting if not self._calls[call]]:
            call.fail(grpc.StatusCode.UNAVAILABLE, self._failure)
        return bool(self._waiting)

    def _use(self, socket: Http2Socket) -> None:
        self._socket = socket
        socket.settled = self._settled
        socket.goes_away = lambda _: self._leave(socket)
        socket.lost = lambda: self._lost(socket)
        self._start_waiting()

    def _settled(self, _: SettingsReceived) -> None:
        self._start_waiting()

    def _leave(self, socket: Http2Socket) -> None:
        """Make new calls elsewhere; those that are served go on."""
        self._leaving[socket] = None
        socket.closes_when_idle = True
        if not socket.owners:
            socket.close()
        self._forget(socket)

    def _lost(self, socket: Http2Socket) -> None:
        self._leaving.pop(socket, None)
        self._forget(socket)

    def _forget(self, socket: Http2Socket) -> None:
        if self._socket is not socket:
            return
        self._socket = None
        if self._waiting and self._connecting is None and not self._is_closed:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
