"""A member commits what its program has read, and nothing that others may have read since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from tests.services.consumer_groups.harness import STREAM, TOPIC
from tests.viewstamp.client.group_cluster import (
    NAME,
    PATIENCE_S,
    GroupCluster,
    SessionClient,
    change_of,
    until,
)
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.client.membership import AssignmentChange, GroupMember
from viewstamp.errors import Refusal

pytestmark = pytest.mark.usefixtures("often")

HOUR_MS = 3_600_000


def committed(cluster: GroupCluster) -> dict[int, int]:
    """Return the offsets of the group, by partition."""
    answer = cluster.harness.query("FetchOffsets", api.FetchOffsetsRequest(**NAME))
    return {each.partition: each.offset for each in answer.offsets}


def commits(client: SessionClient) -> list[api.CommitOffsetsRequest]:
    """Return the commits that were sent."""
    return [each for each in client.sent if isinstance(each, api.CommitOffsetsRequest)]


async def refused(member: GroupMember, offsets: dict[int, int]) -> Refusal:
    """Commit, and return why that was refused."""
    with pytest.raises(Refusal) as caught:
        await member.commit(offsets)
    return caught.value


async def test_a_member_commits_with_its_epoch() -> None:
    """The group has what its members commit, each with the epoch that it has reached."""
    cluster = GroupCluster()
    client, other = cluster.client(), cluster.client()
    async with cluster.member(client) as one:
        await change_of(one)
        await one.commit({3: 30, 0: 5})
        async with cluster.member(other) as two:
            await change_of(one)
            asyncio.create_task(anext(one))  # noqa: RUF006 - it says that it has stopped
            assert (await change_of(two)).assigned == (2, 3)
            await until(lambda: two.member_epoch == cluster.harness.group().assignment_epoch)
            await two.commit({3: 31})
            assert (
                commits(other)[0].member_epoch == two.member_epoch > commits(client)[0].member_epoch
            )
        assert committed(cluster) == {0: 5, 3: 31}


async def test_what_is_given_up_is_committed_before_the_next_change() -> None:
    """A program commits what was revoked until it asks on; then only the new owner does."""
    cluster = GroupCluster()
    client = cluster.client()
    async with cluster.member(client) as one:
        await change_of(one)
        async with cluster.member(cluster.client()) as two:
            assert await change_of(one) == AssignmentChange(revoked=(2, 3))
            await one.commit({0: 1, 2: 7, 3: 8})
            asking = asyncio.create_task(anext(one))
            assert await change_of(two) == AssignmentChange(assigned=(2, 3))
            refusal = await refused(one, {0: 2, 2: 9})
            assert (refusal.name, refusal.details) == ("PARTITION_NOT_OWNED", {"partition": "2"})
            assert len(commits(client)) == 1
            await two.commit({2: 8})
            assert committed(cluster) == {0: 1, 2: 8, 3: 8}
            asking.cancel()


async def test_a_member_that_joined_again_commits_nothing_of_before() -> None:
    """What was lost is not committed, even if the member has it again and the cluster takes it."""
    cluster = GroupCluster()
    client = cluster.client()
    async with cluster.member(client) as one:
        await change_of(one)
        cluster.harness.leave(client.session)
        await until(lambda: cluster.harness.owners() == dict.fromkeys(range(4), client.session))
        await until(lambda: one.member_epoch == cluster.harness.group().assignment_epoch)
        assert (await refused(one, {0: 9})).name == "PARTITION_NOT_OWNED"
        request = api.CommitOffsetsRequest(**NAME, member_epoch=one.member_epoch)
        request.offsets.add(partition=0, offset=3)
        await client.call(request)
        change = await change_of(one)
        assert change == AssignmentChange(assigned=(0, 1, 2, 3), lost=(0, 1, 2, 3))
        await one.commit({0: 4})
        assert committed(cluster) == {0: 4}


SILENT_SESSION = 99


def removed(cluster: GroupCluster, session: int) -> None:
    """Remove the member."""
    cluster.harness.leave(session)


def joined_later(cluster: GroupCluster, session: int) -> None:
    """Remove the member, and let its session join after the next assignment."""
    cluster.harness.leave(session)
    cluster.harness.propose_all()
    cluster.harness.join(session)


def joined_at_once(cluster: GroupCluster, session: int) -> None:
    """Remove the member, and let its session join at the same epoch, with no partition."""
    cluster.harness.leave(session)
    cluster.harness.join(session)


@pytest.mark.parametrize(
    ("move_on", "reason"),
    [
        (removed, "NOT_A_MEMBER"),
        (joined_later, "FENCED_MEMBER_EPOCH"),
        (joined_at_once, "PARTITION_NOT_OWNED"),
    ],
)
async def test_a_refused_commit_tells_the_member(
    monkeypatch: pytest.MonkeyPatch,
    move_on: Callable[[GroupCluster, int], None],
    reason: str,
) -> None:
    """The refusal reaches the program, which then hears at once what it has lost."""
    cluster = GroupCluster()
    cluster.harness.join(SILENT_SESSION)
    client = cluster.client()
    async with cluster.member(client) as one:
        cluster.harness.settle()
        assert (await change_of(one)).assigned == (2, 3)
        await until(lambda: one.member_epoch == cluster.harness.group().assignment_epoch)
        monkeypatch.setattr(limits, "MEMBER_HEARTBEAT_MS", HOUR_MS)
        monkeypatch.setattr(limits, "MEMBER_UNSETTLED_HEARTBEAT_MS", HOUR_MS)
        sent = len(client.sent)
        await until(lambda: len(client.sent) > sent)  # from now on it pauses for an hour
        move_on(cluster, client.session)
        assert (await refused(one, {2: 9})).name == reason
        assert (await change_of(one)).lost == (2, 3)
        assert committed(cluster) == {}


async def test_a_commit_that_a_heartbeat_overtook_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The epoch that rose while a commit was on its way fences nobody who holds the partition."""
    cluster = GroupCluster()
    client = cluster.client()
    call = client.call
    async with cluster.member(client) as one:
        await change_of(one)

        async def overtaken(request: Message, **options: Any) -> Any:
            if isinstance(request, api.CommitOffsetsRequest) and not commits(client):
                epoch = one.member_epoch
                cluster.harness.change_partitions(5)
                cluster.harness.propose_all()
                await until(lambda: one.member_epoch > epoch)
            return await call(request, **options)

        monkeypatch.setattr(client, "call", overtaken)
        await one.commit({0: 6})
        first, second = (request.member_epoch for request in commits(client))
        assert first < second == one.member_epoch
        assert committed(cluster) == {0: 6}


async def test_an_offset_out_of_range_is_refused_unless_allowed() -> None:
    """A member commits beyond what was reported only if it says so."""
    cluster = GroupCluster()
    ends = [PartitionOffset(partition=0, offset=100)]
    reported = effects_pb2.OffsetsReported(stream_id=STREAM, topic_id=TOPIC, offsets=ends)
    cluster.harness.effect(offsets_reported=reported)
    async with cluster.member(cluster.client()) as one:
        await change_of(one)
        assert (await refused(one, {0: 101, 1: 5})).name == "OFFSET_OUT_OF_RANGE"
        assert committed(cluster) == {}
        await one.commit({0: 101, 1: 5}, allow_out_of_range=True)
        assert committed(cluster) == {0: 101, 1: 5}


async def test_only_a_member_commits() -> None:
    """Before it has joined, and after it has left, a member commits nothing."""
    cluster = GroupCluster()
    client = cluster.client()
    member = GroupMember(client, NAME)
    assert (await refused(member, {0: 1})).name == "PARTITION_NOT_OWNED"
    async with member, asyncio.timeout(PATIENCE_S):
        assert (await anext(member)).assigned == (0, 1, 2, 3)
    assert (await refused(member, {0: 1})).name == "PARTITION_NOT_OWNED"
    assert (member.owned, commits(client)) == (frozenset(), [])
