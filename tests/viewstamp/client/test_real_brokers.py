"""Brokers by the client's facades, sessions and informers, against a real replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

import viewstamp
from tests.processes.processes import COORDINATOR, ReplicaProcesses, replica
from viewstamp.api.brokers.v1.brokers_pb2 import Broker, Placements
from viewstamp.api.streams.v1.streams_pb2 import TopicOptions
from viewstamp.api.users.v1.users_pb2 import GlobalPermissions, Permissions
from viewstamp.client import Client, Refusal
from viewstamp.client.broker_session import BrokerSession

LONG_S = 300.0
# Longer than a test: what a broker leads changes by commands alone.
TIMEOUT_MS = 600_000
ENDPOINTS = {"internal": ("localhost", 9_000)}
PASSWORD = "a long password"


@pytest.fixture(scope="module")
def processes() -> Iterator[ReplicaProcesses]:
    """A running replica; each test has names of its own, and leaves no broker that leads."""
    with replica() as running:
        yield running


@asynccontextmanager
async def connected(
    processes: ReplicaProcesses, username: str = "root", password: str = ""
) -> AsyncIterator[Client]:
    """Yield a client that is patient, of root by default."""
    async with await viewstamp.connect(
        processes.address,
        username=username,
        password=password or processes.root_password(),
        timeout_s=LONG_S,
        connect_timeout_s=LONG_S,
    ) as client:
        yield client


def session_of(client: Client, name: str) -> BrokerSession:
    """Return a session whose storage has the broker's name."""
    return client.brokers.session(name, ENDPOINTS, storage_id=name, timeout_ms=TIMEOUT_MS)


async def made(client: Client, stream: str, partitions: int, replication_factor: int = 1) -> None:
    """Create a stream with the topic `events`."""
    await client.streams.create(stream)
    options = TopicOptions(replication_factor=replication_factor)
    await client.topics.create(stream, "events", partitions_count=partitions, options=options)


async def leaders(client: Client, stream: str) -> dict[int, int]:
    """Return who leads the partitions of a topic."""
    listed = client.brokers.placements(stream, "events", page_size=1)
    return {each.partition: each.leader async for each in listed}


async def followed(session: BrokerSession, count: int) -> None:
    """Wait until a broker leads so many partitions."""
    async with asyncio.timeout(LONG_S):
        while len(session.leads) != count:
            await anext(session)


async def test_brokers_come_and_go_by_the_facade(processes: ReplicaProcesses) -> None:
    """A broker is registered, drained, placed, moved away from, and unregistered."""
    async with connected(processes) as client:
        await made(client, "f", 2)
        one = await client.brokers.register("f-one", ENDPOINTS, storage_id="1", rack="a")
        two = await client.brokers.register("f-two", ENDPOINTS, storage_id="2", rack="b")
        assert await leaders(client, "f") == {}
        await client.brokers.place("f", "events", {0: [one.broker_id], 1: []})
        with pytest.raises(Refusal) as caught:
            await client.brokers.place("f", "events", {0: [two.broker_id]})
        assert caught.value.name == "REPLICAS_NOT_IN_SYNC"
        ids = {one.broker_id, two.broker_id}
        await client.brokers.place("f", "events", {0: sorted(ids)}, validate_only=True)
        await client.brokers.place("f", "events", dict.fromkeys((0, 1), sorted(ids)))
        assert set((await leaders(client, "f")).values()) <= ids
        await client.brokers.update("f-two", draining=True)
        found = [each async for each in client.brokers.list(page_size=1)]
        assert [each.draining for each in found if each.id in ids] == [False, True]
        got = await client.brokers.get("f-one")
        assert (got.rack, got.endpoints[0].port, got.replicas_count) == ("a", 9_000, 2)
        with pytest.raises(Refusal) as caught:
            await client.brokers.unregister("f-one")
        assert caught.value.name == "BROKER_IN_USE"
        await client.topics.delete("f", "events")
        for name in ("f-one", "f-two"):
            await client.brokers.unregister(name)
        assert not ids & {each.id async for each in client.brokers.list()}


async def test_sessions_lead_what_the_cluster_says(processes: ReplicaProcesses) -> None:
    """Two brokers share the partitions; the one that stays leads all, and may report alone."""
    async with connected(processes) as client, session_of(client, "s-one") as one:
        async with session_of(client, "s-two") as two:
            await made(client, "s", 4, replication_factor=2)
            await followed(one, 2)
            await followed(two, 2)
            listed = await leaders(client, "s")
            for session in (one, two):
                own = {number for number, leader in listed.items() if leader == session.broker_id}
                assert {each.partition for each in session.leads} == own
        await followed(one, 4)
        place = next(iter(one.leads))
        ends = {place.partition: 7}
        topic = (place.stream_id, place.topic_id)
        await client.topics.report_partition_ends(*topic, ends, broker=one.stamp)
        await client.topics.truncate_partitions(*topic, {place.partition: 3}, broker=one.stamp)
        for stamp in (two.stamp, None):
            with pytest.raises(Refusal):
                await client.topics.report_partition_ends(*topic, ends, broker=stamp)
        await one.update_in_sync(place, (one.broker_id,))
        found = [each async for each in client.brokers.placements(*topic)]
        assert [each.in_sync for each in found if each.partition == place.partition] == [
            [one.broker_id]
        ]
        assert one.leader_epoch(place) == found[place.partition].leader_epoch


async def test_a_session_outlives_the_coordinator(processes: ReplicaProcesses) -> None:
    """A broker whose replica restarts leads on in its epoch, and follows what comes then."""
    async with connected(processes) as client, session_of(client, "r-one") as session:
        await made(client, "r", 1)
        await followed(session, 1)
        before = (session.broker_epoch, dict(session.leads))
        processes.kill(COORDINATOR)
        await asyncio.to_thread(processes.start, COORDINATOR)
        await client.topics.add_partitions("r", "events", 2)
        await followed(session, 3)
        assert session.broker_epoch == before[0]
        assert before[1].items() <= session.leads.items()


async def test_a_broker_needs_few_permissions(processes: ReplicaProcesses) -> None:
    """Its user registers what is the user's, follows with read_streams, and sends in its name."""
    async with connected(processes) as root:
        created = await root.users.create("broker-user", PASSWORD)
        granted = Permissions()
        getattr(granted, "global").CopyFrom(
            GlobalPermissions(read_streams=True, send_messages=True)
        )
        await root.users.update_permissions("broker-user", granted)
        async with connected(processes, "broker-user", PASSWORD) as client:
            with pytest.raises(Refusal) as caught:
                await client.brokers.register("p-one", ENDPOINTS, storage_id="1")
            assert caught.value.name == "PERMISSION_DENIED"
            await root.brokers.register("p-one", ENDPOINTS, storage_id="1", user_id=created.user_id)
            async with session_of(client, "p-one") as session:
                await made(root, "p", 1)
                await followed(session, 1)
                place = next(iter(session.leads))
                await session.update_in_sync(place, (session.broker_id,))


async def test_an_informer_holds_brokers_and_placements(processes: ReplicaProcesses) -> None:
    """An informer that was there from the beginning holds what one holds that lists page by page.

    A page has 1,000 partitions, which is no multiple of the 128 of a row.
    """
    async with (
        connected(processes) as client,
        client.informer(Broker, Placements) as early,
        session_of(client, "i-one") as one,
        session_of(client, "i-two"),
    ):
        await early.synced()
        await made(client, "i", 1_000, replication_factor=2)
        await client.topics.add_partitions("i", "events", 100)
        await client.brokers.place("i", "events", {129: [one.broker_id]}, allow_data_loss=True)
        last = await client.brokers.update("i-two", draining=True)
        async with client.informer(Broker, Placements) as late:
            await late.synced()
            for informer in (early, late):
                await informer.come_to(last.header.revision)
            for entity_type in (Broker, Placements):
                assert early.all(entity_type) == late.all(entity_type)
            rows = [row for row in late.all(Placements) if len(row.placements) > 4]
            assert [len(row.placements) for row in rows] == [*(128,) * 8, 76]
            found = {each.partition: each for row in rows for each in row.placements}
            assert list(found[129].replicas) == [one.broker_id]
            assert {each.leader for each in found.values()} == {0}
            topic = await client.topics.get("i", "events")
            assert late.get(Placements, topic.stream_id, topic.id, 1) == rows[1]
