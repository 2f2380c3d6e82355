"""Unary calls that only the primary can answer, passed on by a backup: one hop, undecoded.

A stream is not passed on: its client is told where the primary is and connects there.

Every forwarded call has a deadline, whatever the caller's: a primary whose machine vanished says
nothing, not even that a connection is closed. Pings find that out long before the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
RESOLVE_INTERVAL_MS: Final = 1_000
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
    # It may come back at another address under its name; the library would wait for half a minute
    # before it asks for the name again.
    ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_INTERVAL_MS),
)

# How gRPC's message begins when there was no connection to send on, or no address to connect to.
NOT_CONNECTED: Final = ("failed to connect to all addresses", "errors resolving")

Context = grpc.aio.ServicerContext[Any, Any]
Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(slots=True)
class _Connection:
    """A channel, when it was opened by the loop's clock, and how many calls are on it."""

    channel: grpc.aio.Channel
    opened_s: float
    calls: int = 0
    is_left: bool = False
    """Whether another channel has taken its place: its last call closes it."""


class Forwarding:
    """The connection to the present primary.

    `address` is where the primary serves clients, empty while unknown. Nothing is encrypted: where
    clients are served with TLS, no call is passed on.
    """

    def __init__(self, address: Callable[[], str]) -> None:
        self._address = address
        self._connections: dict[str, _Connection] = {}

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
        connection = self._connection(self._address())
        passed_on = [(key, value) for key, value in metadata if not key.startswith(_OF_THE_CALL)]
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = connection.channel.unary_unary(path)
        connection.calls += 1
        try:
            answer: bytes = await call(
                payload,
                metadata=(*passed_on, (FORWARDED_KEY, "1")),
                timeout=_seconds_left(context),
            )
        except grpc.aio.AioRpcError as error:
            self._leave_if_useless(connection, error)
            await _relay(error, context, changes)
        finally:
            connection.calls -= 1
            if connection.is_left and not connection.calls:
                await connection.channel.close()
        return answer

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            await connection.channel.close()

    def _connection(self, address: str) -> _Connection:
        # At most one for each replica of the cluster.
        connection = self._connections.get(address)
        if connection is None:
            channel = grpc_transport.open_channel(address, CHANNEL_OPTIONS)
            connection = _Connection(channel, asyncio.get_running_loop().time())
            self._connections[address] = connection
        return connection

    def _leave_if_useless(self, connection: _Connection, error: grpc.aio.AioRpcError) -> None:
        """Have the next call open another channel, if this one connects to nothing.

        The library asks ever more rarely for a name that had no address, up to minutes apart.
        """
        age_s = asyncio.get_running_loop().time() - connection.opened_s
        if connection.is_left or age_s < RESOLVE_INTERVAL_MS / 1000 or not _never_left(error):
            return
        connection.is_left = True
        self._connections = {
            address: each for address, each in self._connections.items() if each is not connection
        }


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
    """Return whether a call certainly reached nobody: nothing was connected to.

    The library says so only in words. If they change, the outcome is reported as unknown.
    """
    is_unavailable = error.code() is grpc.StatusCode.UNAVAILABLE
    return is_unavailable and (error.details() or "").startswith(NOT_CONNECTED)
