"""Watches of several replicas: all show the same changes, through every failover."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from tests.replicas.trial import (
    SETTLE_TIMEOUT_S,
    ReplicasTrial,
    agree,
    token_of,
    trial,
    under_load,
)
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client import Endpoint
from viewstamp.client.transport import bearer
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal
from viewstamp.status import refusal_of

pytestmark = pytest.mark.long

WATCH_PATH: Final = "/viewstamp.api.watch.v1.WatchService/Watch"
OPERATIONS: Final = 150
PAUSE_S: Final = 0.1
REPLICAS: Final = 3


class ReplicaFeed:
    """Watches one replica; whenever the watch ends, begins anew behind the last header."""

    def __init__(self, made: ReplicasTrial, replica: int) -> None:
        self.changes: list[bytes] = []
        self.ended_with: list[str] = []
        self.complete_revision = 0
        self._pending: list[bytes] = []  # of a revision that is not complete
        self._made = made
        self._replica = replica

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            try:
                await self._watch()
            except (grpc.aio.AioRpcError, Refusal) as error:
                self.ended_with.append(_reason(error))
                await asyncio.sleep(PAUSE_S)

    async def until(self, revision: int) -> None:
        """Wait until the feed is complete up to a revision."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                if self.complete_revision >= revision:
                    return
                await asyncio.sleep(PAUSE_S)

    async def until_ended(self, count: int) -> None:
        """Wait until the watch has ended so many times."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                if len(self.ended_with) >= count:
                    return
                await asyncio.sleep(PAUSE_S)

    async def _watch(self) -> None:
        async with Endpoint(self._made.replicas.addresses[self._replica]).open() as channel:
            token = await token_of(self._made.replicas, channel)
            stub: Any = channel.unary_stream(
                WATCH_PATH,
                request_serializer=watch_pb2.WatchRequest.SerializeToString,
                response_deserializer=watch_pb2.WatchResponse.FromString,
            )
            self._pending.clear()
            request = watch_pb2.WatchRequest(
                from_revision=self.complete_revision + 1, progress_notifications=True
            )
            async for message in stub(request, metadata=bearer(token)):
                self._take(message)

    def _take(self, message: watch_pb2.WatchResponse) -> None:
        revision = message.header.revision
        assert revision >= self.complete_revision
        self.complete_revision = revision
        waiting = [(each.revision, each.SerializeToString()) for each in message.changes]
        self.changes += self._pending
        self.changes += [encoded for each, encoded in waiting if each <= revision]
        self._pending = [encoded for each, encoded in waiting if each > revision]


def _reason(error: grpc.aio.AioRpcError | Refusal) -> str:
    if isinstance(error, Refusal):
        return error.name
    refusal = refusal_of(error)
    return error.code().name if refusal is None else refusal.name


def revisions(feed: ReplicaFeed) -> list[int]:
    """Return the revisions of the changes of a feed."""
    return [watch_pb2.Change.FromString(each).revision for each in feed.changes]


@asynccontextmanager
async def feeds_of(made: ReplicasTrial) -> AsyncIterator[list[ReplicaFeed]]:
    """Watch every replica in the block."""
    feeds = [ReplicaFeed(made, replica) for replica in range(REPLICAS)]
    async with AsyncExitStack() as stack:
        for feed in feeds:
            task = asyncio.ensure_future(feed.run())
            stack.push_async_callback(_end, task)
        yield feeds


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def present(made: ReplicasTrial, feeds: list[ReplicaFeed]) -> None:
    """Wait until all feeds have come to the present."""
    last = (await made.admin.streams.create(f"last-{secrets.token_hex(6)}")).header.revision
    for feed in feeds:
        await feed.until(last)


async def check(made: ReplicasTrial, feeds: list[ReplicaFeed]) -> None:
    """Check that all feeds have all changes, once and in order, and that replicas agree."""
    await present(made, feeds)
    assert feeds[0].changes == feeds[1].changes == feeds[2].changes
    found = revisions(feeds[0])
    assert found == sorted(found)
    assert len(feeds[0].changes) == len(set(feeds[0].changes))
    # Whatever callers created or deleted is there.
    done = {
        operation.revision
        for _, operation in made.history
        if operation.kind != "read" and operation.output is True
    }
    assert done - {None} <= set(found)
    await agree(made)


@pytest.mark.exhaustive
async def test_all_replicas_show_the_same(tmp_path: Path) -> None:
    """A watch of the primary and one of a backup give the same bytes, over a step-down."""
    async with trial(tmp_path) as made, feeds_of(made) as feeds:
        async with under_load(made):
            for _ in range(2):
                await made.until_answered(OPERATIONS)
                await made.admin.step_down()
            await made.until_answered(OPERATIONS)
        await check(made, feeds)
        assert len(feeds[0].changes) > OPERATIONS // 2
        assert [feed.ended_with for feed in feeds] == [[], [], []]


async def test_watches_survive_the_primary(tmp_path: Path) -> None:
    """The watches of the other replicas go on under a new primary, and that of the dead one is
    begun anew when it is back: none has missed a change or has one twice."""
    async with trial(tmp_path) as made, feeds_of(made) as feeds:
        async with under_load(made):
            for _ in range(3):
                await made.until_answered(OPERATIONS)
                await present(made, feeds)
                primary = await made.primary()
                ended = [len(feed.ended_with) for feed in feeds]
                made.replicas.replicas[primary].kill(COORDINATOR)
                await made.until_answered(OPERATIONS)
                await feeds[primary].until_ended(ended[primary] + 1)
                survivors = [replica for replica in range(REPLICAS) if replica != primary]
                for replica in survivors:
                    assert feeds[replica].ended_with[ended[replica] :] == []
                await made.replicas.wait_ready()
        await check(made, feeds)


@pytest.mark.exhaustive
async def test_a_replica_that_is_alone_ends_its_watches(tmp_path: Path) -> None:
    """A replica that hears no other one cannot know whether its feed is complete: it says so."""
    async with trial(tmp_path, callers=1) as made, feeds_of(made) as feeds:
        await check(made, feeds)
        alone = (await made.primary() + 1) % REPLICAS
        others = [replica for replica in range(REPLICAS) if replica != alone]
        for other in others:
            made.replicas.replicas[other].kill(COORDINATOR, signal.SIGSTOP)
        try:
            await feeds[alone].until_ended(1)
        finally:
            for other in others:
                made.replicas.replicas[other].kill(COORDINATOR, signal.SIGCONT)
        assert feeds[alone].ended_with[0] == "NO_QUORUM"
        await check(made, feeds)


@pytest.mark.exhaustive
async def test_a_paused_replica_catches_up(tmp_path: Path) -> None:
    """A replica that was paused shows what it has missed, in order, whether its watch ends or
    not."""
    async with trial(tmp_path) as made, feeds_of(made) as feeds:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            paused = made.replicas.replicas[(await made.primary() + 1) % REPLICAS]
            paused.kill(COORDINATOR, signal.SIGSTOP)
            try:
                await made.until_answered(2 * OPERATIONS)
            finally:
                paused.kill(COORDINATOR, signal.SIGCONT)
            await made.until_answered(OPERATIONS)
        await check(made, feeds)
