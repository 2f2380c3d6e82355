"""Each call is counted once when it begins and once when it ends, however that comes about."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.coordinator.peers.peer_trial import until
from tests.viewstamp.wire.echo import CHAT, ECHO, SERVICE, serving_echo
from viewstamp.wire.tally import Tally
from viewstamp.wire.transport import WireTransport

PATIENCE_S = 20
MORE_THAN_A_SERVER_TAKES = 120


class BrokenTable(grpc.GenericRpcHandler):
    """A table of handlers that fails for one method."""

    def service(self, handler_call_details: Any) -> None:
        """Fail for the method "Nowhere", and know no other one."""
        if handler_call_details.method.endswith("/Nowhere"):
            raise RuntimeError("the table is broken")


@asynccontextmanager
async def line(*handlers: grpc.GenericRpcHandler) -> AsyncIterator[tuple[Any, Any]]:
    """Give a channel, and the server at its end, which serves these and an echo."""
    transport = WireTransport()
    options = (("grpc.max_concurrent_streams", 100),)
    async with serving_echo(transport, "127.0.0.1:0", *handlers, options=options) as (server, port):
        channel = transport.channel(f"127.0.0.1:{port}", (), None)
        yield channel, server
        await channel.close()


def counts(tally: Tally) -> tuple[int, int, int]:
    """Return how many calls began, succeeded and failed."""
    return tally.started, tally.succeeded, tally.failed


async def test_a_message_that_cannot_be_written_begins_no_call() -> None:
    """Whoever gives a serializer what it refuses gets its error, and holds no stream: more such
    calls than the server takes at once keep no good one waiting."""

    def refuse(_: object) -> bytes:
        raise TypeError("no such message")

    async with line() as (channel, server):
        for _ in range(MORE_THAN_A_SERVER_TAKES):
            with pytest.raises(TypeError, match="no such message"):
                channel.unary_unary(ECHO, request_serializer=refuse)(object())
        assert await channel.unary_unary(ECHO)(b"x", timeout=PATIENCE_S) == b"x"
        assert counts(channel.tally) == counts(server.tally) == (1, 1, 0)


async def test_a_table_of_handlers_that_fails_fails_its_call_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The call is UNKNOWN, as on the library, the log has the error, and the connection stays."""
    async with line(BrokenTable()) as (channel, server):
        with pytest.raises(grpc.aio.AioRpcError) as caught, caplog.at_level(logging.ERROR):
            await channel.unary_unary(f"/{SERVICE}/Nowhere")(b"", timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        assert "the table is broken" in caplog.text
        assert await channel.unary_unary(ECHO)(b"x", timeout=PATIENCE_S) == b"x"
        assert counts(channel.tally) == counts(server.tally) == (2, 1, 1)
        [socket] = server.sockets
        assert counts(socket.tally) == (2, 2, 0)  # both were answered


async def test_a_closed_channel_counts_no_call() -> None:
    """A call on a closed channel is an error of its caller, and leaves no deadline behind."""
    async with line() as (channel, _):
        await channel.close()
        with pytest.raises(grpc.aio.UsageError):
            channel.unary_unary(ECHO)(b"x", timeout=0.01)
        await asyncio.sleep(0.05)
        assert counts(channel.tally) == (0, 0, 0)


async def test_a_handler_that_returns_after_its_client_left_has_failed() -> None:
    """What became of its call nobody was told, so it is no success."""
    returned = asyncio.Event()

    async def stay(_: Any, context: Any) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            returned.set()

    method: Any = grpc.stream_stream_rpc_method_handler(stay)
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"Chat": method})
    async with line(handlers) as (channel, server):
        call = channel.stream_stream(CHAT)(timeout=PATIENCE_S)
        await call.write(b"x")
        await until(lambda: server.tally.started == 1)
        call.cancel()
        await returned.wait()
        await until(lambda: server.tally.failed == 1)
        assert counts(server.tally) == (1, 0, 1)
