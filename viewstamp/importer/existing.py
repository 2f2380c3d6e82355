"""The part of a plan that exists in the cluster already, read page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from viewstamp.client import Client
from viewstamp.importer.plan import GroupKey, ImportPlan, TopicKey
from viewstamp.limits import PAGE_SIZE_MAX

READS_AT_ONCE: Final = 128


class TopicIds(NamedTuple):
    """A topic by ids, as permissions hold it."""

    stream_id: int
    topic_id: int


@dataclass(frozen=True, slots=True)
class Existing:
    """The entities in the cluster that have a name of the plan."""

    streams: dict[str, int]
    topics: dict[TopicKey, TopicIds]
    groups: frozenset[GroupKey]


async def read_existing(client: Client, plan: ImportPlan) -> Existing:
    """Return what there is now. Raises Refusal, ClientError."""
    wanted = set(plan.streams)
    streams = {
        stream.name: stream.id
        async for stream in client.streams.list(page_size=PAGE_SIZE_MAX)
        if stream.name in wanted
    }
    topics = await read_topics(client, streams)
    planned = [topics[key] for key in plan.topics if key in topics]
    return Existing(streams, topics, await _read_groups(client, planned, topics))


async def read_topics(client: Client, streams: dict[str, int]) -> dict[TopicKey, TopicIds]:
    """Return every topic of the streams given by name and id."""
    return {
        TopicKey(name, topic.name): TopicIds(stream_id, topic.id)
        for name, stream_id in streams.items()
        async for topic in client.topics.list(stream_id, page_size=PAGE_SIZE_MAX)
    }


async def _read_groups(
    client: Client, ids: Iterable[TopicIds], topics: dict[TopicKey, TopicIds]
) -> frozenset[GroupKey]:
    names = {found: key for key, found in topics.items()}
    slots = asyncio.Semaphore(READS_AT_ONCE)

    async def groups_on(topic: TopicIds) -> list[GroupKey]:
        async with slots:
            return [
                GroupKey(*names[topic], group.name)
                async for group in client.groups.list(*topic, page_size=PAGE_SIZE_MAX)
            ]

    found = await asyncio.gather(*map(groups_on, ids))
    return frozenset(group for groups in found for group in groups)
