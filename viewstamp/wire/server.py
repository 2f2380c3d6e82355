"""A server in the shape of `grpc.aio.Server`: sockets, handlers, and an end in order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from viewstamp.grpc_transport import Options
from viewstamp.http2 import (
    ErrorCode,
    FieldSection,
    FieldsReceived,
    Limits,
    Role,
    write_block,
)
from viewstamp.wire.inbox import Bell, HeldBytes
from viewstamp.wire.messages import MESSAGE_BYTES_MAX
from viewstamp.wire.metadata import Metadata, metadata_of
from viewstamp.wire.served_call import WireCall
from viewstamp.wire.socket import Http2Socket, SocketPatience

_UNIX: Final = "unix:"
_BACKLOG: Final = 1_024
# How long handlers that were cancelled may take to end.
_LAST_S: Final = 5.0
_POST: Final = b"POST"
_GRPC: Final = b"application/grpc"
_IDENTITY: Final = b"identity"
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
    refusal: bytes
    encoding: str
    """How messages are compressed; empty if they are not."""


@dataclass(frozen=True, slots=True)
class _Client:
    """Who is at the other end of a socket, and what is held of its messages."""

    name: str
    held: HeldBytes


class WireServer:
    """Serves what its handlers know."""

    def __init__(self, options: Options) -> None:
        given = dict(options)
        self.message_bytes_max: int = given.get(
            "grpc.max_receive_message_length", MESSAGE_BYTES_MAX
        )
        fields_bytes_max = given.get("grpc.absolute_max_metadata_size", Limits().section_bytes_max)
        self._limits = Limits(
            streams_max=given.get("grpc.max_concurrent_streams", 100),
            section_bytes_max=fields_bytes_max,
            block_bytes_max=fields_bytes_max,
        )
        self._connections_max = given.get("grpc.max_allowed_incoming_connections")
        self._patience = SocketPatience(
            given.get("grpc.keepalive_time_ms"), given.get("grpc.keepalive_timeout_ms", 20_000)
        )
        self._generic: list[grpc.GenericRpcHandler] = []
        self._registered: dict[str, Any] = {}
        self._bound: list[socket.socket] = []
        self._listening: list[asyncio.Server] = []
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
        try:
            bound = _bind(address)
        except OSError as error:
            raise RuntimeError(f"Failed to bind to address {address}: {error}") from error
        self._bound.append(bound)
        return 1 if address.startswith(_UNIX) else int(bound.getsockname()[1])

    def add_secure_port(self, address: str, credentials: Any) -> int:
        """Refuse: nothing is encrypted here yet. Raises RuntimeError."""
        raise RuntimeError("this transport has no encryption yet: use the library's")

    async def start(self) -> None:
        """Begin to listen."""
        loop = asyncio.get_running_loop()
        for bound in self._bound:
            self._listening.append(
                await loop.create_server(self._socket, sock=bound, backlog=_BACKLOG)
            )

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; cancel those that are not done after `grace` seconds."""
        self._is_stopping = True
        for listening in self._listening:
            listening.close()
        self.say_goodbye()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace or 0):
                while self._is_busy:
                    await self._progress.wait()
        for each in self._sockets:
            each.connection.refuse_new()
        tasks = [call.task for call in self._calls if call.task is not None]
        for call in list(self._calls):
            call.cancel()
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
        if self._is_stopping or len(self._sockets) >= (self._connections_max or 2**31):
            made.abort("too many connections")
            return
        held = HeldBytes(self.message_bytes_max)
        self._sockets[made] = _Client(_peer_name(made.transport), held)

    def _forget(self, made: Http2Socket) -> None:
        self._sockets.pop(made, None)

    def peer_of(self, made: Http2Socket) -> str:
        """Return the address of a client."""
        client = self._sockets.get(made)
        return "" if client is None else client.name

    # --- Calls ---

    def _opened(self, made: Http2Socket, event: FieldsReceived) -> None:
        section = event.section
        if section.memo is None:
            section.memo = _request_of(section)
        request: _Request = section.memo
        connection = made.connection
        if event.stream_id not in connection.streams:
            return  # it was taken back at once
        if request.refusal:
            connection.send_trailers(event.stream_id, request.refusal)
            connection.reset(event.stream_id, ErrorCode.NO_ERROR)
            return
        call = WireCall(self, made, event.stream_id, self._sockets[made].held)
        made.owners[event.stream_id] = call
        if self._is_stopping:
            call.refuse(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            return
        if request.encoding:
            text = f"messages compressed with {request.encoding!r} are not taken"
            call.refuse(grpc.StatusCode.UNIMPLEMENTED, text)
            return
        handler = self._handler_of(request)
        if handler is None:
            call.refuse(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        self._calls[call] = None
        if event.is_end:
            call.fields_received(event)
        call.begin(request.path, section.fields, request.metadata, handler)

    def _handler_of(self, request: _Request) -> Any:
        registered = self._registered.get(request.path)
        if registered is not None:
            return registered
        details: Any = _CallDetails(request.path, request.metadata)
        handlers = (generic.service(details) for generic in self._generic)
        return next((handler for handler in handlers if handler is not None), None)

    def ended(self, call: WireCall) -> None:
        """Forget a call."""
        self._calls.pop(call, None)
        self._progress.ring()


def _request_of(section: FieldSection) -> _Request:
    fields = dict(section.fields)
    refusal = b""
    if section.pseudo[b":method"] != _POST:
        refusal = _NO_POST_BLOCK
    elif not fields.get(b"content-type", b"").startswith(_GRPC):
        refusal = _NO_GRPC_BLOCK
    path = section.pseudo[b":path"].decode("latin-1")
    encoding = fields.get(b"grpc-encoding", _IDENTITY)
    compression = "" if encoding == _IDENTITY else encoding.decode("latin-1")
    return _Request(path, metadata_of(section.fields), refusal, compression)


def _bind(address: str) -> socket.socket:
    """Return a socket that is bound to `unix:PATH` or `HOST:PORT`. Raises OSError."""
    if address.startswith(_UNIX):
        bound = socket.socket(socket.AF_UNIX)
        path = Path(address.removeprefix(_UNIX))
        with contextlib.suppress(FileNotFoundError):
            if path.is_socket():
                path.unlink()
        bound.bind(str(path))
        return bound
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)


def _peer_name(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return _UNIX
    host, port = name[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
