"""Services that end their stream in order, and sections that are no longer the base."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from coordinator.stages.client import StageClient
from services.runtime.server import new_server
from tests.coordinator.stages.test_stage_client import (
    WAIT_S,
    ToldStage,
    installable_section,
    put,
    running,
    service,
)
from tests.services.runtime import echo
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import domain_service_pb2_grpc as domain_grpc


@dataclass
class EndingService:
    """Ends each stream with a good status after some messages; it prepares and reads nothing."""

    messages: int
    """It greets with the first; the last one of an installation is the third."""
    greets: bool = True
    streams: int = 0
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether the stream after the first was opened."""
    Normalize: ClassVar[Any] = None
    ReadSection: ClassVar[Any] = None

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:  # noqa: N802
        """Describe the echo domain, without its methods."""
        return pb.DescribeResponse(stage=echo.DOMAIN.stage)  # type: ignore[arg-type]

    async def Apply(self, requests: Any, context: Any) -> None:  # noqa: N802
        """Read, greet, and end."""
        self.streams += 1
        if self.streams > 1:
            self.has_ended.set()
        for _ in range(self.messages):
            await context.read()
            if self.greets:
                await context.write(pb.ApplyResponse(hello=pb.HelloReply()))
                self.greets = False


@contextlib.asynccontextmanager
async def ending(address: str, service: EndingService) -> AsyncIterator[None]:
    """Serve until the block is left."""
    server, servicer = new_server(), cast(domain_grpc.DomainServiceServicer, service)
    domain_grpc.add_DomainServiceServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def ended_once(client: StageClient, address: str, ends: EndingService) -> None:
    """Serve until a stream has ended and the next one was opened."""
    async with ending(address, ends), asyncio.timeout(WAIT_S):
        await ends.has_ended.wait()
    assert not client.connected


@pytest.mark.parametrize("greets", [True, False])
async def test_a_stream_that_ends_in_order_is_opened_again(tmp_path: Path, greets: bool) -> None:
    """No service ends one so; what it did not answer is sent to the next."""
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    client = StageClient(echo.DOMAIN.stage, address, told.events())
    client.send(put(1, "one", "1"))
    async with running(client):
        await ended_once(client, address, EndingService(1, greets))
        async with service(address):
            assert (await told.reply()).sequence == 1


async def test_a_stream_that_ends_in_order_during_an_installation_is_opened_again(
    tmp_path: Path,
) -> None:
    """The section is installed in the next process."""
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    section = await installable_section()
    client = StageClient(echo.DOMAIN.stage, address, told.events(), base=section)
    async with running(client):
        await ended_once(client, address, EndingService(4))
        async with service(address):
            client.send(put(1, "two", "2"))
            assert (await told.reply()).sequence == 1


class Moving:
    """A barrier at which the base of a client moves on, once."""

    def __init__(self) -> None:
        self.clients: list[StageClient] = []

    async def installed(self, stage: int, installed: pb.Installed) -> None:
        """Adopt another snapshot meanwhile."""
        while self.clients:
            client = self.clients.pop()
            assert client.base is not None
            client.base = replace(client.base)


async def test_a_section_that_is_no_longer_the_base_is_not_served(tmp_path: Path) -> None:
    """A snapshot was adopted while it was installed: the stream begins again, and nobody was
    lost."""
    address, told, barrier = f"unix:{tmp_path}/echo.sock", ToldStage(), Moving()
    section = await installable_section()
    client = StageClient(echo.DOMAIN.stage, address, told.events(), barrier, section)
    barrier.clients.append(client)
    async with running(client), service(address):
        client.send(put(1, "two", "2"))
        assert (await told.reply()).sequence == 1
    assert barrier.clients == []
    assert (told.connections, client.restarts) == (1, 0)
