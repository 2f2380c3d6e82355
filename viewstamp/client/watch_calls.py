"""One call of a watch at one replica: opened, read until it ends, closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc.aio

from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client.errors import CannotConnect, ClientError, StreamBroken, TimedOut
from viewstamp.client.transport import AccessTokenSource, Endpoint, bearer, refusal_in, traced
from viewstamp.client.trouble import cause_of, words_about
from viewstamp.errors import Refusal
from viewstamp.limits import WATCH_PROGRESS_MS

if TYPE_CHECKING:
    from viewstamp.client.tracing import ClientTracing

WATCH_PATH: Final = "/viewstamp.api.watch.v1.WatchService/Watch"
# A replica says at least every five seconds how far it has come. One that is silent for three times
# as long counts as dead, whatever its connection says.
WATCH_SILENCE_MAX_S: Final = 3 * WATCH_PROGRESS_MS / 1000


class WatchCall:
    """A watch at one replica, on a connection of its own."""

    def __init__(self, endpoint: Endpoint, tracing: ClientTracing | None = None) -> None:
        """Connect when it is opened. Raises CannotConnect if the endpoint cannot be used."""
        self.address = endpoint.address
        self.access_token = ""
        self._has_tls = endpoint.tls_ca is not None
        self._tracing = tracing
        self._call: Any = None
        try:
            self._channel = endpoint.open()
        except (OSError, ValueError) as error:
            raise CannotConnect(f"cannot connect to {endpoint.address}: {error}") from error

    async def open(
        self,
        request: watch_pb2.WatchRequest,
        identity: AccessTokenSource,
        *,
        timeout_s: float = WATCH_SILENCE_MAX_S,
    ) -> watch_pb2.WatchResponse:
        """Begin, and return the first message. Raises Refusal, CannotConnect, TimedOut."""
        method = self._channel.unary_stream(
            WATCH_PATH,
            request_serializer=watch_pb2.WatchRequest.SerializeToString,
            response_deserializer=watch_pb2.WatchResponse.FromString,
        )
        try:
            async with asyncio.timeout(timeout_s):
                self.access_token = await identity.access_token(self._channel)
                metadata = bearer(self.access_token)
                # The span of a call that may last for months ends with its first message.
                with traced(self._tracing, WATCH_PATH[1:], metadata) as (sent, answered):
                    self._call = method(request, metadata=sent)
                    first = await self._message()
                    answered(first)
                    return first
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, CannotConnect) from error
        except TimeoutError:
            raise self._silent(timeout_s) from None

    async def read(self) -> watch_pb2.WatchResponse:
        """Return the next message. Raises Refusal, StreamBroken, TimedOut."""
        try:
            async with asyncio.timeout(WATCH_SILENCE_MAX_S):
                return await self._message()
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, StreamBroken) from error
        except TimeoutError:
            raise self._silent(WATCH_SILENCE_MAX_S) from None

    async def close(self) -> None:
        """End the call and its connection."""
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()

    async def _message(self) -> watch_pb2.WatchResponse:
        message: Any = await self._call.read()
        if message is grpc.aio.EOF:
            raise StreamBroken(f"the replica at {self.address} ended the watch without a reason")
        response: watch_pb2.WatchResponse = message
        return response

    def _failure(
        self, error: grpc.aio.AioRpcError, otherwise: type[CannotConnect | StreamBroken]
    ) -> Refusal | ClientError:
        """Return the refusal of a failed call, or what else is wrong."""
        refusal = refusal_in(error)
        if refusal is not None:
            return refusal
        text = words_about(error, self.address, has_tls=self._has_tls)
        if otherwise is CannotConnect:
            return CannotConnect(text, cause_of(error, has_tls=self._has_tls))
        return StreamBroken(f"the watch broke off: {text}")

    def _silent(self, timeout_s: float) -> TimedOut:
        return TimedOut(f"{self.address} said nothing for {timeout_s:g} s")
