"""What users do with offsets in a world: reports, commits, resets, deletions, mostly legal ones."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from testkit.world.wanderers import Wanderer
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.client import LINEARIZABLE, STALE
from viewstamp.client.identifiers import group_name, microseconds, partition_offsets
from viewstamp.client.transport import Endpoint, unary

PARTITIONS_MAX: Final = 4
_OFFSETS_MAX: Final = 30
_NO_PARTITION: Final = 999
_PAGES: Final = (0, 0, 1, 2)
_RESETS: Final = (groups_pb2.OFFSET_RESET_EARLIEST, groups_pb2.OFFSET_RESET_LATEST)
_STEPS: Final = (1, 4)
_SINCE_S_MAX: Final = 60


async def make_group(w: Wanderer, a: str, b: str, c: str) -> None:
    """Make a stream, a topic and a group, unless they are there."""
    making: tuple[Awaitable[Any], ...] = (
        w.client.streams.create(a),
        w.client.topics.create(a, b, partitions_count=w.random.randint(1, PARTITIONS_MAX)),
        w.client.groups.create(a, b, c),
    )
    for each in making:
        answer = await w.tried(each, None)
        if answer is not None:
            w.requests.learn(answer)


async def report_data(w: Wanderer) -> None:
    """Report where the data of a topic begins and ends, and read it."""
    a, b, c = (w.random.choice("abc") for _ in range(3))
    await make_group(w, a, b, c)
    topics = w.client.topics
    for _ in range(w.random.randint(*_STEPS)):
        report = w.random.choice((topics.report_partition_ends, topics.truncate_partitions))
        await w.tried(report(a, b, _some_offsets(w), validate_only=w.requests.chance(8)), None)
        size, level = w.random.choice(_PAGES), w.random.choice((LINEARIZABLE, STALE))
        known = topics.watermarks(a, b, page_size=size, consistency=level)
        for each in await w.tried(_all(known), None) or ():
            if each.start_offset > each.end_offset:
                w.fail(f"{w.name} was told that data ends before it begins: {each}")
        await _find_offsets(w, a, b)


async def _find_offsets(w: Wanderer, a: str, b: str) -> None:
    """Ask where to read what was written from a time on, which must be where data is."""
    size, level = w.random.choice(_PAGES), w.random.choice((LINEARIZABLE, STALE))
    since = _some_time(w)
    found = w.client.groups.find_offsets(a, b, since, page_size=size, consistency=level)
    for each in await w.tried(_all(found), None) or ():
        if not _is_within(each, since):
            w.fail(f"{w.name} asked for {since}, and was told an offset that cannot be: {each}")


async def change_offsets(w: Wanderer) -> None:
    """Commit, reset and delete offsets of a group, which may have members, and fetch them."""
    a, b, c = (w.random.choice("abc") for _ in range(3))
    await make_group(w, a, b, c)
    for _ in range(w.random.randint(*_STEPS)):
        await w.tried(_change(w, (a, b, c)), None)
        await fetch_offsets(w, (a, b, c))


def _change(w: Wanderer, group: tuple[str, str, str]) -> Awaitable[Any]:
    groups, some = w.client.groups, w.requests.chance(2)
    tries, allowed = w.requests.chance(8), w.requests.chance(3)
    return w.random.choice(
        (
            lambda: groups.commit_offsets(
                *group, _some_offsets(w), allow_out_of_range=allowed, validate_only=tries
            ),
            lambda: groups.commit_offsets(*group, {0: 1}, member_epoch=w.random.randint(0, 9)),
            lambda: groups.reset_offsets(
                *group, _some_offsets(w), allow_out_of_range=allowed, validate_only=tries
            ),
            lambda: groups.reset_offsets(
                *group, to=w.random.choice(_RESETS), partitions=_some_offsets(w) if some else None
            ),
            lambda: groups.reset_offsets(
                *group, time=_some_time(w), partitions=_some_offsets(w) if some else None
            ),
            lambda: groups.delete_offsets(
                *group, partitions=_some_offsets(w) if some else None, validate_only=tries
            ),
        )
    )()


async def fetch_offsets(w: Wanderer, group: tuple[str, str, str]) -> None:
    """Fetch offsets of a group, which must be whole, whatever anybody changes meanwhile."""
    named = _some_offsets(w) if w.requests.chance(3) else None
    size, level = w.random.choice(_PAGES), w.random.choice((LINEARIZABLE, STALE))
    told = w.client.groups.fetch_offsets(
        *group, partitions=named, page_size=size, consistency=level
    )
    for each in await w.tried(_all(told), None) or ():
        if not _is_whole(each):
            w.fail(f"{w.name} was told an offset that contradicts itself: {each}")


async def commit_for_member(
    w: Wanderer,
    where: Endpoint,
    access_token: str,
    group: tuple[str, str, str],
    offsets: Mapping[int, int],
    epoch: int,
) -> None:
    """Commit for the member of the own session as a broker does, which has no session."""
    request = groups_pb2.CommitOffsetsRequest(
        **group_name(*group),
        offsets=partition_offsets(offsets),
        member_epoch=epoch,
        session_id=w.client.session_id,
    )
    async with where.open() as channel:
        await unary(channel, request, access_token=access_token)


def _some_offsets(w: Wanderer) -> dict[int, int]:
    """Return offsets of a few partitions; some are not there, and some offsets are impossible."""
    partitions = w.random.sample(range(PARTITIONS_MAX), w.random.randint(1, PARTITIONS_MAX - 1))
    offsets = {each: w.random.randint(0, _OFFSETS_MAX) for each in partitions}
    if w.requests.chance(12):
        offsets[_NO_PARTITION] = 1
    if w.requests.chance(12):
        offsets[0] = limits.OFFSET_MAX + w.random.randint(0, 1)
    return offsets


def _some_time(w: Wanderer) -> datetime:
    """Return a time of the last minute, by the clock here."""
    return datetime.fromtimestamp(time.time() - w.random.randint(0, _SINCE_S_MAX), UTC)


async def _all(found: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in found]


def _is_within(found: consumer_groups_pb2.FoundOffset, since: datetime) -> bool:
    """Whether an offset lies where data is, and all before it was written before the time."""
    if not found.start_offset <= found.offset <= found.end_offset:
        return False
    return found.written_by < microseconds(since) and bool(found.written_by) == (
        found.offset > found.start_offset
    )


def _is_whole(told: consumer_groups_pb2.CommittedOffset) -> bool:
    """Whether all that is reported is there or nothing, and the lag follows from it."""
    if not told.HasField("end_offset"):
        return not (told.HasField("start_offset") or told.HasField("lag"))
    lag = max(0, told.end_offset - max(told.offset, told.start_offset))
    return told.start_offset <= told.end_offset and told.HasField("lag") and told.lag == lag
