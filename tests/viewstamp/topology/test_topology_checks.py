"""What a cluster says of a plan beforehand: as one transaction, or command by command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message

import viewstamp
from tests.processes.processes import ReplicaProcesses
from tests.viewstamp.topology.replica_clients import new_name, with_topics
from viewstamp import topology
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client import Client, Refusal
from viewstamp.topology.model import DeclaredGroup, DeclaredTopic, DeclaredUser, Grant, nested

PRUNE = topology.PlanRules(prune=True)


class RefusingTransactions:
    """A client whose cluster refuses each transaction; it notes single calls."""

    def __init__(self, client: Client, refusal: Refusal) -> None:
        self._client = client
        self._refusal = refusal
        self.called: list[str] = []

    async def call(self, request: Message, **more: Any) -> Any:
        """Pass a call on."""
        self.called.append(type(request).__name__)
        return await self._client.call(request, **more)

    async def transact(
        self, requests: Sequence[Message], *, validate_only: bool = False
    ) -> list[Any]:
        """Refuse it."""
        assert validate_only
        raise self._refusal


def dependent(name: str) -> topology.Topology:
    """Return a topology in which everything depends on what comes before it."""
    return with_topics(name, DeclaredTopic("t", groups=(DeclaredGroup("g"),)))


async def test_a_plan_is_checked_as_one_transaction(client: Client) -> None:
    """What depends on other changes is checked, too, and nothing is changed."""
    name = new_name()
    wanted = replace(dependent(name), users=(DeclaredUser("somebody"),))
    plan = await topology.plan(client, wanted)
    assert await topology.check(client, plan) == topology.PlanCheck(commands=4)
    assert await topology.check(client, plan, atomic=True) == topology.PlanCheck(commands=4)
    assert name not in [stream.name async for stream in client.streams.list()]
    assert "somebody" not in [user.username async for user in client.users.list()]


async def test_what_only_fails_behind_other_changes_is_found(client: Client) -> None:
    """A refusal of a command that depends on another one is told before anything is changed."""
    name = new_name()
    plan = await topology.plan(client, dependent(name))
    # Somebody else takes the name: the creation of the stream is refused, and all behind it.
    await client.streams.create(name)
    checked = await topology.check(client, plan)
    assert [each.name for each in checked.refusals] == ["STREAM_EXISTS"]
    assert not checked.split
    await topology.apply(client, dependent(name))
    # Groups that somebody deletes meanwhile are gone when it is their turn, behind another change.
    both = with_topics(name, DeclaredTopic("t", 5, groups=(DeclaredGroup("g", "range"),)))
    plan = await topology.plan(client, both)
    await client.groups.delete(name, "t", "g")
    checked = await topology.check(client, plan)
    assert [each.name for each in checked.refusals] == ["GROUP_NOT_FOUND"]


async def test_nothing_to_do_is_not_asked(client: Client) -> None:
    """A plan without changes needs no transaction."""
    name = new_name()
    await topology.apply(client, with_topics(name))
    plan = await topology.plan(client, with_topics(name))
    refusing = RefusingTransactions(client, Refusal(Reason.REASON_INTERNAL, "must not be asked"))
    assert await topology.check(refusing, plan) == topology.PlanCheck()


async def test_what_does_not_fit_is_checked_apart_and_says_so(client: Client) -> None:
    """More commands than a transaction holds: those that depend on no other are checked."""
    name = new_name()
    await client.streams.create(name)
    topics = [DeclaredTopic(f"t{each}", groups=(DeclaredGroup("g"),)) for each in range(100)]
    plan = await topology.plan(client, with_topics(name, *topics))
    checked = await topology.check(client, plan)
    assert checked == topology.PlanCheck((), "200 commands need 2 transactions", 200, 100)
    assert [topic.name async for topic in client.topics.list(name)] == []
    with pytest.raises(topology.NotAtomic, match="200 commands need 2 transactions"):
        await topology.check(client, plan, atomic=True)


COSTLY = Refusal.of(Reason.REASON_COST_EXCEEDED, "command", cost=9, limit=5, scope="command")
UNKNOWN_FIELD = Refusal(
    Reason.REASON_FEATURE_LEVEL_REQUIRED, "it is too old", field="validate_only", required=8
)
UNKNOWN_METHOD = Refusal(Reason.REASON_FEATURE_LEVEL_REQUIRED, "it is too old", required=4)


@pytest.mark.parametrize(
    ("refusal", "atomic", "says"),
    [
        (COSTLY, False, "one transaction would be too much: COST_EXCEEDED"),
        (COSTLY, True, ""),
        (UNKNOWN_FIELD, False, "the cluster cannot try a transaction yet: it is too old"),
        (UNKNOWN_FIELD, True, "the cluster cannot try a transaction yet: it is too old"),
        (UNKNOWN_METHOD, False, ""),
    ],
)
async def test_where_one_transaction_cannot_be_tried(
    client: Client, refusal: Refusal, atomic: bool, says: str
) -> None:
    """Commands are checked apart if a transaction is too much, or if nobody can try one.

    What must be one transaction, or could not be called at all, is refused.
    """
    name = new_name()
    plan = await topology.plan(client, dependent(name))
    refusing = RefusingTransactions(client, refusal)
    checked = await topology.check(refusing, plan, atomic=atomic)
    assert checked.refusals == (() if says else (refusal,))
    assert checked.split.startswith(says)
    assert bool(checked.split) == bool(says)
    assert (checked.commands, checked.unchecked) == (3, 2 if says else 0)
    # The stream alone depends on nothing.
    assert refusing.called == ["CreateStreamRequest"]


async def test_all_that_would_be_refused_is_told(
    client: Client, processes: ReplicaProcesses
) -> None:
    """A transaction ends at its first refusal, so what depends on nothing is checked apart, too."""
    name = new_name()
    await client.streams.create(name)
    password = "may only read"
    everywhere = nested(Grant("", "", each) for each in ("read_streams", "read_users"))
    passwords = topology.PasswordFile(processes.directory / "passwords.json")
    passwords.path.write_text(json.dumps({"reader": password}))
    users_wanted = (DeclaredUser("reader", permissions=everywhere),)
    await topology.apply(client, topology.Topology(users=users_wanted), passwords=passwords)
    wanted = replace(dependent(name), users=(DeclaredUser("somebody"),))
    async with await viewstamp.connect(
        processes.address, username="reader", password=password
    ) as reader:
        plan = await topology.plan(reader, wanted)
        checked = await topology.check(reader, plan)
    assert [refusal.name for refusal in checked.refusals] == ["PERMISSION_DENIED"] * 2
    assert [topic.name async for topic in client.topics.list(name)] == []
