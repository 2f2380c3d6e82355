"""Topologies against a real replica: applied, exported, applied again, and beside other callers."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

import viewstamp
from tests.processes.patient_clients import connected
from tests.processes.processes import ReplicaProcesses
from tests.viewstamp.topology.drawn_topologies import distinct, topics, users
from tests.viewstamp.topology.replica_clients import new_name, with_topics
from viewstamp import topology
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.client import Client, Refusal
from viewstamp.client.identifiers import identifier, topic_name
from viewstamp.topology.found import scope_of
from viewstamp.topology.model import (
    DeclaredGroup,
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    Grant,
    PruneScope,
    Topology,
    nested,
)
from viewstamp.topology.reader import read_found

PRUNE = topology.PlanRules(prune=True)
ALL_ALLOWED = topology.PlanRules(prune=True, allow_partition_deletion=True)
# Names of streams and topics that the property draws from.
STREAMS = ("red", "green")
TOPICS = ("one", "two", "three")
PEOPLE = ("alice", "bobby")
SEGMENT_BYTES = 8 << 20
NOTHING_LEFT = Topology(prune=PruneScope(STREAMS, PEOPLE))


class Meddler:
    """A client beside which somebody else acts before each of the first transactions."""

    def __init__(self, client: Client, *meddling: Message) -> None:
        self._client = client
        self._meddling = [*meddling]
        self.transactions = 0

    async def call(self, request: Message, **more: Any) -> Any:
        """Pass a call on."""
        return await self._client.call(request, **more)

    async def transact(
        self, requests: Sequence[Message], *, validate_only: bool = False
    ) -> list[Any]:
        """Let the other one act, then pass the transaction on."""
        self.transactions += 1
        if self._meddling:
            await self._client.call(self._meddling.pop(0))
        return await self._client.transact(requests, validate_only=validate_only)


class ChangingCluster:
    """A client beside which somebody creates a topic after each list of topics."""

    def __init__(self, client: Client, stream: str, *, changes: int, first: int = 1) -> None:
        self._client = client
        self._stream = stream
        self._names = [f"u{number}" for number in range(first, first + changes)]

    async def call(self, request: Message, **more: Any) -> Any:
        """Pass a call on, then change what it was about."""
        answer = await self._client.call(request, **more)
        if type(request).__name__ == "ListTopicsRequest" and self._names:
            await self._client.topics.create(self._stream, self._names.pop(0))
        return answer


def update(stream: str, replication_factor: int) -> Message:
    """Return how somebody else changes the topic `t`."""
    options = streams_pb2.TopicOptions(replication_factor=replication_factor)
    return api.UpdateTopicRequest(**topic_name(stream, "t"), options=options)


def drawn() -> st.SearchStrategy[Topology]:
    """Draw topologies that differ in everything but a few names, so that one follows another."""
    streams = st.builds(
        DeclaredStream,
        st.sampled_from(STREAMS),
        st.booleans(),
        distinct(topics(st.sampled_from(TOPICS), 3).map(with_fixed_segments), "name"),
    )
    people = users(st.sampled_from(PEOPLE), st.just(("kept", "topic")))
    return st.builds(
        Topology,
        distinct(streams, "name"),
        distinct(people, "username"),
        st.none() | st.just(NOTHING_LEFT.prune),
    )


def with_fixed_segments(topic: DeclaredTopic) -> DeclaredTopic:
    """Return a topic with the segments that all have, because nobody can change them."""
    return replace(topic, segment_size_bytes=SEGMENT_BYTES)


def declares(whole: Topology, part: Topology) -> bool:
    """Whether a topology has everything that another one declares."""
    found = {each.name: each for each in whole.streams}
    for stream in part.streams:
        there = {each.name: each for each in found[stream.name].topics}
        for topic in stream.topics:
            groups = {each.name: each for each in there[topic.name].groups}
            assert has_fields(there[topic.name], topic, {"prune", "groups"})
            assert all(has_fields(groups[each.name], each, set()) for each in topic.groups)
    people = {each.username: each for each in whole.users}
    return all(has_fields(people[each.username], each, set()) for each in part.users)


def has_fields(whole: Any, part: Any, without: set[str]) -> bool:
    """Whether something has the values that are declared of it."""
    wanted = {name: getattr(part, name) for name in part.__slots__ if name not in without}
    return all(value in (None, getattr(whole, name)) for name, value in wanted.items())


def test_a_topology_comes_true_and_touches_nothing_else(
    processes: ReplicaProcesses, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """After each of many topologies the cluster has it, and what no topology lists is as before.

    A second application changes nothing, and neither does what was exported.
    """
    file = topology.PasswordFile(tmp_path_factory.mktemp("drawn") / "passwords.json")
    kept = with_topics("kept", DeclaredTopic("topic", groups=(DeclaredGroup("group"),)))
    kept = replace(kept, users=(DeclaredUser("keeper"),))

    async def applied(client: Client, wanted: Topology) -> None:
        await topology.apply(client, wanted, ALL_ALLOWED, passwords=file)
        assert (await topology.plan(client, wanted, ALL_ALLOWED)).changes == ()
        assert (await topology.diff(client, wanted, ALL_ALLOWED)) == []
        found = await topology.export(client)
        assert declares(found, wanted)
        assert (await topology.plan(client, found, PRUNE)).changes == ()
        assert topology.parsed(topology.dumped(found)) == [found]
        assert declares(found, untouched)

    async def rows(client: Client, drawn_rows: Sequence[Topology]) -> None:
        await topology.apply(client, NOTHING_LEFT, PRUNE)
        for wanted in drawn_rows:
            await applied(client, wanted)

    async def prepared(client: Client) -> Topology:
        await topology.apply(client, kept, passwords=file)
        found = await topology.export(client, ["kept"])
        return replace(found, users=kept.users)

    with asyncio.Runner() as runner:
        connection = connected(processes)
        client = runner.run(connection.__aenter__())
        untouched = runner.run(prepared(client))

        @settings(max_examples=6)
        @given(st.lists(drawn(), min_size=2, max_size=3))
        def hold(drawn_rows: list[Topology]) -> None:
            runner.run(rows(client, drawn_rows))

        hold()
        runner.run(connection.__aexit__(None, None, None))


async def test_changes_take_effect_at_one_revision(
    client: Client, passwords: topology.PasswordFile
) -> None:
    """Stream, topic, group and a user with permissions on them come at one revision."""
    name = new_name()
    grant = Grant(name, "t", "send_messages")
    wanted = replace(
        with_topics(name, DeclaredTopic("t", 2_500, groups=(DeclaredGroup("g"),))),
        users=(DeclaredUser("sender", permissions=nested([grant])),),
    )
    with pytest.raises(topology.PasswordsNeeded, match="sender"):
        await topology.apply(client, wanted)
    applied = await topology.apply(client, wanted, passwords=passwords, atomic=True)
    (revision,) = applied.revisions
    created = [
        (await client.streams.get(name)).created_revision,
        (await client.topics.get(name, "t")).created_revision,
        (await client.groups.get(name, "t", "g")).created_revision,
        (await client.users.get("sender")).created_revision,
    ]
    assert created == [revision] * 4
    again = await topology.apply(client, wanted, passwords=passwords)
    assert (again.revisions, again.changes, again.plans) == ([], [], 1)


async def test_passwords_are_those_of_the_file(
    client: Client, processes: ReplicaProcesses, passwords: topology.PasswordFile
) -> None:
    """A new user gets the password of the file, or a generated one, which the file then has."""
    passwords.path.write_text(json.dumps({"known": "a known password"}))
    wanted = Topology(users=(DeclaredUser("known"), DeclaredUser("unknown")))
    await topology.apply(client, wanted, passwords=passwords)
    kept = json.loads(passwords.path.read_text())
    assert kept["known"] == "a known password"
    assert stat.S_IMODE(passwords.path.stat().st_mode) == 0o600
    for name in ("known", "unknown"):
        login = viewstamp.connect(processes.address, username=name, password=kept[name])
        async with await login as user:
            assert (await user.users.who_am_i()).username == name


async def test_what_does_not_fit_is_done_in_pieces(client: Client) -> None:
    """More than 128 commands need several transactions, which `atomic` refuses before the first."""
    name = new_name()
    wanted = with_topics(name, *(DeclaredTopic(f"t{number}") for number in range(200)))
    with pytest.raises(topology.NotAtomic, match="201 commands need 2 transactions"):
        await topology.apply(client, wanted, atomic=True)
    assert name not in [stream.name async for stream in client.streams.list()]
    told: list[tuple[int, int]] = []
    applied = await topology.apply(client, wanted, progress=lambda *done: told.append(done))
    assert len(applied.revisions) == 2
    assert told == [(128, 201), (201, 201)]
    assert len(applied.changes) == 201


async def test_an_entity_that_changes_twice_in_pieces_is_guarded(client: Client) -> None:
    """Commands on a topic that fall into several transactions expect what the one before left."""
    name = new_name()
    await topology.apply(client, with_topics(name, DeclaredTopic("t", 0)))
    wanted = with_topics(name, DeclaredTopic("t", 200_000, replication_factor=2))
    applied = await topology.apply(client, wanted)
    assert (len(applied.revisions), applied.plans, len(applied.changes)) == (2, 1, 1)
    topic = await client.topics.get(name, "t")
    assert (topic.partitions_count, topic.options.replication_factor) == (200_000, 2)


async def test_a_topic_and_its_groups_change_together(client: Client) -> None:
    """Other partitions change every group of a topic, and the groups are changed before that."""
    name = new_name()
    groups = (DeclaredGroup("changed"), DeclaredGroup("deleted"))
    await topology.apply(client, with_topics(name, DeclaredTopic("t", 3, groups=groups)))
    groups = (DeclaredGroup("changed", "range"), DeclaredGroup("created"))
    wanted = with_topics(name, DeclaredTopic("t", 1, groups=groups), prune=True)
    applied = await topology.apply(client, wanted, ALL_ALLOWED, atomic=True)
    assert (applied.plans, len(applied.changes)) == (1, 4)
    assert [group.name async for group in client.groups.list(name, "t")] == ["changed", "created"]


async def test_a_change_in_between_leads_to_another_plan(client: Client) -> None:
    """What somebody changed after the plan is refused by its revision, and planned again."""
    name = new_name()
    await topology.apply(client, with_topics(name, DeclaredTopic("t", 1)))
    meddling = [
        update(name, 9),
        api.CreateTopicRequest(stream=identifier(name), name="u", partitions_count=1),
    ]
    meddler = Meddler(client, *meddling)
    wanted = with_topics(name, DeclaredTopic("t", 1, replication_factor=2), DeclaredTopic("u", 1))
    applied = await topology.apply(meddler, wanted)
    assert (applied.plans, meddler.transactions, len(applied.revisions)) == (3, 3, 1)
    assert (await client.topics.get(name, "t")).options.replication_factor == 2
    await client.call(update(name, 9))
    always = [update(name, number) for number in range(3, 13)]
    meddler = Meddler(client, *always)
    with pytest.raises(topology.ClusterUnsettled, match="each of 5 plans was out of date"):
        await topology.apply(meddler, wanted)
    assert meddler.transactions == 5


async def test_no_more_is_lost_than_was_approved(client: Client) -> None:
    """A topic that comes after the approval is not deleted, although the document owns it."""
    name = new_name()
    await topology.apply(client, with_topics(name, DeclaredTopic("old")))
    wanted = with_topics(name, prune=True)
    approved = await topology.plan(client, wanted, PRUNE)
    await client.topics.create(name, "new")
    with pytest.raises(topology.PlanChanged):
        await topology.apply(client, wanted, PRUNE, approved=approved)
    assert [topic.name async for topic in client.topics.list(name)] == ["old", "new"]
    approved = await topology.plan(client, wanted, PRUNE)
    await topology.apply(client, wanted, PRUNE, approved=approved)
    assert [topic.name async for topic in client.topics.list(name)] == []


async def test_a_plan_with_problems_is_not_applied(client: Client) -> None:
    """A problem stops everything, also what has none."""
    name = new_name()
    await topology.apply(client, with_topics(name, DeclaredTopic("t", 2)))
    wanted = with_topics(name, DeclaredTopic("t", 1), DeclaredTopic("u"))
    with pytest.raises(topology.PlanRefused, match="it has 2 partitions and 1 are declared"):
        await topology.apply(client, wanted)
    assert [topic.name async for topic in client.topics.list(name)] == ["t"]


async def test_an_export_is_of_what_there_is(client: Client) -> None:
    """A stream that does not exist cannot be exported, and root is never in a document."""
    with pytest.raises(Refusal, match="nowhere"):
        await topology.export(client, ["nowhere"])
    found = await topology.export(client)
    assert "root" not in [user.username for user in found.users]


async def test_what_is_read_is_of_one_revision(client: Client) -> None:
    """A reading during which the cluster changed is repeated until it is the same twice."""
    name = new_name()
    await topology.apply(client, with_topics(name, DeclaredTopic("t")))
    changing = ChangingCluster(client, name, changes=2)
    found = await read_found(changing, scope_of(with_topics(name), prune=False))
    assert {*found.streams[name].topics} == {"t", "u1", "u2"}
    assert found.revision == (await client.topics.get(name, "u2")).created_revision
    with pytest.raises(topology.ClusterUnsettled, match="during each of 8 readings"):
        endless = ChangingCluster(client, name, changes=50, first=3)
        await read_found(endless, scope_of(with_topics(name), prune=False))
