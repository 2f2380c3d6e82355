"""The server's side of gRPC in a world: handlers, their contexts, and how calls end.

The library's own server is compiled, so its rules are written down here again: an exception is
UNKNOWN, a call whose client is gone is cancelled, and a handler that aborts is done.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc._cython import cygrpc

from testkit.world.grpc_calls import CREDIT_BYTES, WINDOW_BYTES, keepalive_ns
from testkit.world.network import Listening, Pipe, WorldConnection, place_of

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _CallDetails:
    method: str
    invocation_metadata: Sequence[tuple[str, Any]]


class WorldServer:
    """A server of one process, in the shape of `grpc.aio.Server`."""

    def __init__(self, process: WorldProcess, options: Mapping[str, Any]) -> None:
        self.process = process
        self._keepalive_ns = keepalive_ns(dict(options))
        self._generic: list[grpc.GenericRpcHandler] = []
        self._registered: dict[str, Any] = {}
        self._addresses: list[str] = []
        self._calls: dict[int, ServedCall] = {}
        self._is_stopping = False
        self._stopped = process.loop.create_future()

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
        listeners = self.process.world.network.listeners
        address = place_of(self.process.machine.host, address)
        taken = listeners.get(address)
        if taken is not None and taken.process.is_alive:
            raise RuntimeError(f"{address} is taken by {taken.process.name}")
        self._addresses.append(address)
        port = address.rpartition(":")[2]
        return int(port) if port.isdecimal() else 1

    async def start(self) -> None:
        """Begin to listen."""
        for address in self._addresses:
            listening = Listening(self.process, self._keepalive_ns, self)
            self.process.world.network.listeners[address] = listening

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; cancel those that are not done after `grace` seconds."""
        listeners = self.process.world.network.listeners
        for address in self._addresses:
            listening = listeners.get(address)
            if listening is not None and listening.server is self:
                del listeners[address]
        self._is_stopping = True
        tasks = [call.task for call in self._calls.values()]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for call in list(self._calls.values()):
            call.cancel("the server stops")
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.process.world.network.connections.values()):
            if connection.address in self._addresses and connection.server.process is self.process:
                connection.close(connection.server, "the server has stopped")
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def wait_for_termination(self) -> None:
        """Wait for the end of `stop`."""
        await self._stopped

    # --- For calls ---

    def new_call(self, connection: WorldConnection, stream: int, back: Pipe) -> ServedCall:
        """Return what takes the frames of a new stream."""
        return ServedCall(self, connection, stream, back)

    def handler_of(self, method: str, metadata: Sequence[tuple[str, Any]]) -> Any:
        """Return the handler of a method, None if there is none."""
        if method in self._registered:
            return self._registered[method]
        details = _CallDetails(method, metadata)
        for generic in self._generic:
            handler: Any = generic.service(details)  # type: ignore[arg-type]
            if handler is not None:
                return handler
        return None

    @property
    def is_stopping(self) -> bool:
        """Whether new calls are refused."""
        return self._is_stopping

    def began(self, call: ServedCall) -> None:
        """Remember a call."""
        self._calls[call.serial] = call

    def ended(self, call: ServedCall) -> None:
        """Forget a call."""
        self._calls.pop(call.serial, None)


class ServedCall:
    """One call on the server's side; handlers know it as their context."""

    task: asyncio.Task[None]

    def __init__(
        self, server: WorldServer, connection: WorldConnection, stream: int, back: Pipe
    ) -> None:
        self.serial = server.process.world.next_serial()
        self._server = server
        self._connection = connection
        self._stream = stream
        self._pipe = back
        self._received: deque[bytes] = deque()
        self._is_half_closed = False
        self._is_gone = False
        self._has_sent_metadata = False
        self._has_sent_status = False
        self._aborted: cygrpc.AbortError | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._unread_bytes = self._sent_bytes = 0
        self._metadata: tuple[tuple[str, Any], ...] = ()
        self._deadline: float | None = None
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._trailing: Sequence[tuple[str, Any]] = ()
        self._handler: Any = None

    # --- Frames ---

    def take(self, frame: tuple[Any, ...]) -> None:
        """Take a frame of the client."""
        kind = frame[0]
        if kind == "headers":
            self._begin(*frame[1:])
        elif kind == "message":
            self._received.append(frame[1])
        elif kind == "half_close":
            self._is_half_closed = True
        elif kind == "credit":
            self._sent_bytes -= frame[1]
        else:
            self.cancel("the client cancelled")
        self._tell()

    def _begin(self, method: str, metadata: tuple[tuple[str, Any], ...], left_s: float) -> None:
        self._metadata = metadata
        self._connection.server.streams[self._stream] = self.cancel
        loop = self._server.process.loop
        if left_s is not None:
            self._deadline = time.time() + left_s
            loop.call_later(left_s, self.cancel, "the deadline has passed")
        if self._server.is_stopping:
            self._finish(grpc.StatusCode.UNAVAILABLE, "the server is stopping", ())
            return
        self._handler = self._server.handler_of(method, metadata)
        if self._handler is None:
            self._finish(grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ())
            return
        self._server.began(self)
        self.task = loop.create_task(self._run(method))
        self.task.add_done_callback(lambda _: self._server.ended(self))

    def cancel(self, why: str) -> None:
        """Cancel the handler: nobody waits for its answer any more."""
        if self._has_sent_status or self._is_gone:
            return
        self._is_gone = True
        self._connection.server.streams.pop(self._stream, None)
        if self._handler is not None and not self.task.done():
            self.task.cancel()
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _wait(self) -> None:
        future: asyncio.Future[None] = self._server.process.loop.create_future()
        self._waiting.append(future)
        await future

    # --- The handler's life ---

    async def _run(self, method: str) -> None:
        try:
            await self._serve()
        except cygrpc.AbortError:
            return
        except asyncio.CancelledError:
            return
        except cygrpc.InternalError:
            if not self._is_gone:
                raise
        except Exception as error:
            _log.exception("Unexpected exception raised by servicer method %s", method)
            if not self._has_sent_status and not self._is_gone:
                self._finish(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}", ())

    async def _serve(self) -> None:
        handler = self._handler
        if handler.request_streaming:
            request: Any = self._requests()
        else:
            data = await self._next()
            if data is None:
                return
            request = self._parsed(data)
        if handler.response_streaming:
            await self._stream_answers(request)
        else:
            serve = handler.stream_unary if handler.request_streaming else handler.unary_unary
            answer = await serve(request, self)
            self._check_goes_on()
            if self._code is grpc.StatusCode.OK:
                await self.write(answer)
        self._check_goes_on()
        self._finish(self._code, self._details, self._trailing)

    async def _stream_answers(self, request: Any) -> None:
        handler = self._handler
        serve = handler.stream_stream if handler.request_streaming else handler.unary_stream
        if inspect.isasyncgenfunction(serve):
            async for answer in serve(request, self):
                self._check_goes_on()
                await self.write(answer)
        else:
            await serve(request, self)

    async def _requests(self) -> AsyncIterator[Any]:
        while (data := await self._next()) is not None:
            yield self._parsed(data)

    def _parsed(self, data: bytes) -> Any:
        parse = self._handler.request_deserializer
        return data if parse is None else parse(data)

    async def _next(self) -> bytes | None:
        while not self._received:
            if self._is_half_closed or self._is_gone:
                return None
            await self._wait()
        data = self._received.popleft()
        self._unread_bytes += len(data)
        if self._unread_bytes >= CREDIT_BYTES:
            self._pipe.send(("credit", self._unread_bytes))
            self._unread_bytes = 0
        return data

    def _check_goes_on(self) -> None:
        if self._aborted is not None:
            raise self._aborted
        if self._has_sent_status:
            raise cygrpc.UsageError("RPC already finished.")

    def _finish(
        self, code: grpc.StatusCode, details: str, trailing: Sequence[tuple[str, Any]]
    ) -> None:
        self._has_sent_status = True
        self._connection.server.streams.pop(self._stream, None)
        self._pipe.send(("status", code, details, tuple(trailing)))

    # --- For handlers, in the shape of the library ---

    async def read(self) -> Any:
        """Return the next message, EOF at the end."""
        self._check_goes_on()
        data = await self._next()
        self._check_goes_on()
        return cygrpc.EOF if data is None else self._parsed(data)

    async def write(self, message: Any) -> None:
        """Return once the transport has taken a message."""
        self._check_goes_on()
        serialize = self._handler.response_serializer
        data = message if serialize is None else serialize(message)
        await self.send_initial_metadata(())
        while self._sent_bytes > WINDOW_BYTES and not self._is_gone:
            await self._wait()
        if self._is_gone:
            raise cygrpc.InternalError("the client is gone")
        self._sent_bytes += len(data)
        self._pipe.send(("message", data))
        await asyncio.sleep(0)

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, Any]]) -> None:
        """Send the first metadata, unless they were sent."""
        if not self._has_sent_metadata:
            self._has_sent_metadata = True
            self._pipe.send(("initial", tuple(metadata)))

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Sequence[tuple[str, Any]] = (),
    ) -> None:
        """End the call with a status; always raises."""
        if self._aborted is not None:
            raise cygrpc.UsageError("Abort already called!")
        self._aborted = cygrpc.AbortError("Locally aborted.")
        # The status waits behind everything that was written before.
        while self._sent_bytes > WINDOW_BYTES and not self._is_gone:
            await self._wait()
        self._code = code
        self._finish(code, details or self._details, trailing_metadata or self._trailing)
        raise self._aborted

    def invocation_metadata(self) -> Sequence[tuple[str, Any]]:
        """Return what the client sent beside its request."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.time())

    def peer(self) -> str:
        """Return the client's address."""
        if "/" in self._connection.address:
            return "unix:"
        return f"ipv4:{self._connection.client.process.machine.host}:{40_000 + self._stream}"

    def auth_context(self) -> Mapping[str, Any]:
        """Return nothing: nothing is encrypted."""
        return {}

    def code(self) -> grpc.StatusCode:
        """Return the code that was set, also by `abort`."""
        return self._code

    def set_code(self, code: grpc.StatusCode) -> None:
        """End with this code, later."""
        self._code = code

    def set_details(self, details: str) -> None:
        """End with these words, later."""
        self._details = details

    def set_trailing_metadata(self, trailing: Sequence[tuple[str, Any]]) -> None:
        """End with these metadata, later."""
        self._trailing = trailing

    def cancelled(self) -> bool:
        """Return whether the client is gone."""
        return self._is_gone

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._is_gone or self._has_sent_status
