"""A member stays in its group by itself, and its program never reads what others may read.

The members below talk to the real state machine, whose answers may be lost.
"""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.message import Message

from tests.viewstamp.client.group_cluster import (
    NAME,
    PATIENCE_S,
    GroupCluster,
    change_of,
    until,
)
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client.errors import ClientClosed, TimedOut
from viewstamp.client.membership import AssignmentChange, GroupMember
from viewstamp.errors import Refusal

pytestmark = pytest.mark.usefixtures("often")


async def test_a_partition_moves_when_its_reader_has_stopped() -> None:
    """What is revoked stays with its reader until the reader asks for the next change."""
    cluster = GroupCluster()
    async with cluster.member(cluster.client()) as one:
        assert await change_of(one) == AssignmentChange(assigned=(0, 1, 2, 3))
        async with cluster.member(cluster.client()) as two:
            assert await change_of(one) == AssignmentChange(revoked=(2, 3))
            assert one.owned == {0, 1}
            assert two.owned == set()
            next_change = asyncio.create_task(anext(one))
            assert await change_of(two) == AssignmentChange(assigned=(2, 3))
        async with asyncio.timeout(PATIENCE_S):
            assert await next_change == AssignmentChange(assigned=(2, 3))
        assert one.owned == {0, 1, 2, 3}


async def test_a_quiet_member_sends_no_commands() -> None:
    """Once everything is known, only reads show that the member is alive."""
    cluster = GroupCluster()
    client = cluster.client()
    async with cluster.member(client) as one:
        await change_of(one)
        await until(lambda: one.member_epoch == cluster.harness.group().assignment_epoch)
        known, sent = len(client.heartbeats()), len(client.sent)
        await until(lambda: len(client.sent) > sent + 20)
        assert len(client.heartbeats()) == known


async def test_a_removed_member_loses_everything_and_joins_again() -> None:
    """Who was removed is told that all is lost, even if it gets the same partitions again."""
    cluster = GroupCluster()
    client = cluster.client()
    async with cluster.member(client) as one:
        await change_of(one)
        cluster.harness.leave(client.session)
        change = await change_of(one)
        assert change.lost == (0, 1, 2, 3)
        if not change.assigned:
            change = await change_of(one)
        assert change.assigned == (0, 1, 2, 3)


async def test_an_unheard_member_stops_by_itself() -> None:
    """Without an answer for the timeout the member owns nothing; answers bring it back."""
    cluster = GroupCluster()
    client = cluster.client()
    async with cluster.member(client) as one:
        await change_of(one)

        def cut_off(request: Message) -> None:
            raise TimedOut("no answer")

        client.failure = cut_off
        cluster.now_s += limits.MEMBER_TIMEOUT_US / 1e6 - 1
        assert one.owned == {0, 1, 2, 3}
        cluster.now_s += 1
        assert one.owned == frozenset()
        assert await change_of(one) == AssignmentChange(lost=(0, 1, 2, 3))
        client.failure = lambda request: None
        assert await change_of(one) == AssignmentChange(assigned=(0, 1, 2, 3))


async def test_the_program_hears_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the pause between signs of life, all is lost once the timeout has passed."""
    monkeypatch.setattr(limits, "MEMBER_HEARTBEAT_MS", 3_600_000)
    monkeypatch.setattr(limits, "MEMBER_TIMEOUT_MIN_US", 1_000)
    cluster = GroupCluster()
    cluster.harness.command(
        "UpdateConsumerGroup",
        api.UpdateConsumerGroupRequest(group=NAME["group"], member_timeout_ms=50),
    )
    async with GroupMember(cluster.client(), NAME) as one:
        assert (await change_of(one)).assigned == (0, 1, 2, 3)
        assert await change_of(one) == AssignmentChange(lost=(0, 1, 2, 3))


async def test_what_the_program_tells_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has stopped reading is told at once, though the pause is longer than the timeout."""
    cluster = GroupCluster()
    client = cluster.client()
    async with GroupMember(client, NAME) as one:
        await change_of(one)
        async with cluster.member(cluster.client()):
            assert (await change_of(one)).revoked == (2, 3)
            monkeypatch.setattr(limits, "MEMBER_UNSETTLED_HEARTBEAT_MS", 3_600_000)
            await asyncio.sleep(0.05)
            telling = asyncio.create_task(anext(one))
            await until(lambda: cluster.harness.member(client.session).revoking == ())
            telling.cancel()


async def test_a_member_that_is_removed_again_and_again_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that can join and is none in the next moment does not fill the log."""
    monkeypatch.setattr("viewstamp.client.membership.REJOIN_PAUSE_S", 3_600)
    cluster = GroupCluster()
    client = cluster.client()

    def refuse(request: Message) -> None:
        if isinstance(request, api.KeepAliveConsumerGroupRequest):
            raise Refusal(Reason.REASON_NOT_A_MEMBER, "not any more")

    client.failure = refuse
    async with cluster.member(client):
        await until(lambda: len(client.sent) == 2)
        await asyncio.sleep(0.02)
        joins = [type(each).__name__ for each in client.sent]
        assert joins == ["JoinConsumerGroupRequest"] * 2


async def test_a_defect_is_told() -> None:
    """An error that nobody foresaw ends the iteration, and not only the task behind it."""
    cluster = GroupCluster()
    client = cluster.client()
    async with cluster.member(client) as one:
        await change_of(one)

        def fail(request: Message) -> None:
            raise ZeroDivisionError("a defect")

        client.failure = fail
        assert (await change_of(one)).lost == (0, 1, 2, 3)
        with pytest.raises(ZeroDivisionError):
            await change_of(one)


async def test_a_static_member_comes_back_to_its_partitions() -> None:
    """The next process of an instance gets the place, and nothing moves meanwhile."""
    cluster = GroupCluster()
    async with cluster.member(cluster.client()) as other:
        await change_of(other)
        client = cluster.client()
        async with cluster.member(client, "static") as first:
            await change_of(other)
            asyncio.create_task(anext(other))  # noqa: RUF006 - it says that it has stopped
            assert (await change_of(first)).assigned == (2, 3)
        epoch = cluster.harness.group().group_epoch
        async with cluster.member(cluster.client(), "static") as second:
            assert (await change_of(second)).assigned == (2, 3)
            assert cluster.harness.group().group_epoch == epoch


async def test_an_instance_waits_for_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts before the one before has ended joins once the place is free."""
    monkeypatch.setattr("viewstamp.client.membership.TAKEN_PAUSE_S", 0.001)
    cluster = GroupCluster()
    old, new = cluster.client(), cluster.client()
    async with cluster.member(old, "static") as first:
        await change_of(first)
        successor = GroupMember(new, NAME, "static", clock_s=lambda: cluster.now_s)
        joining = asyncio.create_task(successor.__aenter__())
        await asyncio.sleep(0.02)
        assert not joining.done()
    async with asyncio.timeout(PATIENCE_S):
        await joining
        assert (await anext(successor)).assigned == (0, 1, 2, 3)
        await successor.__aexit__()


@pytest.mark.parametrize(
    "failure",
    [
        Refusal(Reason.REASON_GROUP_NOT_FOUND, "gone"),
        Refusal(Reason.REASON_PERMISSION_DENIED, "not any more"),
        Refusal(Reason.REASON_SESSION_EVICTED, "evicted"),
        ClientClosed("closed"),
    ],
    ids=["deleted", "denied", "evicted", "closed"],
)
async def test_what_cannot_go_on_ends_the_iteration(failure: Exception) -> None:
    """The program hears that all is lost, and then why."""
    cluster = GroupCluster()
    client = cluster.client()
    async with cluster.member(client) as one:
        await change_of(one)

        def fail(request: Message) -> None:
            raise failure

        client.failure = fail
        assert await change_of(one) == AssignmentChange(lost=(0, 1, 2, 3))
        with pytest.raises(type(failure)):
            await change_of(one)
        assert one.owned == frozenset()


async def test_many_partitions_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of more partitions than an answer names reads them page by page."""
    monkeypatch.setattr(limits, "HEARTBEAT_PARTITIONS_MAX", 4)
    monkeypatch.setattr(limits, "PARTITIONS_PAGE_MAX", 3)
    cluster = GroupCluster(partitions_count=10)
    async with cluster.member(cluster.client()) as one:
        assert (await change_of(one)).assigned == tuple(range(10))
        async with cluster.member(cluster.client()):
            assert (await change_of(one)).revoked == tuple(range(5, 10))
