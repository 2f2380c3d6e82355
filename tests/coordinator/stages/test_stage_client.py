"""The coordinator's client of a service, over a real stream to a real service in this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.base.slices import SLICE_MS, Steps
from coordinator.stages.base import InstalledSection
from coordinator.stages.client import (
    ItemLogDroppedError,
    StageClient,
    StageEvents,
)
from coordinator.stages.greeting import CoordinatorIdentity
from coordinator.stages.item_log import ItemLog
from coordinator.stages.outgoing import SHARED_MESSAGE_BYTES_MAX
from services.runtime import patience, stream
from services.runtime.domain import Domain
from services.runtime.server import DomainServer, new_server
from services.runtime.stream import ApplyStream
from tests.services.runtime import echo
from tests.services.runtime.echo import GET, PUT, batch, command, message, put_request, query
from tests.services.runtime.snapshot_trial import SnapshotTrial, read_section
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import domain_service_pb2_grpc as domain_grpc
from viewstamp.limits import MIB

IDENTITY = CoordinatorIdentity(b"c" * 16, 0, 1)
WAIT_S = 20


@dataclass
class ToldStage:
    """The events that the client reported."""

    replies: asyncio.Queue[pb.BatchReply] = field(default_factory=asyncio.Queue)
    lost: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    connections: int = 0

    def events(self) -> StageEvents:
        """Return the events that are collected here."""

        def connected(_: pb.DescribeResponse) -> None:
            self.connections += 1

        return StageEvents(
            replied=self.replies.put_nowait,
            deferred=lambda outcome: None,
            connected=connected,
            lost=self.lost.put_nowait,
        )

    async def reply(self) -> pb.BatchReply:
        """Return the next answer."""
        return await asyncio.wait_for(self.replies.get(), WAIT_S)


@contextlib.asynccontextmanager
async def service(
    address: str, domain: Domain[echo.EchoState] = echo.DOMAIN
) -> AsyncIterator[None]:
    """Serve a build of the echo domain until the block is left."""
    domain_server, server = DomainServer(domain), new_server()
    server.add_insecure_port(address)
    await domain_server.start(server)
    try:
        yield
    finally:
        await domain_server.stop(server)


@contextlib.asynccontextmanager
async def running(client: StageClient) -> AsyncIterator[asyncio.Task[None]]:
    """Run the client until the block is left."""
    task = asyncio.create_task(client.run(IDENTITY))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


def put(sequence: int, name: str, text: str) -> pb.Batch:
    """Return a logged batch that stores a word."""
    return batch(sequence, command(PUT, put_request(name, text), revision=sequence))


async def test_a_restarted_service_is_told_everything_again(tmp_path: Path) -> None:
    """Answered batches are replayed in silence; those that came meanwhile are answered."""
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    client = StageClient(echo.DOMAIN.stage, address, told.events())
    async with running(client):
        async with service(address):
            client.send(put(1, "one", "1"))
            assert (await told.reply()).sequence == 1
        client.send(put(2, "two", "2"))
        async with service(address):
            assert (await told.reply()).sequence == 2
            client.send(batch(0, query(GET, message("GetRequest", name="one"))))
            answer = (await told.reply()).outcomes[0].query
    assert not answer.errors
    assert told.connections == 2


async def test_another_build_may_give_other_notices(tmp_path: Path) -> None:
    """A replay is compared without hints, which no replica depends on."""
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    client = StageClient(echo.DOMAIN.stage, address, told.events())
    noticing = replace(echo.DOMAIN, take_notices=lambda _: [pb.Notice(session_id=7, group_id=1)])
    async with running(client) as run:
        for sequence, domain in enumerate((echo.DOMAIN, noticing, echo.DOMAIN), 1):
            async with service(address, domain):
                client.send(put(sequence, "one", "1"))
                assert (await told.reply()).sequence == sequence
        assert not run.done()
    assert told.connections == 3


@dataclass
class CountedStream:
    """The messages of Apply streams, by kind, with the number of batches or answers in each."""

    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> CountedStream:
    """Count what the service reads and writes."""
    counted = CountedStream()
    handle, write = ApplyStream.handle, ApplyStream.write_replies

    async def counted_handle(
        serving: ApplyStream, request: pb.ApplyRequest, tasks: asyncio.TaskGroup
    ) -> None:
        counted.asked.append(len(request.batches.batches) or 1)
        await handle(serving, request, tasks)

    async def counted_write(serving: ApplyStream) -> None:
        put = serving.replies.put

        async def counted_put(reply: pb.ApplyResponse | None) -> None:
            if reply is not None:
                counted.answered.append(len(reply.replies.replies) or 1)
            await put(reply)

        monkeypatch.setattr(serving.replies, "put", counted_put)
        await write(serving)

    monkeypatch.setattr(ApplyStream, "handle", counted_handle)
    monkeypatch.setattr(ApplyStream, "write_replies", counted_write)
    return counted


@pytest.mark.parametrize(
    ("text_bytes", "asked", "answered"),
    [
        pytest.param(10, [1, 3], [1, 3], id="small ones share a message both ways"),
        pytest.param(
            SHARED_MESSAGE_BYTES_MAX // 2, [1, 1, 1, 1], [1, 1, 1, 1], id="large ones do not"
        ),
    ],
)
async def test_batches_that_wait_share_a_message(
    tmp_path: Path, counted: CountedStream, text_bytes: int, asked: list[int], answered: list[int]
) -> None:
    """Small batches given in one turn of the loop share a message; each is answered in its turn,
    and a read behind them goes alone."""
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    client = StageClient(echo.DOMAIN.stage, address, told.events())
    async with running(client), service(address):
        client.send(put(1, "one", "1"))
        assert (await told.reply()).sequence == 1
        for sequence in (2, 3, 4):
            client.send(put(sequence, f"name-{sequence}", "x" * text_bytes))
        assert [(await told.reply()).sequence for _ in range(3)] == [2, 3, 4]
        client.send(batch(0, query(GET, message("GetRequest", name="name-4"))))
        answer = (await told.reply()).outcomes[0].query
    assert not answer.errors
    assert (counted.asked, counted.answered) == ([*asked, 1], [*answered, 1])


async def test_slow_batches_are_answered_one_by_one(
    tmp_path: Path, counted: CountedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator learns of a slow service in time, however many batches share a message."""
    monkeypatch.setattr(stream, "SHARED_ANSWERS_DELAY_MS", -1)
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    client = StageClient(echo.DOMAIN.stage, address, told.events())
    async with running(client), service(address):
        client.send(put(1, "one", "1"))
        await told.reply()
        for sequence in (2, 3, 4):
            client.send(put(sequence, "two", "2"))
        assert [(await told.reply()).sequence for _ in range(3)] == [2, 3, 4]
    assert (counted.asked, counted.answered) == ([1, 3], [1, 1, 1, 1])


async def test_traced_batches_travel_alone(tmp_path: Path, counted: CountedStream) -> None:
    """Traceparents are added to an encoded message, so it must hold one batch."""
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    client = StageClient(echo.DOMAIN.stage, address, told.events())
    async with running(client), service(address):
        client.send(put(1, "one", "1"))
        await told.reply()
        for sequence in (2, 3, 4):
            client.send(put(sequence, "two", "2"), ["00-" + "1" * 32 + "-" + "2" * 16 + "-01"])
        assert [(await told.reply()).sequence for _ in range(3)] == [2, 3, 4]
    assert counted.asked == [1, 1, 1, 1]


async def test_no_stream_is_opened_once_the_item_log_was_dropped(tmp_path: Path) -> None:
    """A log that overflows while the service is away ends the client before it asks an empty
    machine, which would answer as if nothing had ever been written."""
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    client = StageClient(echo.DOMAIN.stage, address, told.events())
    client.item_log = ItemLog(bytes_max=1_000)
    async with running(client) as task:
        async with service(address):
            client.send(put(1, "one", "1"))
            await told.reply()
        await asyncio.wait_for(told.lost.get(), WAIT_S)
        await asyncio.sleep(0.1)  # so that it waits for the service to come back
        assert not client.item_log.dropped
        client.send(put(2, "two", "2" * 1_000))
        client.send(batch(0, query(GET, message("GetRequest", name="one"))))
        async with service(address):
            with pytest.raises(ItemLogDroppedError, match="item log had been dropped"):
                await asyncio.wait_for(task, WAIT_S)
    assert told.connections == 1
    assert told.replies.empty()


class AnswersWhenCancelled:
    """A stub whose call answers its cancellation, as one does whose answer has just arrived."""

    def __init__(self, _: Any) -> None:
        pass

    async def Normalize(self, _: Any, *, timeout: float) -> pb.NormalizeResponse:  # noqa: N802
        """Wait to be cancelled."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(timeout)
        return pb.NormalizeResponse()


async def test_a_cancelled_caller_of_normalize_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler that is cancelled while the service answers ends, although the answer came."""
    monkeypatch.setattr(domain_grpc, "DomainServiceStub", AnswersWhenCancelled)
    client = StageClient(echo.DOMAIN.stage, "unix:/nowhere.sock", ToldStage().events())
    asking = asyncio.create_task(client.normalize(pb.NormalizeRequest(), WAIT_S * 1000))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await client.close()


class HeldBack:
    """Holds a service back until the others have caught up."""

    def __init__(self) -> None:
        """Hold a caller back."""
        self.came, self.released = asyncio.Event(), asyncio.Event()

    async def installed(self, stage: int, installed: pb.Installed) -> None:
        """Return once released."""
        self.came.set()
        await self.released.wait()


async def installable_section() -> InstalledSection:
    """Return the section of one word."""
    trial = SnapshotTrial(echo.DOMAIN)
    trial.machine.apply(put(1, "one", "1"))
    trial.cut()
    blocks, summary = await read_section(trial.machine)
    return InstalledSection(
        generation=1,
        revision=1,
        sequence=0,
        section_version=summary.section_version,
        state_digest=summary.state_digest,
        entities=sum(count.entities for count in summary.kinds),
        layers=1,
        blocks=lambda: ((0, block) for block in blocks),
    )


async def test_a_service_that_dies_while_it_is_held_back_is_installed_again(tmp_path: Path) -> None:
    """The death of a held-back service shows at its activation, and is like any other death."""
    address, told, held = f"unix:{tmp_path}/echo.sock", ToldStage(), HeldBack()
    section = await installable_section()
    client = StageClient(echo.DOMAIN.stage, address, told.events(), held, section)
    async with running(client):
        async with service(address):
            await asyncio.wait_for(held.came.wait(), WAIT_S)
        held.released.set()
        async with service(address):
            client.send(put(1, "two", "2"))
            assert (await told.reply()).sequence == 1
            assert client.restarts == 1
            client.send(batch(0, query(GET, message("GetRequest", name="one"))))
            answer = (await told.reply()).outcomes[0].query
    assert not answer.errors
    assert told.connections == 1


async def test_answers_as_large_as_a_service_may_give_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many packed reads are answered in one message, which both sides must allow."""
    monkeypatch.setattr(patience, "SLICE_NS", 10**12)
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    client = StageClient(echo.DOMAIN.stage, address, told.events())
    get = message("GetRequest", name="large")
    async with service(address), running(client):
        client.send(put(1, "large", "x" * (3 * MIB)))
        await told.reply()
        client.send(batch(0, *(query(GET, get, query_id=number) for number in range(1, 9))))
        reply = await told.reply()
    assert [outcome.query.query_id for outcome in reply.outcomes] == list(range(1, 9))
    assert reply.ByteSize() > 24 * MIB
    assert told.connections == 1


async def test_an_answer_that_was_not_decoded_yet_is_given_by_the_next_process(
    tmp_path: Path,
) -> None:
    """A stream that ends while an answer is decoded in steps loses and doubles nothing."""
    address, told = f"unix:{tmp_path}/echo.sock", ToldStage()
    begun, is_held = asyncio.Event(), True

    def decode(reply: pb.BatchReply) -> Steps[pb.BatchReply]:
        begun.set()
        while is_held:
            time.sleep(SLICE_MS / 1000)  # a slice each: the loop turns
            yield
        return reply

    client = StageClient(echo.DOMAIN.stage, address, replace(told.events(), decode=decode))
    async with running(client):
        async with service(address):
            client.send(put(1, "one", "1"))
            await asyncio.wait_for(begun.wait(), WAIT_S)
            assert told.replies.empty()
        client.send(put(2, "two", "2"))  # it finds that the stream has ended
        await asyncio.wait_for(told.lost.get(), WAIT_S)
        is_held = False
        async with service(address):
            assert [(await told.reply()).sequence for _ in range(2)] == [1, 2]
    assert told.replies.empty()
