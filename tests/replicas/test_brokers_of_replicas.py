"""Brokers on three replicas: no two lead one partition, and none that lives is fenced.

Who leads is judged by revisions. A broker that leads in an epoch, and has seen a revision, claims
all revisions from the epoch to that one; the claims of two brokers on a partition never meet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.replicas.trial import SETTLE_TIMEOUT_S, ReplicasTrial, trial
from viewstamp.api.streams.v1.streams_pb2 import TopicOptions
from viewstamp.client import Client, connect
from viewstamp.client.broker_replicas import TopicPartition
from viewstamp.client.broker_session import BrokerSession
from viewstamp.cluster.local import COORDINATOR
from viewstamp.limits import ROOT_USERNAME

pytestmark = pytest.mark.long

TOPIC: Final = ("brokers", "events")
PARTITIONS: Final = 12
BROKERS: Final = 3
TIMEOUT_MS: Final = 10_000
LOOK_AGAIN_S: Final = 0.01


class LeadershipClaims:
    """What brokers claimed to lead: by partition and epoch, up to which revision, and who."""

    def __init__(self) -> None:
        self.claims: dict[TopicPartition, dict[int, tuple[int, int]]] = {}
        self.faults: list[str] = []

    def add(self, session: BrokerSession) -> None:
        """Note what a broker leads at this moment."""
        seen = session.stamp.seen_revision
        for partition, epoch in session.leads.items():
            epochs = self.claims.setdefault(partition, {})
            last, broker_id = epochs.get(epoch, (0, session.broker_id))
            if broker_id != session.broker_id:
                self.faults.append(f"{partition} has two leaders in epoch {epoch}")
            epochs[epoch] = (max(last, seen), broker_id)

    def overlaps(self) -> list[str]:
        """Return the faults: two leaders of one partition at one revision."""
        found = list(self.faults)
        for partition, epochs in self.claims.items():
            ordered = sorted((epoch, *claim) for epoch, claim in epochs.items())
            for (_, last, one), (epoch, _, other) in pairwise(ordered):
                if one != other and last >= epoch:
                    found.append(f"{partition}: {one} up to {last}, {other} from {epoch}")
        return found


def test_overlapping_claims_are_found() -> None:
    """The judge finds two leaders at one revision, and accepts one after the other."""
    place = TopicPartition(1, 1, 0)
    made = LeadershipClaims()
    made.claims[place] = {10: (19, 1), 20: (25, 2), 26: (30, 1)}
    assert made.overlaps() == []
    made.claims[place][10] = (20, 1)
    assert len(made.overlaps()) == 1


class BrokerTrial:
    """Brokers of which all is noted that they lead."""

    def __init__(self, made: ReplicasTrial) -> None:
        self.made = made
        self.clients: list[Client] = []
        self.sessions: list[BrokerSession] = []
        self.claims = LeadershipClaims()

    async def watch(self) -> None:
        """Look again and again, for ever."""
        while True:
            for session in self.sessions:
                self.claims.add(session)
            await asyncio.sleep(LOOK_AGAIN_S)

    async def shared(self, sessions: Sequence[BrokerSession]) -> None:
        """Wait until some of the brokers, each of them, lead all partitions together."""

        def are_shared() -> bool:
            counts = [len(each.leads) for each in sessions]
            return all(counts) and sum(counts) == PARTITIONS

        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while not are_shared():  # noqa: ASYNC110 - several may tell
                await asyncio.sleep(LOOK_AGAIN_S)

    async def fenced(self) -> list[int]:
        """Return the ids of brokers that are fenced."""
        return [each.id async for each in self.made.admin.brokers.list() if each.fenced]

    async def kill_primary(self) -> None:
        """Kill the coordinator of the primary, which comes back."""
        self.made.replicas.replicas[await self.made.primary()].kill(COORDINATOR)


@asynccontextmanager
async def brokers(made: ReplicasTrial) -> AsyncIterator[BrokerTrial]:
    """Start brokers, create a topic on all of them, and yield them with the watch over them."""
    password = made.replicas.root_password_path.read_text().strip()
    started = BrokerTrial(made)
    async with AsyncExitStack() as stack:
        for number in range(BROKERS):
            client = await stack.enter_async_context(
                await connect(made.replicas.addresses, username=ROOT_USERNAME, password=password)
            )
            session = client.brokers.session(
                f"broker-{number}",
                {"internal": ("localhost", 9_000 + number)},
                storage_id=str(number),
                rack=str(number),
                timeout_ms=TIMEOUT_MS,
            )
            started.clients.append(client)
            started.sessions.append(await stack.enter_async_context(session))
        await made.admin.streams.create(TOPIC[0])
        options = TopicOptions(replication_factor=BROKERS)
        await made.admin.topics.create(*TOPIC, partitions_count=PARTITIONS, options=options)
        watching = asyncio.create_task(started.watch())
        try:
            yield started
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.exhaustive
async def test_a_failover_moves_no_leader(tmp_path: Path) -> None:
    """Whoever lives keeps its epoch and its partitions while one primary after another dies."""
    async with trial(tmp_path, callers=0) as made, brokers(made) as started:
        await started.shared(started.sessions)
        epochs = [each.broker_epoch for each in started.sessions]
        leads = [dict(each.leads) for each in started.sessions]
        for _ in range(3):
            await started.kill_primary()
            # A change that all of them have to see.
            last = await made.admin.topics.update(*TOPIC, name=TOPIC[1])
            for session in started.sessions:
                await session.come_to(last.header.revision)
        assert await started.fenced() == []
        assert [each.broker_epoch for each in started.sessions] == epochs
        await started.shared(started.sessions)
        assert [dict(each.leads) for each in started.sessions] == leads
        assert started.claims.overlaps() == []


@pytest.mark.exhaustive
async def test_leaders_change_while_primaries_die(tmp_path: Path) -> None:
    """Brokers are drained, die and come back under kills; nobody leads what another one leads."""
    async with trial(tmp_path, callers=0) as made, brokers(made) as started:
        await started.shared(started.sessions)
        one, two, three = started.sessions
        await made.admin.brokers.update(one.broker_id, draining=True)
        await started.kill_primary()
        await started.shared([two, three])
        await made.admin.brokers.update(one.broker_id, draining=False)
        await started.shared(started.sessions)
        await started.clients[2].close(end_session=False)  # the cluster hears nothing of it
        await started.kill_primary()
        await started.shared([one, two])
        assert await started.fenced() == [three.broker_id]
        assert three.leads == {}
        assert len(started.claims.claims) == PARTITIONS
        assert started.claims.overlaps() == []
