"""Unary calls that only the primary can answer, passed on by a backup: one hop, undecoded.

A stream is not passed on: its client is told where the primary is and connects there.

Every forwarded call has a deadline, whatever the caller's: a primary whose machine vanished says
nothing, not even that a connection is closed. Pings find that out long before the deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from coordinator.replica.refusals import outcome_unknown
from viewstamp import grpc_transport
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import COMMAND_DEADLINE_MS, MESSAGE_BYTES_MAX
from viewstamp.status import STATUS_DETAILS_KEY

FORWARDED_KEY: Final = "viewstamp-forwarded"
# Metadata that gRPC itself adds to a call; the next call has its own.
_OF_THE_CALL: Final = ("grpc-", ":", "user-agent", "te", "content-type")
# The primary answers within its own deadline; a little more lets its answer arrive.
FORWARD_DEADLINE_MS: Final = COMMAND_DEADLINE_MS + 2_000
KEEPALIVE_MS: Final = 2_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000
CONNECT_TIMEOUT_MS: Final = 2_000
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # While calls are under way. The other side must allow it: `server.SERVER_OPTIONS`.
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Without this the library still waits a minute for the answer to a ping.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # A replica that comes back may be primary at once; the library would wait for minutes.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
)

# How gRPC's message begins when there was no connection to send on.
NOT_CONNECTED: Final = "failed to connect to all addresses"

Context = grpc.aio.ServicerContext[Any, Any]
Metadata = Iterable[tuple[str, str | bytes]]


class Forwarding:
    """The connection to the present primary.

    `address` is where the primary serves clients, empty while unknown; `credentials` encrypt if
    clients are served with TLS.
    """

    def __init__(
        self, address: Callable[[], str], credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}

    def is_possible(self, metadata: Metadata) -> bool:
        """Return whether a call may be passed on: only once, and only to a known primary."""
        return bool(self._address()) and not any(key == FORWARDED_KEY for key, _ in metadata)

    async def forward(
        self, path: str, payload: bytes, context: Context, *, changes: bool = True
    ) -> bytes:
        """Return the primary's answer, or end the call with the primary's status.

        Without an answer, a call that `changes` something may have taken effect: then raises
        Refusal.
        """
        metadata = context.invocation_metadata() or ()
        channel = self._channel(self._address())
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
        passed_on = [(key, value) for key, value in metadata if not key.startswith(_OF_THE_CALL)]
        try:
            answer: bytes = await call(
                payload,
                metadata=(*passed_on, (FORWARDED_KEY, "1")),
                timeout=_seconds_left(context),
            )
        except grpc.aio.AioRpcError as error:
            await _relay(error, context, changes)
        return answer

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        # At most one for each replica of the cluster.
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc_transport.open_channel(address, CHANNEL_OPTIONS, self._credentials)
            self._channels[address] = channel
        return channel


def _seconds_left(context: Context) -> float:
    """Return how long to wait for the call, in seconds: the caller's deadline, or the longest."""
    longest = FORWARD_DEADLINE_MS / 1000
    remaining = context.time_remaining()
    return longest if remaining is None else min(remaining, longest)


async def _relay(error: grpc.aio.AioRpcError, context: Context, changes: bool) -> NoReturn:
    trailing = tuple(error.trailing_metadata())
    if any(key == STATUS_DETAILS_KEY for key, _ in trailing):
        await context.abort(error.code(), error.details() or "", trailing_metadata=trailing)
        raise AssertionError("abort always raises")
    told = f"the primary could not be asked ({error.code().name}: {error.details()})"
    if not changes or _never_left(error):
        raise Refusal(Reason.REASON_VIEW_CHANGE, f"{told}: try again") from error
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise outcome_unknown(FORWARD_DEADLINE_MS) from error
    raise Refusal(
        Reason.REASON_OUTCOME_UNKNOWN,
        f"{told}: a command may still take effect there; check before you repeat it",
        outcome="unknown",
    ) from error


def _never_left(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call certainly reached nobody: a connection was refused.

    The library says so only in words. If they change, the outcome is reported as unknown.
    """
    is_unavailable = error.code() is grpc.StatusCode.UNAVAILABLE
    return is_unavailable and (error.details() or "").startswith(NOT_CONNECTED)
