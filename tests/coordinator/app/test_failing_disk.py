"""A disk that refuses to sync ends the process, and acknowledges nothing it may have lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from coordinator.app.leadership import READY_FILE
from coordinator.app.main import EXIT_FAILED, EXIT_STOPPED, serve
from tests.coordinator.app.in_process import CLUSTER_ID, KEY, Surroundings, surroundings
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.streams.v1.streams_service_pb2_grpc import StreamsServiceStub
from viewstamp.tokens import sign

TOKEN = sign(KEY, CLUSTER_ID, 0, 1, 2**62)
METADATA = (("authorization", f"Bearer {TOKEN}"),)


@pytest.fixture
async def around() -> AsyncIterator[Surroundings]:
    """Services and a disk."""
    with tempfile.TemporaryDirectory(prefix="vs") as name:
        async with surroundings(Path(name)) as made:
            yield made


async def address_of(around: Surroundings, serving: asyncio.Task[int]) -> str:
    """Wait until the coordinator serves."""
    path = around.config.data_directory / READY_FILE
    while not path.exists():
        await asyncio.sleep(0.01)
        assert not serving.done(), serving.result()
    return str(json.loads(path.read_text())["address"])


async def create(channel: grpc.aio.Channel, name: str) -> Any:
    """Create a stream."""
    stub: Any = StreamsServiceStub(channel)
    request = streams.CreateStreamRequest(name=name)
    return await stub.CreateStream(request, metadata=METADATA, timeout=30)


async def test_failed_sync_ends_the_process(around: Surroundings) -> None:
    """The command gets no answer, the exit code is 1, and a restart has all acknowledged
    streams."""
    serving = asyncio.create_task(serve(around.config, around.open(), KEY))
    async with grpc.aio.insecure_channel(await address_of(around, serving)) as channel:
        acknowledged = (await create(channel, "kept")).header.revision
        around.storage.fails = True
        with pytest.raises(grpc.aio.AioRpcError):
            await create(channel, "never acknowledged")
    assert await asyncio.wait_for(serving, 30) == EXIT_FAILED
    around.storage.fails = False
    serving = asyncio.create_task(serve(around.config, around.open(), KEY))
    async with grpc.aio.insecure_channel(await address_of(around, serving)) as channel:
        assert (await create(channel, "after")).header.revision > acknowledged
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await create(channel, "kept")
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(serving, 30) == EXIT_STOPPED
    assert not (around.config.data_directory / READY_FILE).exists()


@pytest.mark.long
async def test_what_was_mended_in_the_journal_is_told(
    around: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged segment header is rewritten at the start, and the log names the file."""
    for is_damaged in (False, True):
        caplog.clear()
        serving = asyncio.create_task(serve(around.config, around.open(), KEY))
        await address_of(around, serving)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(serving, 30) == EXIT_STOPPED
        told = [record for record in caplog.records if "segment headers" in record.message]
        assert bool(told) is is_damaged
        segment = next((around.config.data_directory / "journal").glob("segment-*.log"))
        with segment.open("r+b") as file:
            file.seek(40)
            file.write(b"\xff\xff")
