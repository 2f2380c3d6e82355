"""One call on the server's side; handlers know it as their context, in the shape of `grpc.aio`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
import grpc.aio

from viewstamp.http2 import ErrorCode, Field, StreamClosed, write_block
from viewstamp.http2.events import DataReceived, FieldsReceived
from viewstamp.wire.inbox import Bell, HeldBytes, Inbox
from viewstamp.wire.messages import WAITING_BYTES_MAX, MalformedMessages, prefixed
from viewstamp.wire.metadata import (
    Metadata,
    fields_of,
    status_fields,
    timeout_s_of,
)

if TYPE_CHECKING:
    from viewstamp.wire.server import WireServer
    from viewstamp.wire.socket import Http2Socket

_log = logging.getLogger(__name__)

RESPONSE: Final[tuple[Field, ...]] = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity"),
)
RESPONSE_BLOCK: Final = write_block(RESPONSE)
OK_BLOCK: Final = write_block(status_fields(grpc.StatusCode.OK, "", ()))
# How long a client may take to read the rest of an answer after its handler has ended.
_DRAIN_S: Final = 60.0


class HandlerEnded(grpc.aio.AbortError):
    """The call was answered by `abort`; the handler has nothing more to say."""


@lru_cache(maxsize=256)
def _refusal_block(code: grpc.StatusCode, details: str) -> bytes:
    """Return a status without anything before it: the same few are sent again and again."""
    return write_block((*RESPONSE, *status_fields(code, details, ())))


class WireCall:
    """A call that is served."""

    def __init__(
        self, server: WireServer, socket: Http2Socket, stream_id: int, held: HeldBytes
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self.socket = socket
        self._server = server
        self._stream_id = stream_id
        self._inbox = Inbox("SERVER", server.options.received_bytes_max, self._give_back, held)
        self._bell = Bell()
        self._is_half_closed = False
        self._is_gone = False
        self._has_sent_fields = False
        self._has_ended = False
        self._metadata: Metadata = ()
        self._deadline_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._draining: asyncio.TimerHandle | None = None
        self._code = grpc.StatusCode.OK
        self._sent_code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self._initial: Metadata = ()
        self._handler: Any = None
        self._done: list[Callable[[Any], None]] = []

    # --- For the socket ---

    def begin(self, path: str, timeout: bytes | None, metadata: Metadata, handler: Any) -> None:
        """Begin to serve."""
        self._metadata, self._handler = metadata, handler
        loop = asyncio.get_running_loop()
        if timeout is not None:
            left_s = timeout_s_of(timeout)
            if left_s is None:
                self.refuse(grpc.StatusCode.INTERNAL, "the field grpc-timeout is no timeout")
                self._server.ended(self)
                return
            self._deadline_s = time.monotonic() + left_s
            self._timer = loop.call_later(left_s, self._expire)
        self.task = loop.create_task(self._run(path))
        self.task.add_done_callback(self._over)

    def fields_received(self, event: FieldsReceived) -> None:
        """Take trailers of the client, which mean nothing but its end."""
        self._half_close()

    def data_received(self, event: DataReceived) -> None:
        """Take a part of messages, which nobody reads any more once there was an answer."""
        has_more = False
        try:
            if self._has_ended:
                self._give_back(len(event.data))
            else:
                has_more = self._inbox.take(event.data)
        except MalformedMessages as error:
            self._malformed(error)
            return
        if event.is_end:
            self._half_close()
        elif has_more:
            self._bell.ring()

    def ended_early(self, code: int, message: str) -> None:
        """Cancel the handler: nobody waits for its answer any more."""
        self._leave()

    def may_write(self) -> None:
        """Let a handler go on that waited to write; or end, if that was the whole answer."""
        self._bell.ring()
        if self._has_ended:
            self._let_go()

    # --- How it ends ---

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        """Answer with a status and nothing else."""
        self._code, self._details = code, details
        self._finish()

    def cancel(self) -> None:
        """End without an answer of the handler."""
        if not self._has_ended and not self._is_gone:
            self.socket.connection.reset(self._stream_id, ErrorCode.CANCEL)
            self.socket.flush_soon()
            self._leave()

    def _expire(self) -> None:
        """End at the deadline. The client has one of its own, which need not have passed."""
        if self._has_ended or self._is_gone:
            return
        if self._has_waiting:
            self.cancel()  # a status would come behind what waits
        else:
            self.refuse(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._leave()

    def stop(self) -> None:
        """End because the server ends, in the words of the library. A client for which more waits
        than a status could overtake learns it from the end of its connection."""
        if self._has_ended or self._is_gone:
            return
        if not self._has_waiting:
            self.refuse(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
        self._leave()

    @property
    def was_answered(self) -> bool:
        """Whether the client was sent a status, of whatever kind."""
        return self._sent_code is not None

    @property
    def has_succeeded(self) -> bool:
        """Whether the client was sent the status OK."""
        return self._sent_code is grpc.StatusCode.OK

    @property
    def _has_waiting(self) -> bool:
        return self.socket.connection.waiting_bytes(self._stream_id) > 0

    def _malformed(self, error: MalformedMessages) -> None:
        if not self._has_ended:
            self.refuse(error.code, error.details)
            self._leave()

    def _leave(self) -> None:
        self._is_gone = True
        self._let_go()
        if self.task is not None and not self.task.done():
            self.task.cancel()
        self._bell.ring()

    def _over(self, _: asyncio.Future[None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._inbox.release()
        self._server.ended(self)
        for told in self._done:
            told(self)

    # --- The handler's life ---

    async def _run(self, path: str) -> None:
        try:
            await self._serve()
        except (HandlerEnded, asyncio.CancelledError):
            if not self._has_ended:
                self.cancel()  # by something else than the client: it is told at least that
        except Exception as error:
            if self._is_gone:
                return  # nobody is there to be told
            _log.exception("Unexpected exception raised by servicer method %s", path)
            if not self._has_ended:
                self.refuse(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    async def _serve(self) -> None:
        handler = self._handler
        if handler.request_streaming:
            request: Any = self._requests()
        else:
            data = await self._next()
            if data is None:
                self.refuse(grpc.StatusCode.INTERNAL, "the request has no message")
                return
            request = self._parsed(data)
        if handler.response_streaming:
            await self._stream_answers(request)
        else:
            serve = handler.stream_unary if handler.request_streaming else handler.unary_unary
            answer = await serve(request, self)
            self._check_goes_on()
            if self._code is grpc.StatusCode.OK and not self._has_sent_fields:
                self._send_whole(answer)
                return
            if self._code is grpc.StatusCode.OK:
                self._send(answer)
        self._check_goes_on()
        self._finish()

    async def _stream_answers(self, request: Any) -> None:
        handler = self._handler
        serve = handler.stream_stream if handler.request_streaming else handler.unary_stream
        if inspect.isasyncgenfunction(serve):
            async for answer in serve(request, self):
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
        while not self._inbox:
            if self._is_half_closed or self._is_gone:
                return None
            await self._bell.wait()
            self._check_goes_on()
        self.socket.messages_received += 1
        return self._inbox.read()

    def _check_goes_on(self) -> None:
        if self._has_ended:
            raise grpc.aio.UsageError("RPC already finished.")

    # --- Parts ---

    def _give_back(self, size: int) -> None:
        self.socket.connection.give_back(self._stream_id, size)
        self.socket.flush_soon()

    def _half_close(self) -> None:
        self._is_half_closed = True
        self._bell.ring()

    def _send(self, message: Any) -> None:
        """Send a message, or let it wait for the peer."""
        data = self._prefixed(message)
        if not self._has_sent_fields:
            self._send_fields()
        self.socket.messages_sent += 1
        try:
            self.socket.connection.send_data(self._stream_id, data)
        except StreamClosed as error:
            raise grpc.aio.InternalError("the client is gone") from error
        finally:
            self.socket.flush_soon()

    def _send_whole(self, message: Any) -> None:
        """Send a response of one message as a whole; whoever has metadata has sent them before."""
        data = self._prefixed(message)
        self._has_sent_fields = True
        last = self._last_block()
        self.socket.messages_sent += 1
        try:
            self.socket.connection.send_answer(self._stream_id, RESPONSE_BLOCK, data, last)
        except StreamClosed as error:
            raise grpc.aio.InternalError("the client is gone") from error
        self._has_ended = True
        self._bell.ring()
        self._status_sent()

    def _prefixed(self, message: Any) -> bytes:
        """Return a message as it is sent; a longer one than is allowed ends the call."""
        serialize = self._handler.response_serializer
        data = message if serialize is None else serialize(message)
        limit = self._server.options.sent_bytes_max
        if limit is not None and len(data) > limit:
            text = f"SERVER: Sent message larger than max ({len(data)} vs. {limit})"
            self.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            raise HandlerEnded
        return prefixed(data)

    def _send_fields(self) -> None:
        block = RESPONSE_BLOCK
        if self._initial:
            block = write_block((*RESPONSE, *fields_of(self._initial)))
        self._has_sent_fields = True
        if not self._is_gone:
            self.socket.connection.send_fields(self._stream_id, block)
            self.socket.flush_soon()

    def _finish(self) -> None:
        """Send the status, behind everything that was written."""
        block = self._last_block()
        self._has_sent_fields = self._has_ended = True
        self._bell.ring()
        connection = self.socket.connection
        if self._is_gone or self._stream_id not in connection.streams:
            return
        connection.send_trailers(self._stream_id, block)
        self._status_sent()

    def _status_sent(self) -> None:
        """Let go of the stream once the peer has taken everything."""
        self._sent_code = self._code
        if self.socket.connection.waiting_bytes(self._stream_id):
            left_s = self.time_remaining()
            loop = asyncio.get_running_loop()
            self._draining = loop.call_later(
                _DRAIN_S if left_s is None else min(left_s, _DRAIN_S), self._give_up
            )
        else:
            self._let_go()
        self.socket.flush_soon()

    def _give_up(self) -> None:
        """End a stream whose client does not read the rest of its answer."""
        self.socket.connection.reset(self._stream_id, ErrorCode.CANCEL)
        self.socket.flush_soon()
        self._let_go()

    def _let_go(self) -> None:
        """Hear nothing of the stream any more. The client may still be sending: it need not."""
        if self._draining is not None:
            self._draining.cancel()
        if self._has_ended and not self._is_half_closed:
            self.socket.connection.reset(self._stream_id, ErrorCode.NO_ERROR)
        self.socket.disown(self._stream_id)

    def _last_block(self) -> bytes:
        try:
            return self._status_block()
        except (UnicodeError, ValueError, TypeError, AttributeError):
            _log.exception("a status cannot be sent: %s %r", self._code, self._trailing)
            self._code, self._details = grpc.StatusCode.INTERNAL, ""
            self._initial = self._trailing = ()
            return self._status_block()

    def _status_block(self) -> bytes:
        if self._has_sent_fields:
            if self._code is grpc.StatusCode.OK and not self._details and not self._trailing:
                return OK_BLOCK
            return write_block(status_fields(self._code, self._details, self._trailing))
        if not self._trailing and not self._initial:
            return _refusal_block(self._code, self._details)
        status = status_fields(self._code, self._details, self._trailing)
        return write_block((*RESPONSE, *fields_of(self._initial), *status))

    # --- For handlers, in the shape of the library ---

    async def read(self) -> Any:
        """Return the next message, EOF at the end."""
        self._check_goes_on()
        data = await self._next()
        return grpc.aio.EOF if data is None else self._parsed(data)

    async def write(self, message: Any) -> None:
        """Return once little waits for the peer's windows. Raises InternalError if it is gone."""
        self._check_goes_on()
        if self._is_gone:
            raise grpc.aio.InternalError("the client is gone")
        self._send(message)
        while self.socket.connection.waiting_bytes(self._stream_id) > WAITING_BYTES_MAX:
            await self._bell.wait()
            self._check_goes_on()
            if self._is_gone:
                raise grpc.aio.InternalError("the client is gone")

    async def send_initial_metadata(self, initial_metadata: Metadata) -> None:
        """Send the first metadata, unless they were sent."""
        if not self._has_sent_fields:
            self._initial = tuple(initial_metadata)
            self._send_fields()

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Metadata = (),
    ) -> NoReturn:
        """End the call with a status; always raises."""
        if self._has_ended:
            raise grpc.aio.UsageError("Abort already called!")
        self._trailing = tuple(trailing_metadata) or self._trailing
        self.refuse(code, details or self._details)
        raise HandlerEnded

    def invocation_metadata(self) -> Metadata:
        """Return what the client sent beside its request."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, None without one."""
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - time.monotonic())

    def peer(self) -> str:
        """Return the client's address."""
        return self._server.peer_of(self.socket)

    def auth_context(self) -> Mapping[str, Any]:
        """Return what the client's certificate proves."""
        return self._server.proven_by(self.socket)

    def code(self) -> grpc.StatusCode:
        """Return the code that was set, also by `abort`."""
        return self._code

    def details(self) -> str:
        """Return the words that were set."""
        return self._details

    def trailing_metadata(self) -> Metadata:
        """Return the metadata that come last."""
        return self._trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        """End with this code, later."""
        self._code = code

    def set_details(self, details: str) -> None:
        """End with these words, later."""
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        """End with these metadata, later."""
        self._trailing = tuple(trailing_metadata)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have something called when the call is over."""
        self._done.append(callback)

    def cancelled(self) -> bool:
        """Return whether the client is gone."""
        return self._is_gone and not self._has_ended

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._is_gone or self._has_ended
