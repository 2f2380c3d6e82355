"""What a cluster has and how its state digests: by reads alone, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from testkit.load.oracle import Digests
from testkit.load.session import LoadFailed
from testkit.load.state import Grant, LoadGroup, LoadState, LoadStream, LoadTopic, LoadUser
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client, connect
from viewstamp.cluster import LocalCluster
from viewstamp.limits import ROOT_USERNAME

# Small, so that pages are turned.
PAGE_SIZE: Final = 50
READS_AT_ONCE: Final = 128
QUIET_S: Final = 1.0
QUIET_TIMEOUT_S: Final = 90.0

T = TypeVar("T")
R = TypeVar("R")


def root_password(cluster: LocalCluster) -> str:
    """Return root's password from the file that only its owner may read. Raises OSError."""
    return cluster.root_password_path.read_text(encoding="utf-8").strip()


@asynccontextmanager
async def reader(address: str, password: str) -> AsyncIterator[Client]:
    """Connect as root without a session: reads leave no trace in the log."""
    client = await connect(
        address,
        username=ROOT_USERNAME,
        password=password,
        register_session=False,
    )
    try:
        yield client
    finally:
        await client.close()


async def wait_until_quiet(client: Client) -> None:
    """Wait until the cluster makes no more proposals of its own. Raises LoadFailed.

    A partition that a member still has to give up is no reason to wait: groups of the load are so
    patient (`PATIENCE_MS`) that the member keeps it for longer than any check takes.
    """
    revision = -1
    try:
        async with asyncio.timeout(QUIET_TIMEOUT_S):
            while (now := (await client.status()).header.revision) != revision:
                revision = now
                await asyncio.sleep(QUIET_S)
    except TimeoutError as error:
        text = f"no rest within {QUIET_TIMEOUT_S:g} s: the last revision seen is {revision}"
        raise LoadFailed(text) from error


async def observe(client: Client) -> LoadState:
    """Return everything there is. Nothing may change meanwhile."""
    streams = [stream async for stream in client.streams.list(page_size=PAGE_SIZE)]
    users = [user async for user in client.users.list(page_size=PAGE_SIZE)]
    tokens = [token async for token in client.tokens.list(page_size=PAGE_SIZE)]
    found = await _each(streams, lambda stream: _stream(client, stream))
    people = await _each(users, lambda user: client.users.get(user.id))
    return LoadState(
        streams={stream.name: one for stream, one in zip(streams, found, strict=True)},
        users={user.username: _user(user) for user in people},
        tokens={token.name: token.created_revision for token in tokens},
    )


async def digests(client: Client) -> Digests:
    """Return the digest of every stage's full state, at one revision."""
    status = await client.status(include_digests=True)
    stages = {
        routing_pb2.Stage.Name(service.stage).removeprefix("STAGE_").lower(): service.state_digest
        for service in status.services
    }
    return Digests(status.header.revision, {**stages, "sessions": status.sessions_digest})


async def _stream(client: Client, stream: streams_pb2.Stream) -> LoadStream:
    topics = [topic async for topic in client.topics.list(stream.id, page_size=PAGE_SIZE)]
    found = await _each(topics, lambda topic: _topic(client, topic))
    by_name = {topic.name: one for topic, one in zip(topics, found, strict=True)}
    return LoadStream(stream.id, stream.created_revision, by_name)


async def _topic(client: Client, topic: streams_pb2.Topic) -> LoadTopic:
    place = (topic.stream_id, topic.id)
    groups = {}
    async for listed in client.groups.list(*place, page_size=PAGE_SIZE):
        group = await client.groups.get(*place, listed.id)
        members = {member.session_id for member in group.members}
        groups[group.name] = LoadGroup(group.id, group.created_revision, members)
    return LoadTopic(topic.id, topic.created_revision, topic.partitions_count, groups)


def _user(user: users_pb2.User) -> LoadUser:
    whole = {Grant(one.stream.id, 0) for one in user.permissions.streams if one.read_stream}
    topics = {
        Grant(stream.stream.id, topic.topic.id)
        for stream in user.permissions.streams
        for topic in stream.topics
    }
    return LoadUser(user.id, user.created_revision, whole | topics)


async def _each(items: Iterable[T], read: Callable[[T], Awaitable[R]]) -> list[R]:
    slots = asyncio.Semaphore(READS_AT_ONCE)

    async def one(item: T) -> R:
        async with slots:
            return await read(item)

    return await asyncio.gather(*map(one, items))
