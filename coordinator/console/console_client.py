"""The cluster as one user of the console may read it, and nothing else.

A call goes to the handler that serves its method to callers from outside, with the user's token and
the browser's address: the same permissions, shares and throttles, and the same audit log. No call
can change anything, because only methods that read are called at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import Message

from coordinator.console.bounds import CALL_TIMEOUT_MS
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client.consistency import STALE, Consistency
from viewstamp.client.methods import method_of
from viewstamp.client.transport import STALE_METADATA, bearer
from viewstamp.errors import Refusal
from viewstamp.routing import MethodKind
from viewstamp.status import refusal_of

WATCH_PATH: Final = "/viewstamp.api.watch.v1.WatchService/Watch"
# Of a watch, beside the one that is being read.
_MESSAGES_AHEAD_MAX: Final = 1
# Returns the handler of a path, as a gRPC server finds it.
HandlerOf = Callable[[str], Any]
Metadata = tuple[tuple[str, str], ...]


class NotARead(TypeError):  # noqa: N818 - reads as the sentence it is
    """A request that could change something: the console calls no such method."""


class _CallEnded(grpc.RpcError):
    """A status, in the shape in which a client hears of it."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Any) -> None:
        self._told = code, details, tuple(trailing)

    def code(self) -> grpc.StatusCode:
        return self._told[0]

    def details(self) -> str:
        return self._told[1]

    def trailing_metadata(self) -> Any:
        return self._told[2]


class _InnerCall:
    """A call of this process, in the shape that handlers know."""

    def __init__(
        self,
        metadata: Metadata,
        peer: str,
        write: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        self._metadata = metadata
        self._peer = peer
        self._write = write

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> float:
        return CALL_TIMEOUT_MS / 1000

    async def write(self, message: bytes) -> None:
        assert self._write is not None, "the handler of a unary call writes no message"
        await self._write(message)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        raise _CallEnded(code, details, trailing_metadata)


class ConsoleClient:
    """Reads as the user of a token, for a browser at `peer`; without a token, it can log in.

    Reads show what this replica has applied, so that a backup answers while it has no primary.
    """

    def __init__(self, handler_of: HandlerOf, peer: str, access_token: str = "") -> None:
        self.access_token: Final = access_token
        self._handler_of = handler_of
        self._peer = peer
        self._metadata: Metadata = bearer(access_token)

    async def call(self, request: Message, *, consistency: Consistency = STALE) -> Any:
        """Call the method of `request` and return its response. Raises Refusal, NotARead."""
        method = method_of(request)
        if method.kind is not MethodKind.QUERY:
            raise NotARead(f"{method.name} is no read")
        metadata = self._metadata
        if consistency == STALE and not method.public:
            metadata = (*metadata, *STALE_METADATA)
        handler = self._handler_of(method.path).unary_unary
        call = _InnerCall(metadata, self._peer)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_MS / 1000):
                answer = await handler(request.SerializeToString(), call)
        except TimeoutError as error:
            raise _late() from error
        except _CallEnded as ended:
            raise _refusal_in(ended) from ended
        return method.response.FromString(answer)

    async def watch(
        self, request: watch_pb2.WatchRequest
    ) -> AsyncGenerator[watch_pb2.WatchResponse]:
        """Yield what a watch says. Raises Refusal when it ends.

        The watch waits while nobody asks for the next message, and ends when this is closed.
        """
        said: asyncio.Queue[bytes] = asyncio.Queue(_MESSAGES_AHEAD_MAX)
        handler = self._handler_of(WATCH_PATH).unary_stream
        call = _InnerCall(self._metadata, self._peer, said.put)
        watching = asyncio.ensure_future(handler(request.SerializeToString(), call))
        try:
            while (message := await _next_of(said, watching)) is not None:
                yield watch_pb2.WatchResponse.FromString(message)
        except _CallEnded as ended:
            raise _refusal_in(ended) from ended
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _next_of(said: asyncio.Queue[bytes], watching: asyncio.Future[None]) -> bytes | None:
    """Return the next message; None once there is none. Raises what the watch ended with."""
    getting = asyncio.ensure_future(said.get())
    either: set[asyncio.Future[Any]] = {getting, watching}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            return getting.result()
    finally:
        getting.cancel()
    if not said.empty():
        return said.get_nowait()
    watching.result()
    return None


def _late() -> Refusal:
    return Refusal(
        Reason.REASON_READ_DEADLINE, f"the cluster did not answer within {CALL_TIMEOUT_MS} ms"
    )


def _refusal_in(ended: _CallEnded) -> Refusal:
    refusal = refusal_of(ended)
    if refusal is None:
        raise AssertionError(f"a call ended with a status of nobody: {ended.details()}") from ended
    return refusal
