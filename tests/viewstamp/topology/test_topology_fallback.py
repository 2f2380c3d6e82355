"""Plans that do not fit into one transaction: divided, broken off midway, and completed later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from tests.viewstamp.topology.replica_clients import new_name, with_topics
from viewstamp import topology
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client import Client, OutcomeUnknown, Refusal, TimedOut
from viewstamp.limits import PARTITIONS_PER_REQUEST_MAX
from viewstamp.topology.model import DeclaredTopic, DeclaredUser

TOPICS: Final = [DeclaredTopic(f"t{each:03}") for each in range(200)]
NO_QUORUM: Final = Refusal(Reason.REASON_NO_QUORUM, "too few replicas answer")
UNKNOWN: Final = OutcomeUnknown("no answer", session_id=1, request_number=2)
TOO_LATE: Final = TimedOut("the deadline passed")


class PassingOn:
    """A client that passes all on, and keeps how many commands each transaction had."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.sizes: list[int] = []

    async def call(self, request: Message, **more: Any) -> Any:
        """Pass a call on."""
        return await self._client.call(request, **more)

    async def transact(
        self, requests: Sequence[Message], *, validate_only: bool = False
    ) -> list[Any]:
        """Note a transaction, and do with it what this client does."""
        self.sizes.append(len(requests))
        return await self.pass_on(requests, validate_only=validate_only)

    async def pass_on(self, requests: Sequence[Message], *, validate_only: bool) -> list[Any]:
        """Have the cluster carry out a transaction."""
        return await self._client.transact(requests, validate_only=validate_only)


class Interrupted(PassingOn):
    """A client whose transactions fail from the `fails_at`th on, counted from 1.

    With `takes_effect` the first of them is carried out, but its answer is lost.
    """

    def __init__(
        self, client: Client, fails_at: int, error: Exception, *, takes_effect: bool = False
    ) -> None:
        super().__init__(client)
        self._fails_at = fails_at
        self._error = error
        self._takes_effect = takes_effect

    async def pass_on(self, requests: Sequence[Message], *, validate_only: bool) -> list[Any]:
        """Pass a transaction on, or fail."""
        if len(self.sizes) < self._fails_at:
            return await super().pass_on(requests, validate_only=validate_only)
        if self._takes_effect:
            await super().pass_on(requests, validate_only=validate_only)
        raise self._error


class NarrowTransactions(PassingOn):
    """A client of a cluster to which transactions of more than some commands cost too much."""

    def __init__(self, client: Client, room: int) -> None:
        super().__init__(client)
        self._room = room

    async def pass_on(self, requests: Sequence[Message], *, validate_only: bool) -> list[Any]:
        """Pass a transaction on, or refuse it."""
        if len(requests) > self._room:
            details = {"cost": len(requests), "limit": self._room, "scope": "command"}
            raise Refusal.of(Reason.REASON_COST_EXCEEDED, "command", **details)
        return await super().pass_on(requests, validate_only=validate_only)


async def topic_names(client: Client, stream: str) -> list[str]:
    """Return the names of a stream's topics."""
    return [topic.name async for topic in client.topics.list(stream)]


async def test_what_one_transaction_cannot_hold_is_divided(client: Client) -> None:
    """A real cluster refuses the work of a plan as one entry, and takes it in two."""
    name, topics_count = new_name(), 60
    broker = await client.brokers.register(
        "one", {"data": ("here", 1)}, storage_id="s", timeout_ms=60_000
    )
    wide = [replace(each, partitions=PARTITIONS_PER_REQUEST_MAX) for each in TOPICS[:topics_count]]
    wanted = with_topics(name, *wide)
    plan = await topology.plan(client, wanted)
    checked = await topology.check(client, plan)
    assert "too much: COST_EXCEEDED" in checked.split
    assert (checked.commands, checked.unchecked) == (topics_count + 1, topics_count)
    with pytest.raises(Refusal) as caught:
        await topology.apply(client, wanted, atomic=True)
    assert caught.value.reason == Reason.REASON_COST_EXCEEDED
    assert name not in [stream.name async for stream in client.streams.list()]
    applied = await topology.apply(client, wanted)
    assert (len(applied.revisions), applied.plans) == (2, 1)
    assert len(await topic_names(client, name)) == topics_count
    await client.streams.delete(name)
    await client.brokers.unregister(broker.broker_id)


@pytest.mark.parametrize(
    ("room", "sizes"),
    [(5, [5]), (3, [5, 2, 3]), (2, [5, 2, 3, 1, 2]), (1, [5, 2, 1, 1, 3, 1, 2, 1, 1])],
)
async def test_halves_are_made_in_order(client: Client, room: int, sizes: list[int]) -> None:
    """What costs too much is halved until it fits, and everything is done once, in order."""
    name = new_name()
    narrow = NarrowTransactions(client, room)
    applied = await topology.apply(narrow, with_topics(name, *TOPICS[:4]))
    assert narrow.sizes == sizes
    assert applied.revisions == sorted(set(applied.revisions))
    assert await topic_names(client, name) == [each.name for each in TOPICS[:4]]
    assert (await topology.plan(client, with_topics(name, *TOPICS[:4]))).changes == ()


async def test_what_cannot_be_divided_is_refused(client: Client) -> None:
    """One command that costs too much ends the application; what was before it stays."""
    name = new_name()
    with pytest.raises(Refusal) as caught:
        await topology.apply(NarrowTransactions(client, 0), with_topics(name, *TOPICS[:4]))
    assert caught.value.reason == Reason.REASON_COST_EXCEEDED
    assert name not in [stream.name async for stream in client.streams.list()]


@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize(
    "error", [NO_QUORUM, UNKNOWN, TOO_LATE], ids=lambda each: type(each).__name__
)
async def test_a_second_application_completes_the_first(
    client: Client, passwords: topology.PasswordFile, error: Exception, takes_effect: bool
) -> None:
    """Whatever ends an application midway, another one does the rest, and then nothing is left.

    It does so if the last transaction took effect although its answer was lost, too.
    """
    name, username = new_name(), f"user{new_name()}"
    wanted = replace(with_topics(name, *TOPICS), users=(DeclaredUser(username),))
    broken = Interrupted(client, 2, error, takes_effect=takes_effect)
    with pytest.raises(type(error)) as caught:
        await topology.apply(broken, wanted, passwords=passwords)
    assert caught.value is error
    assert broken.sizes == [128, 74]
    there = 200 if takes_effect else 127
    assert await topic_names(client, name) == [each.name for each in TOPICS[:there]]
    kept = json.loads(passwords.path.read_text())
    rest = await topology.apply(client, wanted, passwords=passwords)
    assert len(rest.changes) == (0 if takes_effect else 74)
    assert len(rest.revisions) == (not takes_effect)
    # The user has the password that the first application had chosen.
    assert json.loads(passwords.path.read_text()) == kept
    assert username in [user.username async for user in client.users.list()]
    assert await topic_names(client, name) == [each.name for each in TOPICS]
    assert (await topology.plan(client, wanted)).changes == ()
