"""A slow service is waited for, and one that hangs is reported: over streams in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from coordinator.app.services import state_of
from coordinator.replica.fitness import ServiceState
from coordinator.stages.busyness import LOOK_INTERVAL_MS
from coordinator.stages.client import StageClient, StageEvents
from services.runtime.install_stream import InstallSteps
from services.runtime.stream import ApplyStream
from tests.coordinator.stages.test_stage_client import (
    WAIT_S,
    ToldStage,
    installable_section,
    put,
    running,
    service,
)
from tests.services.runtime import echo
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as pb


class SlowNetwork:
    """Forwards bytes to a service, unless it is held up."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.flows = asyncio.Event()
        self.flows.set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yield the address of this side."""
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_unix_connection(self.address)
            for way in ((reader, there[1]), (there[0], writer)):
                tasks.add(asyncio.create_task(self._pass(*way)))

        server = await asyncio.start_server(serve, "127.0.0.1", 0, family=socket.AF_INET)
        try:
            host, port = server.sockets[0].getsockname()
            yield f"{host}:{port}"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while data := await reader.read(65_536):
                await self.flows.wait()
                writer.write(data)
                await writer.drain()


async def test_who_is_behind_a_slow_network_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sign of life that waits behind data, longer than a silent neighbor is tolerated, ends no
    stream."""
    monkeypatch.setattr(limits, "STAGE_PING_TIMEOUT_MS", 200)
    told, network = ToldStage(), SlowNetwork(f"{tmp_path}/echo.sock")
    async with service(f"unix:{network.address}"), network.listening() as address:
        client = StageClient(echo.DOMAIN.stage, address, told.events())
        async with running(client):
            client.send(put(1, "one", "1"))
            await told.reply()
            network.flows.clear()
            client.send(put(2, "two", "2"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(told.lost.get(), 2 * limits.STAGE_PING_MS / 1000 + 0.7)
            network.flows.set()
            assert (await told.reply()).sequence == 2
            assert client.restarts == 0


class SilentService:
    """A stream that accepts every write and answers nothing."""

    def __init__(self) -> None:
        self.written: deque[bytes] = deque()
        self.came = asyncio.Event()

    async def write(self, message: bytes) -> None:
        """Take a message."""
        self.written.append(message)
        self.came.set()


async def test_what_is_unanswered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life wait behind a bounded number of bytes; each answer lets as many follow, and
    a larger message goes alone."""
    monkeypatch.setattr(limits, "STAGE_UNANSWERED_BYTES_MAX", 500_000)
    client = StageClient(echo.DOMAIN.stage, "unix:/nobody", ToldStage().events())
    client.connected = True
    stream = SilentService()
    for sequence, size in enumerate((200_000, 200_000, 200_000, 600_000), 1):
        client.send(put(sequence, f"name-{sequence}", "x" * size))
    writer = asyncio.create_task(client.write(stream))
    await asyncio.wait_for(stream.came.wait(), WAIT_S)
    sent = []
    for sequence in range(1, 5):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sent.append(len(stream.written))
        await client.decode_and_tell(pb.BatchReply(sequence=sequence))
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    assert sent == [2, 3, 3, 4]


async def test_what_a_service_waits_for_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The acknowledgement that a service awaits goes first, however much is unanswered."""
    monkeypatch.setattr(limits, "STAGE_UNANSWERED_BYTES_MAX", 500_000)
    client = StageClient(echo.DOMAIN.stage, "unix:/nobody", ToldStage().events())
    client.connected = True
    stream = SilentService()
    for sequence in (1, 2):
        client.send(put(sequence, f"name-{sequence}", "x" * 600_000))
    writer = asyncio.create_task(client.write(stream))
    await asyncio.wait_for(stream.came.wait(), WAIT_S)
    for awaits_heard in (False, True):
        client.hear(pb.Attempt(sequence=1, awaits_heard=awaits_heard))
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(stream.written) == 1 + awaits_heard
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    assert pb.ApplyRequest.FromString(stream.written[-1]).HasField("heard")


async def test_a_service_that_hangs_in_its_section_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that hangs in its section is down, and up again once it gets on."""
    monkeypatch.setattr("coordinator.stages.busyness.STAGE_BUSY_MS", 2 * LOOK_INTERVAL_MS)
    goes_on, is_busy, got_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    handle = InstallSteps.handle

    async def hang(steps: InstallSteps, message: pb.Install) -> pb.Installed | None:
        await goes_on.wait()
        return await handle(steps, message)

    monkeypatch.setattr(InstallSteps, "handle", hang)
    told, address = ToldStage(), f"unix:{tmp_path}/echo.sock"
    events = told.events()
    busy = StageEvents(
        events.replied,
        events.deferred,
        events.connected,
        events.lost,
        busy=lambda ms: (is_busy if ms else got_on).set(),
    )
    section = await installable_section()
    client = StageClient(echo.DOMAIN.stage, address, busy, base=section)
    async with running(client), service(address):
        await asyncio.wait_for(is_busy.wait(), WAIT_S)
        assert state_of(client) is ServiceState.DOWN
        goes_on.set()
        await asyncio.wait_for(got_on.wait(), WAIT_S)
        client.send(put(1, "two", "2"))
        assert (await told.reply()).sequence == 1
        assert state_of(client) is ServiceState.UP
        assert client.restarts == 0


async def test_who_dies_of_one_batch_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process that gets everything again is waited for; the next one only beyond the
    place where the first died."""
    told, address = ToldStage(), f"unix:{tmp_path}/echo.sock"
    client = StageClient(echo.DOMAIN.stage, address, told.events())
    seen: list[bool] = []
    handle = ApplyStream.handle

    async def die(serving: ApplyStream, request: pb.ApplyRequest, tasks: asyncio.TaskGroup) -> None:
        if request.batch.sequence == 2 and len(seen) < 4:
            seen.append(client.coming_back)
            serving.end(grpc.StatusCode.UNAVAILABLE, "dead")
            return
        await handle(serving, request, tasks)

    monkeypatch.setattr(ApplyStream, "handle", die)
    async with running(client), service(address):
        client.send(put(1, "one", "1"))
        await told.reply()
        client.send(put(2, "two", "2"))
        assert (await told.reply()).sequence == 2
        assert state_of(client) is ServiceState.UP
        assert client.restarts == 4
    assert seen == [False, True, False, False]


@pytest.mark.parametrize(
    ("connected", "replaying", "coming_back", "is_busy", "state"),
    [
        (True, False, False, False, ServiceState.UP),
        (True, False, False, True, ServiceState.DOWN),  # hung, at a read perhaps
        (True, True, True, False, ServiceState.COMING_BACK),
        (True, True, False, False, ServiceState.DOWN),  # it dies again and again
        (False, False, True, False, ServiceState.COMING_BACK),
        (False, False, False, False, ServiceState.DOWN),
    ],
)
def test_who_does_not_get_on_is_not_up(
    connected: bool, replaying: bool, coming_back: bool, is_busy: bool, state: ServiceState
) -> None:
    """A service that hangs makes its replica unfit, whatever it hangs at."""
    client = SimpleNamespace(
        connected=connected, replaying=replaying, coming_back=coming_back, is_busy=is_busy
    )
    assert state_of(cast(Any, client)) is state
