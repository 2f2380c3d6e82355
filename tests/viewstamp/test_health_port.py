"""The port for probes tells the health of a process, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from viewstamp.health_port import METHOD, REQUEST_BYTES_MAX, SERVICE, HealthPort

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def called(
    path: str = f"/{SERVICE}/{METHOD}",
) -> AsyncIterator[Any]:
    """Serve a process that lives and is not ready, and return a method of its port."""
    health = HealthServicer()
    await health.set("liveness", SERVING)
    await health.set("readiness", NOT_SERVING)
    port = HealthPort("127.0.0.1:0", health)
    await port.start()
    async with grpc.aio.insecure_channel(port.address) as channel:
        yield channel.unary_unary(path)
    await port.stop()


@pytest.mark.parametrize(("name", "status"), [("liveness", SERVING), ("readiness", NOT_SERVING)])
async def test_each_name_has_its_status(name: str, status: int) -> None:
    """A probe hears the status of the name that it asks for."""
    async with called() as check:
        answer = await check(health_pb2.HealthCheckRequest(service=name).SerializeToString())

    assert health_pb2.HealthCheckResponse.FromString(answer).status == status


@pytest.mark.parametrize(
    ("path", "request_bytes", "code"),
    [
        (
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest(service="other").SerializeToString(),
            grpc.StatusCode.NOT_FOUND,
        ),
        ("/grpc.health.v1.Health/Check", b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (
            "/grpc.health.v1.Health/Check",
            b"x" * (REQUEST_BYTES_MAX + 1),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        ),
        ("/grpc.health.v1.Health/Watch", b"", grpc.StatusCode.UNIMPLEMENTED),
        (
            "/viewstamp.api.cluster.v1.ClusterService/GetStatus",
            b"",
            grpc.StatusCode.UNIMPLEMENTED,
        ),
    ],
    ids=["unknown name", "garbage", "too large", "a stream that stays", "another service"],
)
async def test_all_else_is_refused(
    path: str, request_bytes: bytes, code: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    """What is no question for a status is refused, without a line in the log."""
    async with called(path) as method:
        caplog.clear()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(request_bytes)

    assert refused.value.code() == code
    assert caplog.text == ""


async def test_calls_that_are_never_finished_hold_no_place() -> None:
    """A caller that does not finish its call loses its connection, and probes find a place."""
    port = HealthPort("127.0.0.1:0", HealthServicer(), age_ms=200)
    await port.start()
    async with grpc.aio.insecure_channel(port.address) as channel:
        call: Any = channel.stream_unary(f"/{SERVICE}/{METHOD}")()
        async with asyncio.timeout(20):
            with pytest.raises(grpc.aio.AioRpcError):
                await call
    await port.stop()


async def test_an_address_that_cannot_be_bound_is_named() -> None:
    """A malformed address and a port in use are errors that name flag and address."""
    with pytest.raises(ValueError, match="--health-listen is '7401': give HOST:PORT"):
        HealthPort("7401", HealthServicer())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"--health-listen 127.0.0.1:{port}: cannot be bound"):
            HealthPort(f"127.0.0.1:{port}", HealthServicer())
