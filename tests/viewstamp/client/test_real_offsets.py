"""Watermarks, offsets and members by the client's facades, against a real replica."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.processes.patient_clients import PATIENT_S, connected
from tests.processes.processes import ReplicaProcesses, replica
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import CommittedOffset
from viewstamp.api.streams.v1.streams_pb2 import Watermarks
from viewstamp.api.streams.v1.streams_service_pb2 import ReportPartitionEndsRequest
from viewstamp.client import Client, Refusal
from viewstamp.client.identifiers import group_name, partition_offsets, topic_name
from viewstamp.client.membership import GroupMember
from viewstamp.client.pulse import Pulse

PARTITIONS = 4
LOOK_AGAIN_S = 0.02
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A broker's clock may be ahead of log time by this.
AHEAD = timedelta(seconds=30)


@pytest.fixture(scope="module")
def processes() -> Iterator[ReplicaProcesses]:
    """A running replica."""
    with replica() as running:
        yield running


async def made(client: Client, stream: str) -> tuple[str, str, str]:
    """Create a stream with a topic and a group, and return their names."""
    await client.streams.create(stream)
    await client.topics.create(stream, "events", partitions_count=PARTITIONS)
    await client.groups.create(stream, "events", "readers")
    return stream, "events", "readers"


async def offsets(client: Client, group: tuple[str, str, str]) -> dict[int, int]:
    """Return the offsets of a group, by partition."""
    return {each.partition: each.offset async for each in client.groups.fetch_offsets(*group)}


async def shared(*members: GroupMember) -> None:
    """Wait until each member owns its share."""

    async def follow(member: GroupMember) -> None:
        async for _ in member:
            pass

    following = [asyncio.create_task(follow(member)) for member in members]
    share = PARTITIONS // len(members)
    async with asyncio.timeout(PATIENT_S):
        while any(len(member.owned) != share for member in members):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_AGAIN_S)
    for task in following:
        task.cancel()


async def test_watermarks_are_what_was_reported(processes: ReplicaProcesses) -> None:
    """Reports move watermarks up alone, a dry run moves none, and the list goes over its pages."""
    async with connected(processes) as client:
        topic = (await made(client, "reported"))[:2]
        await client.topics.report_partition_ends(*topic, {0: 100, 2: 50})
        await client.topics.truncate_partitions(*topic, {0: 10, 3: 7})
        await client.topics.report_partition_ends(*topic, {0: 90})
        await client.topics.truncate_partitions(*topic, {0: 9})
        await client.topics.report_partition_ends(*topic, {1: 1}, validate_only=True)
        await client.topics.truncate_partitions(*topic, {1: 1}, validate_only=True)
        for page_size in (0, 1, 2):
            listed = [each async for each in client.topics.watermarks(*topic, page_size=page_size)]
            assert listed == [
                Watermarks(partition=0, start_offset=10, end_offset=100),
                Watermarks(partition=2, start_offset=0, end_offset=50),
                Watermarks(partition=3, start_offset=7, end_offset=7),
            ]


async def test_offsets_come_with_their_lag(processes: ReplicaProcesses) -> None:
    """Offsets are fetched in pages or by partition, with what was reported of the partition."""
    async with connected(processes) as client:
        group = await made(client, "fetched")
        await client.topics.report_partition_ends(*group[:2], {0: 100, 2: 50})
        await client.topics.truncate_partitions(*group[:2], {0: 10})
        await client.groups.commit_offsets(*group, {0: 40, 1: 7, 2: 50})
        await client.groups.commit_offsets(*group, {3: 1}, validate_only=True)
        found = [
            CommittedOffset(partition=0, offset=40, start_offset=10, end_offset=100, lag=60),
            CommittedOffset(partition=1, offset=7),
            CommittedOffset(partition=2, offset=50, start_offset=0, end_offset=50, lag=0),
        ]
        for page_size in (0, 1, 2):
            listed = client.groups.fetch_offsets(*group, page_size=page_size)
            assert [each async for each in listed] == found
        some = client.groups.fetch_offsets(*group, partitions={3, 2, 0}, page_size=1)
        assert [each async for each in some] == [found[0], found[2]]
        assert [each async for each in client.groups.fetch_offsets(*group, partitions=[])] == []
        with pytest.raises(Refusal) as caught:
            await client.groups.commit_offsets(*group, {0: 41, 2: 51})
        assert caught.value.name == "OFFSET_OUT_OF_RANGE"
        await client.groups.commit_offsets(*group, {2: 51}, allow_out_of_range=True)
        assert await offsets(client, group) == {0: 40, 1: 7, 2: 51}


async def test_offsets_are_reset_and_deleted(processes: ReplicaProcesses) -> None:
    """Offsets go to given places, to where data begins or ends, and away; a dry run moves none."""
    async with connected(processes) as client:
        group = await made(client, "reset")
        await client.topics.report_partition_ends(*group[:2], {0: 100, 1: 50})
        await client.topics.truncate_partitions(*group[:2], {0: 10})
        await client.groups.reset_offsets(*group, to=api.OFFSET_RESET_EARLIEST)
        assert await offsets(client, group) == {0: 10, 1: 0, 2: 0, 3: 0}
        await client.groups.reset_offsets(*group, to=api.OFFSET_RESET_LATEST, partitions={1, 0})
        await client.groups.reset_offsets(*group, {2: 5})
        await client.groups.reset_offsets(*group, {3: 5}, validate_only=True)
        assert await offsets(client, group) == {0: 100, 1: 50, 2: 5, 3: 0}
        with pytest.raises(Refusal) as caught:
            await client.groups.reset_offsets(*group, {0: 101})
        assert caught.value.name == "OFFSET_OUT_OF_RANGE"
        await client.groups.reset_offsets(*group, {0: 101}, allow_out_of_range=True)
        await client.groups.delete_offsets(*group, partitions={3, 1})
        await client.groups.delete_offsets(*group, validate_only=True)
        with pytest.raises(ValueError, match="no partition is named"):
            await client.groups.delete_offsets(*group, partitions=[])
        with pytest.raises(ValueError, match="no partition is named"):
            await client.groups.reset_offsets(*group, to=api.OFFSET_RESET_EARLIEST, partitions=[])
        assert await offsets(client, group) == {0: 101, 2: 5}
        await client.groups.delete_offsets(*group)
        assert await offsets(client, group) == {}


async def test_offsets_are_found_by_time(processes: ReplicaProcesses) -> None:
    """What was reported before a time is not read again, by pages and partitions, and by a reset.

    The later of the broker's time and log time counts, unless the broker's clock is far ahead.
    """
    async with connected(processes) as client:
        group = await made(client, "times")
        report, asked = client.topics.report_partition_ends, client.groups.find_offsets
        begun = datetime.now(UTC)

        async def found(time: datetime, **fields: Any) -> dict[int, int]:
            listed = asked(*group[:2], time, **fields)
            return {each.partition: each.offset async for each in listed}

        async def newest() -> datetime:
            offsets = asked(*group[:2], begun + timedelta(days=9), partitions=[0])
            (written_by,) = [each.written_by async for each in offsets]
            return EPOCH + timedelta(microseconds=written_by)

        await report(*group[:2], {0: 40, 2: 5}, reported_at=begun - timedelta(hours=1))
        first = await newest()
        await report(*group[:2], {0: 100}, reported_at=first + AHEAD)
        second = await newest()
        await report(*group[:2], {1: 7}, reported_at=second + timedelta(hours=1))
        assert first > begun - timedelta(hours=1)
        assert second >= first + AHEAD
        assert await found(first) == {0: 0, 1: 0, 2: 0}
        for page_size in (0, 1, 2):
            assert await found(second, page_size=page_size) == {0: 40, 1: 0, 2: 5}
        later = second + timedelta(microseconds=1)
        assert await found(later, partitions={3, 1, 0}) == {0: 100, 1: 0}
        assert await found(later, partitions=[]) == {}
        await client.groups.reset_offsets(*group, time=second)
        assert await offsets(client, group) == {0: 40, 1: 0, 2: 5, 3: 0}
        await client.groups.reset_offsets(*group, time=later, partitions=[0])
        await client.groups.reset_offsets(*group, time=first, validate_only=True)
        assert await offsets(client, group) == {0: 100, 1: 0, 2: 5, 3: 0}
        with pytest.raises(ValueError, match="has no time zone"):
            await client.groups.reset_offsets(*group, time=first.replace(tzinfo=None))
        with pytest.raises(ValueError, match="is too early"):
            await found(EPOCH)


async def test_a_broker_commits_for_members_in_one_request(processes: ReplicaProcesses) -> None:
    """A batch has a report and commits of several members; a fenced one keeps no other out."""
    async with (
        connected(processes) as broker,
        connected(processes) as first,
        connected(processes) as second,
    ):
        group = await made(broker, "batched")
        async with first.groups.member(*group) as one, second.groups.member(*group) as two:
            owners = {first.session_id: one, second.session_id: two}
            await shared(one, two)
            ends = dict.fromkeys(range(PARTITIONS), 9)
            report = ReportPartitionEndsRequest(
                **topic_name(*group[:2]), end_offsets=partition_offsets(ends)
            )
            commits = [
                api.CommitOffsetsRequest(
                    **group_name(*group),
                    session_id=session_id,
                    member_epoch=member.member_epoch,
                    offsets=partition_offsets(dict.fromkeys(member.owned, 9)),
                )
                for session_id, member in owners.items()
            ]
            late = api.CommitOffsetsRequest()
            late.CopyFrom(commits[0])
            late.member_epoch = 1_000
            results = await broker.batch([report, late, *commits])
            refused = {n: r.name for n, r in enumerate(results) if isinstance(r, Refusal)}
            assert refused == {1: "FENCED_MEMBER_EPOCH"}
            assert await offsets(broker, group) == ends
            await broker.groups.commit_offsets(
                *group,
                dict.fromkeys(two.owned, 8),
                session_id=second.session_id,
                member_epoch=two.member_epoch,
            )
            assert await offsets(broker, group) == ends | dict.fromkeys(two.owned, 8)


async def test_who_has_to_give_up_is_told(
    processes: ReplicaProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When another member joins, the first one's stream says so before its next sign of life."""
    told: list[tuple[Pulse, list[int]]] = []
    has_come = asyncio.Event()
    take = Pulse.noticed

    def remember(pulse: Pulse, group_ids: Iterable[int]) -> None:
        told.append((pulse, list(group_ids)))
        has_come.set()
        take(pulse, told[-1][1])

    monkeypatch.setattr(Pulse, "noticed", remember)
    async with connected(processes) as one, connected(processes) as two:
        group = await made(one, "noticed")
        group_id = (await one.groups.get(*group)).id
        async with one.groups.member(*group) as first:
            await shared(first)
            told.clear()
            has_come.clear()
            async with two.groups.member(*group) as second, asyncio.timeout(PATIENT_S):
                await has_come.wait()
                assert told[0][1] == [group_id]
                await shared(first, second)
    assert len({pulse for pulse, _ in told}) == 2
