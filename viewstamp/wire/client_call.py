"""One call on the client's side, in the shape of the calls of `grpc.aio`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from viewstamp.http2 import ErrorCode, FieldSection, StreamClosed
from viewstamp.http2.events import DataReceived, FieldsReceived
from viewstamp.limits import KIB
from viewstamp.wire.inbox import Bell, Inbox
from viewstamp.wire.messages import WAITING_BYTES_MAX, MalformedMessages, prefixed
from viewstamp.wire.metadata import Metadata, metadata_of, status_of
from viewstamp.wire.socket import Http2Socket, monotonic_ms

if TYPE_CHECKING:
    from viewstamp.wire.channel import WireChannel

# A call whose server never served it is repeated if it has sent no more.
_KEPT_BYTES_MAX: Final = 256 * KIB

Serialize = Callable[[Any], bytes] | None

_OK: Final = b"200"
_GRPC: Final = b"application/grpc"
# What a server without gRPC means (gRPC's table of HTTP statuses).
_OF_HTTP: Final = {
    b"400": grpc.StatusCode.INTERNAL,
    b"401": grpc.StatusCode.UNAUTHENTICATED,
    b"403": grpc.StatusCode.PERMISSION_DENIED,
    b"404": grpc.StatusCode.UNIMPLEMENTED,
    b"429": grpc.StatusCode.UNAVAILABLE,
    b"502": grpc.StatusCode.UNAVAILABLE,
    b"503": grpc.StatusCode.UNAVAILABLE,
    b"504": grpc.StatusCode.UNAVAILABLE,
}
# What the reset of a stream means (gRPC's table of HTTP/2 errors); all others are INTERNAL.
_OF_RESET: Final[dict[int, grpc.StatusCode]] = {
    -1: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}


@dataclass(frozen=True, slots=True)
class WireMethod:
    """What is called, and how its messages are written and read."""

    path: str
    serialize: Serialize
    parse: Callable[[bytes], Any] | None

    def written(self, message: Any) -> bytes:
        """Return the bytes of a message. Raises whatever the serializer does."""
        data: bytes = message if self.serialize is None else self.serialize(message)
        return data


class ClientCall:
    """A call, until its status has come. It waits for its connection if there is none yet."""

    def __init__(
        self,
        channel: WireChannel,
        method: WireMethod,
        block: bytes,
        timeout_s: float | None,
    ) -> None:
        """Send `block`, the fields of the request, and what comes with them."""
        self.method = method
        self.block = block
        self._channel = channel
        self._socket: Http2Socket | None = None
        self._stream_id = 0
        self._inbox = Inbox(
            "CLIENT", channel.options.received_bytes_max, self._give_back, channel.held
        )
        self._bell = Bell()
        self._unsent: list[bytes] = []
        """Messages for a stream that is not open yet."""
        self._kept: list[bytes] | None = []
        """What was sent, as long as it may have to be sent again; None if it is too much, or if it
        was sent again already."""
        self._kept_bytes = 0
        self._has_ended_writing = False
        self._only_message: bytes | None = None
        """The one answer, once it was read; it may be asked for again."""
        self._initial: Metadata | None = None
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self._was_answered = self._is_cancelled = False
        self._callbacks: list[Callable[[Any], None]] = []
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._feeding: asyncio.Task[None] | None = None
        if timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout_s, self._expire)

    # --- For the channel ---

    def start(self, socket: Http2Socket, stream_id: int) -> None:
        """Send what waited, now that there is a stream."""
        self._socket, self._stream_id = socket, stream_id
        socket.tally.begin(monotonic_ms())
        socket.owners[stream_id] = self
        unsent, self._unsent = self._unsent, []
        socket.messages_sent += len(unsent)
        for number, data in enumerate(unsent):
            self._keep(data)
            is_end = self._has_ended_writing and number == len(unsent) - 1
            socket.connection.send_data(stream_id, data, is_end=is_end)
        if self._has_ended_writing and not unsent:
            socket.connection.send_data(stream_id, b"", is_end=True)
        socket.flush_soon()
        self._bell.ring()

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """End with a status of our own; nothing happens if it has ended."""
        if self._code is None:
            self._end(code, details, ())

    @property
    def has_succeeded(self) -> bool:
        """Whether the status OK has come."""
        return self._code is grpc.StatusCode.OK

    @property
    def timeout_left_s(self) -> float | None:
        """The seconds until the deadline, None without one."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())

    # --- For the socket ---

    def fields_received(self, event: FieldsReceived) -> None:
        """Take the fields of the answer, or its status."""
        section = event.section
        if section.is_informational:
            return
        if self._initial is None and not event.is_end:
            self._begin_answer(section)
        elif event.is_end:
            self._finish(section)

    def _begin_answer(self, section: FieldSection) -> None:
        refusal = _refusal_of(section)
        if refusal is not None:
            self._reset(ErrorCode.CANCEL)
            self._end(*refusal, ())
            return
        self._initial, self._kept = metadata_of(section.fields), None
        self._bell.ring()

    def _finish(self, section: FieldSection) -> None:
        self._was_answered = True
        status = status_of(section.fields)
        if status is None:
            status = _refusal_of(section) or (
                grpc.StatusCode.UNKNOWN,
                "the answer has no status",
            )
        if self._inbox.is_within_one and status[0] is grpc.StatusCode.OK:
            status = grpc.StatusCode.INTERNAL, "the answer ends within a message"
        code, details = status
        if code is grpc.StatusCode.OK:
            details = ""  # some servers say "OK", which the library does not pass on
        self._reset(ErrorCode.CANCEL)  # the server wants no more, whatever we still have
        self._end(code, details, metadata_of(section.fields))

    def data_received(self, event: DataReceived) -> None:
        """Take a part of messages."""
        try:
            has_more = self._inbox.take(event.data)
        except MalformedMessages as error:
            self._reset(ErrorCode.CANCEL)
            self._end(error.code, error.details, ())
            return
        if event.is_end:
            self._reset(ErrorCode.CANCEL)
            self._end(grpc.StatusCode.UNKNOWN, "the answer has no status", ())
        elif has_more:
            self._bell.ring()

    def ended_early(self, code: int, message: str) -> None:
        """Take the end of the stream by the server, or of its connection.

        A server that says that it never served the stream is asked again, once and unseen.
        """
        if code == ErrorCode.REFUSED_STREAM and self._kept is not None and self._initial is None:
            socket, self._socket = self._socket, None
            self._unsent, self._kept = self._kept, None
            if socket is not None:
                socket.tally.end(is_ok=False)
                socket.disown(self._stream_id)
            self._channel.place(self)
            return
        if code == ErrorCode.CANCEL and self.timeout_left_s == 0:
            self._expire()  # the server knows the deadline, too, and was heard before our timer
            return
        status = _OF_RESET.get(code, grpc.StatusCode.INTERNAL)
        self.fail(status, message or f"the stream was reset with code {code}")

    def may_write(self) -> None:
        """Let a writer go on."""
        self._bell.ring()

    # --- Parts ---

    def _end(self, code: grpc.StatusCode, details: str, trailing: Metadata) -> None:
        if self._code is not None:
            return
        self._code, self._details, self._trailing = code, details, trailing
        self._kept = None
        if self._initial is None:
            self._initial = ()
        if self._timer is not None:
            self._timer.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
        self._inbox.release()
        if self._socket is not None:
            self._socket.tally.end(is_ok=self._was_answered)
            self._socket.disown(self._stream_id)
        self._channel.ended(self)
        self._bell.ring()
        callbacks, self._callbacks = self._callbacks, []
        for told in callbacks:
            told(self)

    def _expire(self) -> None:
        if self._code is None:
            self._reset(ErrorCode.CANCEL)
            self._end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())

    def _reset(self, code: ErrorCode) -> None:
        if self._socket is not None and not self._socket.is_gone:
            self._socket.connection.reset(self._stream_id, code)
            self._socket.flush_soon()

    def _give_back(self, size: int) -> None:
        if self._socket is not None and not self._socket.is_gone:
            self._socket.connection.give_back(self._stream_id, size)
            self._socket.flush_soon()

    async def _wait(self) -> None:
        try:
            await self._bell.wait()
        except asyncio.CancelledError:
            # Whoever waits and is cancelled wants no answer any more, as in the library.
            self.cancel()
            raise

    def _raise_for_status(self) -> None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._code is not None and self._code is not grpc.StatusCode.OK:
            initial, trailing = (
                grpc.aio.Metadata(*(self._initial or ())),
                grpc.aio.Metadata(*self._trailing),
            )
            raise grpc.aio.AioRpcError(self._code, initial, trailing, self._details)

    def _send(self, data: bytes, *, is_end: bool) -> None:
        """Send to the stream, or keep it until there is one."""
        self._has_ended_writing = is_end
        if self._socket is None:
            if data:
                self._unsent.append(data)
            return
        self._keep(data)
        self._socket.messages_sent += bool(data)
        try:
            self._socket.connection.send_data(self._stream_id, data, is_end=is_end)
        except StreamClosed as error:
            raise asyncio.InvalidStateError("RPC already finished.") from error
        self._socket.flush_soon()

    def _keep(self, data: bytes) -> None:
        """Keep what is sent while nothing came back, and while that is little."""
        if self._kept is None or not data:
            return
        self._kept.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes > _KEPT_BYTES_MAX:
            self._kept = None

    def _framed(self, data: bytes) -> bytes:
        """Return a message as it is sent; one that is too large ends the call."""
        limit = self._channel.options.sent_bytes_max
        if limit is not None and len(data) > limit:
            text = f"CLIENT: Sent message larger than max ({len(data)} vs. {limit})"
            self._reset(ErrorCode.CANCEL)
            self._end(grpc.StatusCode.RESOURCE_EXHAUSTED, text, ())
        return prefixed(data)

    def _received(self) -> bytes:
        """Return the next message, which has come."""
        if self._socket is not None:
            self._socket.messages_received += 1
        return self._inbox.read()

    def _parsed(self, data: bytes) -> Any:
        return data if self.method.parse is None else self.method.parse(data)

    # --- In the shape of the library ---

    def send_only(self, message: bytes) -> None:
        """Send the one request."""
        data = self._framed(message)
        if self._code is None:
            self._send(data, is_end=True)

    def feed(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        """Send what an iterator has, beside what is read."""
        self._feeding = asyncio.get_running_loop().create_task(self._feed(requests))

    async def _feed(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    await self.write(request)
            else:
                for request in requests:
                    await self.write(request)
            await self.done_writing()
        except asyncio.InvalidStateError:
            return  # it has ended, and whoever reads is told why
        except Exception as error:
            self._reset(ErrorCode.CANCEL)
            self._end(grpc.StatusCode.UNKNOWN, f"the requests failed: {error!r}", ())

    async def write(self, message: Any) -> None:
        """Send a message; return once little waits. Raises InvalidStateError once it is over."""
        if self._code is not None:
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._has_ended_writing:
            raise asyncio.InvalidStateError("RPC is half closed after calling done_writing().")
        self._send(self._framed(self.method.written(message)), is_end=False)
        while self._code is None and self._is_full():
            await self._wait()

    def _is_full(self) -> bool:
        if self._socket is None:
            return sum(map(len, self._unsent)) > WAITING_BYTES_MAX
        return self._socket.connection.waiting_bytes(self._stream_id) > WAITING_BYTES_MAX

    async def done_writing(self) -> None:
        """Say that no more messages come."""
        if self._code is None and not self._has_ended_writing:
            self._send(b"", is_end=True)

    async def read(self) -> Any:
        """Return the next message, EOF at the end. Raises AioRpcError, CancelledError.

        Whoever has cancelled the call gets nothing more of it, as in the library.
        """
        while self._is_cancelled or not self._inbox:
            if self._code is not None:
                self._raise_for_status()
                return grpc.aio.EOF
            await self._wait()
        return self._parsed(self._received())

    async def _messages(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the messages of the answer."""
        return self._messages()

    def __await__(self) -> Generator[Any, Any, Any]:
        """Return the one message of the answer. Raises AioRpcError, CancelledError."""
        return self._only().__await__()

    async def _only(self) -> Any:
        while self._code is None:
            await self._wait()
        self._raise_for_status()
        if self._only_message is None:
            if len(self._inbox) != 1:
                self._code = grpc.StatusCode.INTERNAL
                self._details = f"{len(self._inbox)} messages came, and one was due"
                self._raise_for_status()
            self._only_message = self._received()
        return self._parsed(self._only_message)

    def cancel(self) -> bool:
        """End the call; return whether it had not ended."""
        if self._code is not None:
            return False
        self._is_cancelled = True
        self._reset(ErrorCode.CANCEL)
        self._end(grpc.StatusCode.CANCELLED, "Locally cancelled by application!", ())
        return True

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self._code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._code is not None

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, None without one."""
        return self.timeout_left_s

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have something called when the call has ended."""
        if self._code is None:
            self._callbacks.append(callback)
        else:
            callback(self)

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Return the first metadata."""
        while self._initial is None:
            await self._wait()
        return grpc.aio.Metadata(*self._initial)

    async def _ended(self) -> None:
        while self._code is None:
            await self._wait()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Return the last metadata."""
        await self._ended()
        return grpc.aio.Metadata(*self._trailing)

    async def code(self) -> grpc.StatusCode:
        """Return the code."""
        await self._ended()
        assert self._code is not None, "it has ended"
        return self._code

    async def details(self) -> str:
        """Return the words that come with the code."""
        await self._ended()
        return self._details


def _refusal_of(section: FieldSection) -> tuple[grpc.StatusCode, str] | None:
    """Return what an answer without gRPC means, None for one with it."""
    status = section.pseudo.get(b":status", _OK)
    if status != _OK:
        code = _OF_HTTP.get(status, grpc.StatusCode.UNKNOWN)
        return code, f"the server answered with HTTP status {status.decode()}"
    kind = dict(section.fields).get(b"content-type", b"")
    if section.pseudo and not kind.startswith(_GRPC):
        return grpc.StatusCode.UNKNOWN, f"the answer is {kind.decode('latin-1')!r}, and no gRPC"
    return None
