"""Health, reflection and Channelz refuse malformed messages, and leave no trace in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from coordinator.gateway.infrastructure import REFLECTION, REFLECTION_ALPHA
from coordinator.gateway.reads import ReadConsistency, consistency_of_metadata
from coordinator.gateway.server import GatewayServer
from viewstamp.errors import Refusal

GARBAGE = b"\xff\xff\xff\xff"
UNARY = (
    "/grpc.health.v1.Health/Check",
    "/grpc.channelz.v1.Channelz/GetTopChannels",
    "/grpc.channelz.v1.Channelz/GetServers",
    "/grpc.channelz.v1.Channelz/GetServer",
    "/grpc.channelz.v1.Channelz/GetServerSockets",
    "/grpc.channelz.v1.Channelz/GetChannel",
    "/grpc.channelz.v1.Channelz/GetSubchannel",
    "/grpc.channelz.v1.Channelz/GetSocket",
)


@asynccontextmanager
async def listening(**options: Any) -> AsyncIterator[int]:
    """Serve the gateway's own port without anything behind it."""
    server = GatewayServer(None, None, {}, **options)  # type: ignore[arg-type]
    port = server.listen("127.0.0.1:0", None)
    await server.start()
    yield port
    await server.stop(0)


@asynccontextmanager
async def gateway() -> AsyncIterator[grpc.aio.Channel]:
    """Serve the gateway's own port, and connect to it."""
    async with (
        listening(channelz_is_open=True) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


async def greeted(port: int) -> tuple[bytes, asyncio.StreamWriter]:
    """Return the first bytes of a new connection, none if it is closed at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    try:
        return await reader.read(9), writer
    except ConnectionResetError:  # it was closed before it had read ours
        return b"", writer


async def test_connections_are_limited_in_all() -> None:
    """A connection beyond the limit is closed at once, until one of the others is gone."""
    async with listening(connections_max=2) as port:
        first, second, third = [await greeted(port) for _ in range(3)]
        assert first[0] and second[0] and not third[0]
        first[1].close()
        async with asyncio.timeout(30):
            while not (await greeted(port))[0]:
                pass  # the server learns of the end when it looks


async def test_a_process_that_leaves_is_not_ready_again() -> None:
    """Once a process is told to stop, probes and proxies hear that it is alive and not ready."""
    server = GatewayServer(None, None, {})  # type: ignore[arg-type]
    port = server.listen("127.0.0.1:0", None)
    await server.start()
    await server.set_ready(True)
    await server.leave()
    await server.set_ready(True)  # it follows its successor now
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        statuses = [
            (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
            for name in ("liveness", "readiness", "")
        ]
    await server.stop(0)

    assert statuses == [1, 2, 2]


async def failure(call: Any) -> grpc.StatusCode:
    """Return how a call fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    code: grpc.StatusCode = caught.value.code()
    return code


async def test_garbage_is_refused_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each method answers INVALID_ARGUMENT, and never a stack trace."""
    caplog.set_level(logging.INFO)
    async with gateway() as channel:
        for path in UNARY:
            call: Any = channel.unary_unary(path)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(GARBAGE)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, path
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        assert await failure(watch(GARBAGE)) is grpc.StatusCode.INVALID_ARGUMENT
        for path in (REFLECTION_ALPHA, REFLECTION):
            reflection: Any = channel.stream_stream(path)
            assert await failure(reflection(iter([GARBAGE]))) is grpc.StatusCode.INVALID_ARGUMENT
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_what_is_asked_properly_is_answered() -> None:
    """Health knows the live services, and reflection lists them under its current name, too."""
    async with gateway() as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        asked = health_pb2.HealthCheckRequest(service="liveness").SerializeToString()
        status = health_pb2.HealthCheckResponse.FromString(await check(asked)).status
        assert status == health_pb2.HealthCheckResponse.SERVING
        for path in (REFLECTION_ALPHA, REFLECTION):
            reflection: Any = channel.stream_stream(path)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            call = reflection(iter([request.SerializeToString()]))
            answer = reflection_pb2.ServerReflectionResponse.FromString(await call.read())
            names = [service.name for service in answer.list_services_response.service]
            assert "viewstamp.api.streams.v1.StreamsService" in names


@pytest.mark.parametrize("digits", ["9" * 5_000, "9" * 21, str(2**64), "٣", "-1", ""])
def test_a_revision_that_is_none(digits: str) -> None:
    """A number of any length is only a malformed request, and none is echoed at length."""
    with pytest.raises(Refusal) as caught:
        consistency_of_metadata([("viewstamp-consistency", f"at-least={digits}")])
    assert caught.value.name == "MALFORMED_REQUEST"
    assert len(caught.value.message) < 300
    largest = [("viewstamp-consistency", f"at-least={2**64 - 1}")]
    assert consistency_of_metadata(largest) == ReadConsistency(False, 2**64 - 1)
