"""Calls whose answer is a stream of messages. Each has a connection beside the Submit stream.

They change nothing, so a caller may ask again after a stream broke.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import Message

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client.errors import CannotConnect, StreamBroken, TimedOut
from viewstamp.client.transport import AccessTokenSource, Endpoints, bearer, refusal_in, traced
from viewstamp.client.trouble import cause_of, words_about
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
    from viewstamp.client.identifiers import FacadeClient
    from viewstamp.client.tracing import ClientTracing
    from viewstamp.client.watching import Watch


class ServerStreams:
    """Opens streams at the replica that the client talks to."""

    def __init__(
        self,
        endpoints: Endpoints,
        identity: AccessTokenSource,
        tracing: ClientTracing | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._identity = identity
        self._tracing = tracing

    def watch(
        self,
        client: FacadeClient,
        request: watch_pb2.WatchRequest,
        *,
        cluster_id: bytes,
        opening_timeout_s: float | None,
    ) -> Watch:
        """Return a watch that begins at any of the replicas, so that watches spread over them."""
        # Imported late: few clients watch.
        from viewstamp.client.watching import Watch

        return Watch(
            client,
            self._endpoints.spread(),
            self._identity,
            request,
            cluster_id=cluster_id,
            opening_timeout_s=opening_timeout_s,
            tracing=self._tracing,
        )

    async def open(self, request: Message, timeout_s: float | None) -> AsyncIterator[Any]:
        """Yield the messages that answer `request`; wait at most `timeout_s` for each.

        Raises Refusal, TimedOut, CannotConnect before the first message, StreamBroken after it, and
        TypeError for a message that is no such method's request.
        """
        path, response = _method_of(type(request))
        async with self._endpoints.current.open() as channel:
            call = channel.unary_stream(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
            may_renew = self._identity.can_renew
            is_answered = False
            while True:
                metadata = bearer(await self._identity.access_token(channel))
                try:
                    with traced(self._tracing, path[1:], metadata) as (sent, answered):
                        stream = call(request, metadata=sent)
                        async for message in self._answers(stream, timeout_s):
                            if not is_answered:
                                answered(message)
                            is_answered = True
                            yield message
                    return
                except (Refusal, CannotConnect) as failure:
                    if is_answered or not may_renew or not _is_unauthenticated(failure):
                        raise
                    may_renew = False
                    self._identity.forget()

    async def _answers(self, stream: Any, timeout_s: float | None) -> AsyncIterator[Any]:
        is_answered = False
        try:
            async for message in _messages(stream, timeout_s):
                is_answered = True
                yield message
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, is_answered) from error

    def _failure(self, error: grpc.aio.AioRpcError, is_answered: bool) -> Exception:
        refusal = refusal_in(error)
        if refusal is not None:
            return refusal
        place, has_tls = self._endpoints.current.address, self._endpoints.has_tls
        text = words_about(error, place, has_tls=has_tls)
        if is_answered:
            return StreamBroken(f"the answers broke off: {text}")
        return CannotConnect(text, cause_of(error, has_tls=has_tls))


def _is_unauthenticated(failure: Exception) -> bool:
    return isinstance(failure, Refusal) and failure.reason == Reason.REASON_UNAUTHENTICATED


async def _messages(call: Any, timeout_s: float | None) -> AsyncIterator[Any]:
    try:
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    message = await call.read()
            except TimeoutError:
                text = f"no message of the answer came within {timeout_s:g} s"
                raise TimedOut(text) from None
            if message is grpc.aio.EOF:
                return
            yield message
    finally:
        call.cancel()


def _method_of(request: type[Message]) -> tuple[str, type[Message]]:
    """Return path and response class of the method that answers a request by a stream."""
    taken: Any = request.DESCRIPTOR
    for service in taken.file.services_by_name.values():
        for method in service.methods:
            is_answered_so = method.server_streaming and not method.client_streaming
            if is_answered_so and method.input_type is taken:
                response = message_factory.GetMessageClass(method.output_type)
                return f"/{service.full_name}/{method.name}", response
    text = "is not the request of a method that answers by a stream"
    raise TypeError(f"{request.__name__} {text}")
