"""What `describe` shows of streams, topics, groups and users: several reads for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.cli.describing import DescribedSection, EntityDescription, NotedReads, some
from viewstamp.cli.output import plain
from viewstamp.client.groups import Groups
from viewstamp.client.identifiers import group_name, topic_name
from viewstamp.client.sessions import Sessions
from viewstamp.client.streams import Streams, Topics
from viewstamp.client.users import Tokens, Users

TOPIC_COLUMNS = (
    *("id", "name", "partitions_count", "offsets", "offsets_are_whole"),
    "max_topic_size_bytes",
)
RANGE_COLUMNS = ("first", "count", "created_revision")
WATERMARK_COLUMNS = ("partition", "start_offset", "end_offset")
GROUP_COLUMNS = ("id", "name", "state", "members_count", "lag", "unknown_lags", "lag_is_whole")
MEMBER_COLUMNS = (
    *("session_id", "user_id", "instance_id", "state", "member_epoch"),
    *("owned_partitions", "revoking_partitions", "target_partitions"),
)
LAG_COLUMNS = ("partition", "session_id", "offset", "start_offset", "end_offset", "lag")
TOKEN_COLUMNS = ("name", "expires_at", "created_at")
SESSION_COLUMNS = ("session_id", "last_request_number")


async def stream_description(reads: NotedReads, stream: int | str, limit: int) -> EntityDescription:
    """Return a stream with its topics: partitions, offsets that remain, and the size allowed."""
    found, listed = await asyncio.gather(
        Streams(reads).get(stream), some(Topics(reads).list(stream, page_size=limit + 1), limit)
    )
    topics, is_whole = listed
    remaining = await asyncio.gather(*(_remaining(reads, topic) for topic in topics))
    rows = [
        {
            **plain(topic),
            **offsets,
            "max_topic_size_bytes": topic.options.max_topic_size_bytes,
        }
        for topic, offsets in zip(topics, remaining, strict=True)
    ]
    sections = {"topics": DescribedSection(TOPIC_COLUMNS, rows, is_whole)}
    return EntityDescription("stream", found.name, plain(found), sections)


async def topic_description(
    reads: NotedReads, stream: int | str, topic: int | str, limit: int
) -> EntityDescription:
    """Return a topic with its partitions, watermarks and groups with state and lag."""
    topics, groups = Topics(reads), Groups(reads)
    found, ranges, watermarks, listed = await asyncio.gather(
        topics.get(stream, topic),
        topics.partitions(stream, topic),
        _rows(topics.watermarks(stream, topic, page_size=limit + 1), WATERMARK_COLUMNS, limit),
        some(groups.list(stream, topic, page_size=limit + 1), limit),
    )
    lags = await asyncio.gather(*(_lags(reads, group) for group in listed[0]))
    rows = [{**plain(group), **lag.summary()} for group, lag in zip(listed[0], lags, strict=True)]
    sections = {
        "partitions": _cut(ranges, RANGE_COLUMNS, limit),
        "watermarks": watermarks,
        "groups": DescribedSection(GROUP_COLUMNS, rows, listed[1]),
    }
    return EntityDescription("topic", found.name, plain(found), sections)


async def group_description(
    reads: NotedReads, stream: int | str, topic: int | str, group: int | str, limit: int
) -> EntityDescription:
    """Return a group with its members, what they have and are to have, and its lag."""
    found, lags = await asyncio.gather(
        Groups(reads).get(stream, topic, group),
        _page_of_lags(reads, group_name(stream, topic, group)),
    )
    owners = {
        partition: member.session_id
        for member in found.members
        for partition in member.owned_partitions
    }
    shown = [
        {**plain(each), "session_id": owners.get(each.partition)} for each in lags.offsets[:limit]
    ]
    is_whole = lags.is_whole and len(lags.offsets) <= limit
    sections = {
        "members": _cut(found.members, MEMBER_COLUMNS, limit),
        "offsets": DescribedSection(LAG_COLUMNS, shown, is_whole),
    }
    entity = {key: value for key, value in plain(found).items() if key != "members"}
    return EntityDescription("group", found.name, {**entity, **lags.summary()}, sections)


async def user_description(
    reads: NotedReads, user: int | str | None, limit: int
) -> EntityDescription:
    """Return a user, by default the caller, with permissions, tokens and sessions."""
    users, tokens, sessions = Users(reads), Tokens(reads), Sessions(reads)
    if user is None:
        found, kept, own = await asyncio.gather(
            users.who_am_i(),
            _rows(tokens.list(page_size=limit + 1), TOKEN_COLUMNS, limit),
            sessions.own(),
        )
        opened = _cut(own, SESSION_COLUMNS, limit)
    else:
        found = await users.get(user)
        kept, opened = await asyncio.gather(
            _rows(tokens.list(user=found.id, page_size=limit + 1), TOKEN_COLUMNS, limit),
            _rows(sessions.list(user_id=found.id, page_size=limit + 1), SESSION_COLUMNS, limit),
        )
    return EntityDescription(
        "user", found.username, plain(found), {"tokens": kept, "sessions": opened}
    )


@dataclass(frozen=True, slots=True)
class _Lags:
    """The offsets of a group on one page, the first; `is_whole` if there is no other."""

    offsets: Sequence[consumer_groups_pb2.CommittedOffset]
    is_whole: bool

    def summary(self) -> dict[str, Any]:
        """Return the sum of the lags that are known, and whether these are all partitions."""
        known = [each.lag for each in self.offsets if each.HasField("lag")]
        unknown = len(self.offsets) - len(known)
        return {"lag": sum(known), "unknown_lags": unknown, "lag_is_whole": self.is_whole}


async def _lags(reads: NotedReads, group: consumer_groups_pb2.ConsumerGroup) -> _Lags:
    return await _page_of_lags(reads, group_name(group.stream_id, group.topic_id, group.id))


async def _page_of_lags(reads: NotedReads, name: Any) -> _Lags:
    request = groups_api.FetchOffsetsRequest(**name, page_size=limits.OFFSETS_PAGE_MAX)
    page = await reads.call(request)
    return _Lags(page.offsets, not page.next_page_token)


async def _remaining(reads: NotedReads, topic: streams_pb2.Topic) -> dict[str, Any]:
    """Return how many offsets remain in the partitions of which this was reported."""
    name = topic_name(topic.stream_id, topic.id)
    request = streams_api.ListWatermarksRequest(**name, page_size=limits.OFFSETS_PAGE_MAX)
    page = await reads.call(request)
    count = sum(each.end_offset - each.start_offset for each in page.watermarks)
    return {"offsets": count, "offsets_are_whole": not page.next_page_token}


async def _rows(
    items: AsyncIterator[Message], columns: Sequence[str], limit: int
) -> DescribedSection:
    found, is_whole = await some(items, limit)
    return DescribedSection(columns, [plain(each) for each in found], is_whole)


def _cut(items: Iterable[Message], columns: Sequence[str], limit: int) -> DescribedSection:
    rows = [plain(each) for each in items]
    return DescribedSection(columns, rows[:limit], len(rows) <= limit)
