"""The link to a service: a lost connection loses reads alone, and stopping is obeyed."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.stages.client import StageClient, StageEvents
from coordinator.stages.greeting import read_hello_reply
from viewstamp.api.domain.v1 import domain_service_pb2 as domain


async def test_lost_reads_are_told_before_the_next_connection() -> None:
    """A read sent without a connection fails once, before the service is reported back."""
    told: list[str] = []
    events = StageEvents(
        replied=lambda _: None,
        deferred=lambda _: None,
        connected=lambda _: told.append("connected"),
        lost=told.append,
    )
    client = StageClient(2, "unix:/nowhere", events)
    client.send(domain.Batch(sequence=0))
    client.send(domain.Batch(sequence=0))
    assert told == []  # the mux is in the middle of a step
    client.opened(domain.DescribeResponse(stage=2))  # type: ignore[arg-type]
    client.send(domain.Batch(sequence=0))
    await asyncio.sleep(0)
    assert told == ["not connected", "connected"]
    await client.close()


async def test_commands_wait_for_the_connection() -> None:
    """Logged commands are sent from the item log once there is a connection."""
    ignored = StageEvents(
        replied=lambda _: None,
        deferred=lambda _: None,
        connected=lambda _: None,
        lost=lambda _: None,
    )
    client = StageClient(2, "unix:/nowhere", ignored)
    for sequence in (1, 2):
        client.send(domain.Batch(sequence=sequence))
    assert (len(client.item_log), client.replaying) == (2, False)
    client.opened(domain.DescribeResponse(stage=2))  # type: ignore[arg-type]
    assert client.replaying
    await client.close()


async def test_stopping_is_not_lost_in_an_answer() -> None:
    """A cancellation that arrives together with the service's hello is obeyed."""

    class Call:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def read(self) -> bytes:
            return await self.answer

    call = Call()
    reading = asyncio.create_task(read_hello_reply(call))
    await asyncio.sleep(0)
    call.answer.set_result(b"hello")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
