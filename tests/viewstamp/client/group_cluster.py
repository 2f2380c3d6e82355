"""A consumer group for tests of its members: they talk to the real state machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import Message

from tests.services.consumer_groups.harness import GROUP_NAME, GroupsHarness
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.client.identifiers import group_name
from viewstamp.client.membership import AssignmentChange, GroupMember

QUERIES = ("KeepAliveConsumerGroup", "SyncConsumerGroup")
PATIENCE_S = 10.0
NAME = group_name("s", "t", GROUP_NAME)


class GroupCluster:
    """A group with a primary that proposes what is due, and a clock that the test sets."""

    def __init__(self, partitions_count: int = 4) -> None:
        self.harness = GroupsHarness(partitions_count=partitions_count, is_checking=False)
        self.harness.create()
        self.now_s = 0.0
        self.sessions = 0

    def client(self) -> SessionClient:
        """Return a client with a session of its own."""
        self.sessions += 1
        return SessionClient(self, self.sessions)

    @asynccontextmanager
    async def member(self, client: SessionClient, instance: str = "") -> AsyncIterator[GroupMember]:
        """Join, and leave behind the block."""
        member = GroupMember(client, NAME, instance, clock_s=lambda: self.now_s)
        async with member:
            yield member


class SessionClient:
    """Sends requests of one session, unless `failure` has something to raise."""

    def __init__(self, cluster: GroupCluster, session: int) -> None:
        self.session = session
        self.failure: Callable[[Message], None] = lambda request: None
        self.sent: list[Message] = []
        self._cluster = cluster

    async def call(self, request: Message, **_: Any) -> Any:
        """Answer by the state machine. Raises Refusal, and what the test wants."""
        await asyncio.sleep(0)
        self.failure(request)
        self.sent.append(request)
        harness, name = self._cluster.harness, type(request).__name__.removesuffix("Request")
        if name in QUERIES:
            return harness.query(name, request, session=self.session)
        answer = harness.command(name, request, session=self.session)
        harness.propose_all()
        return answer

    def heartbeats(self) -> list[api.HeartbeatConsumerGroupRequest]:
        """The heartbeats that were sent as commands."""
        return [each for each in self.sent if isinstance(each, api.HeartbeatConsumerGroupRequest)]


async def change_of(member: GroupMember) -> AssignmentChange:
    """Return the next change, which must come soon."""
    async with asyncio.timeout(PATIENCE_S):
        return await anext(member)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds, which must be soon."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
