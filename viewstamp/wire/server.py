"""A server in the shape of `grpc.aio.Server`: sockets, handlers, and an end in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from viewstamp.grpc_transport import Options, TlsTexts
from viewstamp.http2 import (
    ErrorCode,
    Field,
    FieldSection,
    FieldsReceived,
    Limits,
    Role,
    write_block,
)
from viewstamp.wire.acceptor import Acceptor
from viewstamp.wire.binding import UNIX_PREFIX, bind_sockets, peer_name
from viewstamp.wire.inbox import Bell, HeldBytes
from viewstamp.wire.metadata import Metadata, metadata_of
from viewstamp.wire.options import WireOptions
from viewstamp.wire.served_call import WireCall
from viewstamp.wire.socket import Http2Socket, SocketPatience
from viewstamp.wire.tally import Tally
from viewstamp.wire.tls import proven_by, server_context

# How long handlers that were cancelled may take to end.
_LAST_S: Final = 5.0
_POST: Final = b"POST"
_GRPC: Final = b"application/grpc"
_IDENTITY: Final = b"identity"
_CONTENT_TYPE: Final = b"content-type"
_ENCODING: Final = b"grpc-encoding"
_TIMEOUT: Final = b"grpc-timeout"
# Fields that say whether and how a request is served.
_GOVERNING: Final = frozenset({_CONTENT_TYPE, _ENCODING})
_log = logging.getLogger(__name__)

_NO_GRPC_BLOCK: Final = write_block([(b":status", b"415")])
_NO_POST_BLOCK: Final = write_block([(b":status", b"405"), (b"allow", b"POST")])


@dataclass(frozen=True)
class _CallDetails:
    method: str
    invocation_metadata: Metadata


@dataclass(frozen=True, slots=True)
class _Request:
    """What a section of fields means; it is made once for equal blocks."""

    path: str
    metadata: Metadata
    timeout: bytes | None
    refusal: bytes
    encoding: str
    """How messages are compressed; empty if they are not."""


@dataclass(frozen=True, slots=True)
class _Client:
    """Who is at the other end of a socket, by its address and by what its certificate proves, and
    what is held of its messages."""

    name: str
    proven: Mapping[str, list[bytes]]
    held: HeldBytes


class WireServer:
    """Serves what its handlers know."""

    def __init__(
        self, options: Options, bind: Callable[[str], Sequence[socket.socket]] = bind_sockets
    ) -> None:
        """Raises UnknownOption."""
        self.options = WireOptions.of(options)
        self._bind = bind
        self._limits = Limits(
            streams_max=self.options.streams_max,
            section_bytes_max=self.options.fields_bytes_max,
            block_bytes_max=self.options.fields_bytes_max,
        )
        self._patience = SocketPatience(
            self.options.keepalive_ms,
            self.options.silence_ms,
            self.options.handshake_ms,
            self.options.idle_ms,
            self.options.age_ms,
        )
        self.listening: list[socket.socket] = []
        """Where connections are accepted."""
        self._generic: list[grpc.GenericRpcHandler] = []
        self._registered: dict[str, Any] = {}
        self._acceptors: list[Acceptor] = []
        self.tally = Tally()
        """The calls of all connections, also of those that are gone."""
        self._sockets: dict[Http2Socket, _Client] = {}
        self._calls: dict[WireCall, None] = {}
        self._is_stopping = False
        self._progress = Bell()
        self._stopped = asyncio.Event()

    # --- In the shape of the library ---

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve what these handlers know."""
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Serve the methods of a service."""
        for name, handler in handlers.items():
            self._registered[f"/{service}/{name}"] = handler

    def add_insecure_port(self, address: str) -> int:
        """Bind an address; return its port, 1 for a socket. Raises RuntimeError if it is taken."""
        return self._listen(address, None)

    def add_tls_port(self, address: str, texts: Callable[[], TlsTexts]) -> int:
        """Bind an address whose connections are encrypted; each handshake takes the present texts.

        Return the port. Raises RuntimeError if the address is taken, UnusableTexts.
        """
        known: dict[TlsTexts, ssl.SSLContext] = {}

        def context() -> ssl.SSLContext:
            newest = texts()
            if newest not in known:
                known.clear()
                known[newest] = server_context(newest)
            return known[newest]

        context()  # whoever binds learns at once that the texts are of no use
        return self._listen(address, context)

    def _listen(self, address: str, context: Callable[[], ssl.SSLContext] | None) -> int:
        try:
            bound = self._bind(address)
        except OSError as error:
            raise RuntimeError(f"Failed to bind to address {address}: {error}") from error
        self.listening += bound
        self._acceptors += [
            Acceptor(each, self._socket, context, self.options.handshake_ms) for each in bound
        ]
        return 1 if address.startswith(UNIX_PREFIX) else int(bound[0].getsockname()[1])

    async def start(self) -> None:
        """Begin to listen."""
        for acceptor in self._acceptors:
            acceptor.start()

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; cancel those that are not done after `grace` seconds."""
        self._is_stopping = True
        for acceptor in self._acceptors:
            await acceptor.close()
        self.say_goodbye()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace or 0):
                while self._is_busy:
                    await self._progress.wait()
        for each in self._sockets:
            each.connection.refuse_new()
        tasks = [call.task for call in self._calls if call.task is not None]
        for call in list(self._calls):
            call.stop()
        for task in tasks:
            task.cancel()  # also of a handler that goes on after its answer
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_S)
        for each in list(self._sockets):
            each.close()
        self._stopped.set()

    def say_goodbye(self) -> None:
        """Ask all clients to make new calls on new connections; those under way go on."""
        for each in self._sockets:
            each.connection.announce_end()
            each.flush_soon()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` has come to its end."""
        return self._stopped.is_set()

    @property
    def sockets(self) -> Collection[Http2Socket]:
        """The connections of clients, the oldest first."""
        return self._sockets.keys()

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._sockets)

    @property
    def _is_busy(self) -> bool:
        return bool(self._calls) or any(each.connection.has_waiting for each in self._sockets)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end of `stop`; return whether the time was too short."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._stopped.wait()
        return not self._stopped.is_set()

    # --- Sockets ---

    def _socket(self) -> Http2Socket:
        made = Http2Socket(Role.SERVER, self._limits, self._patience)
        made.made = lambda: self._connected(made)
        made.closed = lambda: self._forget(made)
        made.emptied = self._progress.ring
        made.opened = lambda event: self._opened(made, event)
        return made

    def _connected(self, made: Http2Socket) -> None:
        if self._is_stopping or self._is_full:
            made.abort("too many connections")
            return
        held = HeldBytes(self.options.received_bytes_max)
        name, proven = peer_name(made.transport), proven_by(made.transport)
        self._sockets[made] = _Client(name, proven, held)

    @property
    def _is_full(self) -> bool:
        most = self.options.connections_max
        return most is not None and len(self._sockets) >= most

    def _forget(self, made: Http2Socket) -> None:
        self._sockets.pop(made, None)

    def peer_of(self, made: Http2Socket) -> str:
        """Return the address of a client."""
        client = self._sockets.get(made)
        return "" if client is None else client.name

    def proven_by(self, made: Http2Socket) -> Mapping[str, list[bytes]]:
        """Return what a client has proven to be."""
        client = self._sockets.get(made)
        return {} if client is None else client.proven

    # --- Calls ---

    def _opened(self, made: Http2Socket, event: FieldsReceived) -> None:
        section = event.section
        request = _request_of(section)
        connection = made.connection
        if event.stream_id not in connection.streams:
            return  # it was taken back at once
        if request.refusal:
            connection.send_trailers(event.stream_id, request.refusal)
            connection.reset(event.stream_id, ErrorCode.NO_ERROR)
            return
        call = WireCall(self, made, event.stream_id, self._sockets[made].held)
        made.owners[event.stream_id] = call
        self._calls[call] = None
        for tally in (self.tally, made.tally):
            tally.begin(made.heard_ms)
        handler, refusal = self._chosen(request)
        if refusal is not None:
            call.refuse(*refusal)
            self.ended(call)
            return
        if event.is_end:
            call.fields_received(event)
        call.begin(request.path, request.timeout, request.metadata, handler)

    def _chosen(self, request: _Request) -> tuple[Any, tuple[grpc.StatusCode, str] | None]:
        """Return what serves a call, or why nothing does."""
        if self._is_stopping:
            return None, (grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        if request.encoding:
            text = f"messages compressed with {request.encoding!r} are not taken"
            return None, (grpc.StatusCode.UNIMPLEMENTED, text)
        try:
            handler = self._handler_of(request)
        except Exception as error:
            _log.exception("Unexpected exception raised by the handlers of %s", request.path)
            return None, (grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
        if handler is None:
            return None, (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        return handler, None

    def _handler_of(self, request: _Request) -> Any:
        registered = self._registered.get(request.path)
        if registered is not None:
            return registered
        details: Any = _CallDetails(request.path, request.metadata)
        handlers = (generic.service(details) for generic in self._generic)
        return next((handler for handler in handlers if handler is not None), None)

    def ended(self, call: WireCall) -> None:
        """Forget a call."""
        del self._calls[call]
        self.tally.end(is_ok=call.has_succeeded)
        call.socket.tally.end(is_ok=call.was_answered)
        self._progress.ring()


def _request_of(section: FieldSection) -> _Request:
    request: _Request | None = section.memo
    if request is None:
        rest = dict(section.rest)
        if section.head is None or _GOVERNING & rest.keys():
            request = _whole_request(section)
        else:
            request = _longer_request(_request_of(section.head), section.rest, rest)
        section.memo = request
    return request


def _whole_request(section: FieldSection) -> _Request:
    fields = dict(section.fields)
    refusal = b""
    if section.pseudo[b":method"] != _POST:
        refusal = _NO_POST_BLOCK
    elif not fields.get(_CONTENT_TYPE, b"").startswith(_GRPC):
        refusal = _NO_GRPC_BLOCK
    path = section.pseudo[b":path"].decode("latin-1")
    encoding = fields.get(_ENCODING, _IDENTITY)
    compression = "" if encoding == _IDENTITY else encoding.decode("latin-1")
    metadata = metadata_of(section.fields)
    return _Request(path, metadata, fields.get(_TIMEOUT), refusal, compression)


def _longer_request(
    head: _Request, rest: Sequence[Field], values: Mapping[bytes, bytes]
) -> _Request:
    """Return the request of a head and of fields that do not govern how it is served."""
    metadata = (*head.metadata, *metadata_of(rest))
    timeout = values.get(_TIMEOUT, head.timeout)
    return _Request(head.path, metadata, timeout, head.refusal, head.encoding)
