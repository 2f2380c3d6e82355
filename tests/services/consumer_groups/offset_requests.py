"""Requests about the offsets of groups, as members, brokers and administrators send them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from services.runtime import offset_rows
from tests.services.consumer_groups.harness import (
    GROUP_NAME,
    STREAM,
    TOPIC,
    USER,
    GroupsHarness,
)
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.errors import Refusal

# Offsets by partition, or pairs of them where a partition may stand twice.
Offsets = Mapping[int, int] | Iterable[tuple[int, int]]
EARLIEST: Final = api.OFFSET_RESET_EARLIEST
LATEST: Final = api.OFFSET_RESET_LATEST
TIME: Final = api.OFFSET_RESET_TIME


def empty_group(partitions_count: int = 6) -> GroupsHarness:
    """Return a harness with a group without members."""
    harness = GroupsHarness(partitions_count=partitions_count)
    harness.create()
    return harness


def told(offsets: Offsets) -> list[PartitionOffset]:
    """Return offsets as requests have them."""
    pairs = offsets.items() if isinstance(offsets, Mapping) else offsets
    return [PartitionOffset(partition=partition, offset=offset) for partition, offset in pairs]


def commit(
    harness: GroupsHarness,
    offsets: Offsets,
    *,
    session: int = 0,
    epoch: int = 0,
    user: int = USER,
    manages: bool = False,
    name: str = GROUP_NAME,
    topic: int = TOPIC,
    **fields: Any,
) -> None:
    """Commit offsets: by default those of a group without members."""
    request = api.CommitOffsetsRequest(member_epoch=epoch, offsets=told(offsets), **fields)
    request.group.name = name
    harness.command(
        "CommitOffsets", request, session=session, user=user, topic=topic, manages=manages
    )


def commit_as(harness: GroupsHarness, session: int, offsets: Offsets, **fields: Any) -> None:
    """Commit offsets of a member with its present epoch."""
    epoch = harness.member(session).member_epoch
    commit(harness, offsets, session=session, epoch=epoch, **fields)


def reset(
    harness: GroupsHarness, offsets: Offsets = (), *, name: str = GROUP_NAME, **fields: Any
) -> None:
    """Set offsets of a group without members."""
    request = api.ResetOffsetsRequest(offsets=told(offsets), **fields)
    request.group.name = name
    harness.command("ResetOffsets", request)


def forget(
    harness: GroupsHarness,
    partitions: Iterable[int] = (),
    *,
    name: str = GROUP_NAME,
    **fields: Any,
) -> None:
    """Delete offsets of a group without members; all if no partition is named."""
    request = api.DeleteOffsetsRequest(partitions=partitions, **fields)
    request.group.name = name
    harness.command("DeleteOffsets", request)


def fetch(
    harness: GroupsHarness, *, name: str = GROUP_NAME, topic: int = TOPIC, **fields: Any
) -> api.FetchOffsetsResponse:
    """Return a page of a group's offsets."""
    request = api.FetchOffsetsRequest(**fields)
    request.group.name = name
    page: api.FetchOffsetsResponse = harness.query("FetchOffsets", request, topic=topic)
    return page


def committed(harness: GroupsHarness, name: str = GROUP_NAME, topic: int = TOPIC) -> dict[int, int]:
    """Return a group's offsets by partition."""
    return {each.partition: each.offset for each in fetch(harness, name=name, topic=topic).offsets}


def kept_offsets(harness: GroupsHarness) -> dict[tuple[int, int], int]:
    """Return all that the machine keeps, even if nobody is told of it: by group and partition."""
    return {
        (group_id, offset_rows.first_partition(number) + index): plus_one - 1
        for (group_id, number), row in harness.state.offsets.rows.items()
        for index, plus_one in enumerate(offset_rows.unpack(row.offsets))
        if plus_one
    }


def report(
    harness: GroupsHarness,
    ends: Offsets,
    *,
    are_starts: bool = False,
    written_by: int = 0,
    topic: int = TOPIC,
) -> None:
    """Tell of the ends of a topic's partitions, and by when all was written; or of their starts."""
    harness.effect(
        offsets_reported=effects_pb2.OffsetsReported(
            stream_id=STREAM,
            topic_id=topic,
            offsets=told(ends),
            are_starts=are_starts,
            written_by=written_by,
        )
    )


def find(harness: GroupsHarness, time_us: int, **fields: Any) -> api.FindOffsetsResponse:
    """Return a page of where to read what was written from a time on."""
    request = api.FindOffsetsRequest(time_us=time_us, **fields)
    page: api.FindOffsetsResponse = harness.query("FindOffsets", request)
    return page


def found(harness: GroupsHarness, time_us: int, **fields: Any) -> dict[int, tuple[int, int]]:
    """Return the offset for a time by partition, and by when all before it was written."""
    page = find(harness, time_us, **fields)
    return {each.partition: (each.offset, each.written_by) for each in page.offsets}


def reported(harness: GroupsHarness, topic: int = TOPIC) -> dict[int, tuple[int, int]]:
    """Return the starts and ends that the machine knows of a topic, by partition."""
    return {
        offset_rows.first_partition(number) + index: (
            offset_rows.at(row.starts, index),
            plus_one - 1,
        )
        for (topic_id, number), row in harness.state.watermarks.rows.items()
        if topic_id == topic
        for index, plus_one in enumerate(offset_rows.unpack(row.ends))
        if plus_one
    }


def progress(each: views.CommittedOffset) -> tuple[int, int | None, int | None, int | None]:
    """Return an offset, and the start, the end and the lag where they are told."""
    start = each.start_offset if each.HasField("start_offset") else None
    end = each.end_offset if each.HasField("end_offset") else None
    lag = each.lag if each.HasField("lag") else None
    return each.offset, start, end, lag


def refusal_of(harness: GroupsHarness, action: Callable[[], object]) -> Refusal:
    """Return the refusal of an action, which must change nothing."""
    before = harness.digest()
    try:
        action()
    except Refusal as refusal:
        assert harness.digest() == before
        assert refusal.message.endswith(".")
        return refusal
    raise AssertionError("the action was not refused")
