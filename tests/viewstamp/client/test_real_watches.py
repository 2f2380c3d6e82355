"""A watch and an informer over the deaths of a real replica's processes: every revision once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import viewstamp
from tests.processes.patient_clients import PATIENT_S, connected
from tests.processes.processes import COORDINATOR, ReplicaProcesses, replica
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client, Refusal
from viewstamp.client.informer import Informer
from viewstamp.client.watching import Watch, decoded

Stream, Topic, User = streams_pb2.Stream, streams_pb2.Topic, users_pb2.User
Group = consumer_groups_pb2.ConsumerGroup


@pytest.fixture(scope="module")
def processes() -> Iterator[ReplicaProcesses]:
    """A running replica, mended by each test that breaks it."""
    with replica() as running:
        yield running


def restart(processes: ReplicaProcesses, name: str) -> None:
    """Kill a process and start it again."""
    processes.kill(name)
    processes.start(name)


async def written(client: Client, prefix: str, count: int) -> list[tuple[int, list[str]]]:
    """Create streams, every third time two by a transaction; return what each revision made."""
    made = []
    for index in range(count):
        names = [f"{prefix}-{index}", *([f"{prefix}-{index}-too"] if index % 3 == 0 else [])]
        requests = [streams_api.CreateStreamRequest(name=name) for name in names]
        answers = await client.transact(requests)
        made.append((answers[0].header.revision, names))
    return made


async def watched(watch: Watch, count: int) -> list[tuple[int, list[str]]]:
    """Return the next revisions, with the names that they made."""
    found = []
    for _ in range(count):
        revision = await anext(watch)
        names = [decoded(change).name for change in revision.changes]
        found.append((revision.revision, names))
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", [COORDINATOR, "streams", "users", "consumer_groups"])
async def test_every_revision_comes_once(processes: ReplicaProcesses, name: str) -> None:
    """Over the death of any process, in the midst of commands, no revision is lost or repeated."""
    async with (
        connected(processes) as writer,
        connected(processes) as client,
        client.watch(entity_types=[Stream]) as watch,
    ):
        before = await written(writer, f"{name}-before", 5)
        assert await watched(watch, 5) == before
        meanwhile = asyncio.create_task(written(writer, f"{name}-meanwhile", 60))
        restarted = asyncio.create_task(asyncio.to_thread(restart, processes, name))
        found = await watched(watch, 60)
        await restarted
        assert found == await meanwhile
        after = await written(writer, f"{name}-after", 5)
        assert await watched(watch, 5) == after


async def listed(client: Client) -> dict[type, list[str]]:
    """Return the names of all entities of the types below, as the list calls show them."""
    streams = [each async for each in client.streams.list()]
    topics = [(stream, each) for stream in streams async for each in client.topics.list(stream.id)]
    groups = [
        each for stream, topic in topics async for each in client.groups.list(stream.id, topic.id)
    ]
    return {
        Stream: [each.name for each in streams],
        Topic: [topic.name for _, topic in topics],
        Group: [each.name for each in groups],
        User: [each.username async for each in client.users.list()],
    }


def held(informer: Informer) -> dict[type, list[str]]:
    """Return the names of all entities in a cache."""
    return {
        Stream: [each.name for each in informer.all(Stream)],
        Topic: [each.name for each in informer.all(Topic)],
        Group: [each.name for each in informer.all(Group)],
        User: [each.username for each in informer.all(User)],
    }


@pytest.mark.long
async def test_an_informer_is_what_the_lists_say(processes: ReplicaProcesses) -> None:
    """Over the death of the coordinator an informer of all types agrees with the list calls."""
    async with (
        connected(processes) as client,
        client.informer(Stream, Topic, Group, User) as informer,
    ):
        await client.streams.create("held")
        await client.topics.create("held", "first", partitions_count=1)
        await client.groups.create("held", "first", "readers")
        await informer.synced()
        await asyncio.to_thread(restart, processes, COORDINATOR)
        await client.users.create("reader", "a long password")
        await client.topics.create("held", "second", partitions_count=1)
        last = await client.topics.delete("held", "first")
        await informer.come_to(last.header.revision)
        found = await listed(client)
        assert held(informer) == found
        assert (found[Topic], found[Group]) == (["second"], [])
        assert informer.get(User, 0).permissions == (await client.users.get("root")).permissions


async def test_a_changed_access_is_no_end_of_a_real_watch(processes: ReplicaProcesses) -> None:
    """A user whose grants change goes on watching what is still allowed, without a gap."""
    async with connected(processes) as root:
        created = await root.streams.create("granted")
        await root.users.create("watcher", "a long password")
        await root.users.update_permissions("watcher", granted(created.stream_id))
        async with (
            await viewstamp.connect(
                processes.address,
                username="watcher",
                password="a long password",
                timeout_s=PATIENT_S,
            ) as client,
            client.watch(stream="granted") as watch,
        ):
            await root.streams.update("granted", name="granted-1")
            assert await watched(watch, 1) == [(watch.revision, ["granted-1"])]
            await root.users.update_permissions("watcher", granted(created.stream_id, "more"))
            renamed = await root.streams.update(created.stream_id, name="granted-2")
            assert await watched(watch, 1) == [(renamed.header.revision, ["granted-2"])]
            await root.users.update_permissions("watcher", users_pb2.Permissions())
            with pytest.raises(Refusal) as caught:
                await anext(watch)
            assert caught.value.name in ("STREAM_NOT_FOUND", "PERMISSION_DENIED")


def granted(stream_id: int, *more: str) -> users_pb2.Permissions:
    """Return the permission to read a stream, and with `more` one to poll from it."""
    stream = users_pb2.StreamPermissions(read_stream=True, poll_messages=bool(more))
    stream.stream.id = stream_id
    return users_pb2.Permissions(streams=[stream])
