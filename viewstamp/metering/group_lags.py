"""The consumer groups that are furthest behind, of those that a user may read.

All reads together are bounded, however many groups there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.identifiers import FacadeClient, group_name, pages, topic_name
from viewstamp.client.streams import Streams, Topics
from viewstamp.errors import Refusal

# Groups of which the lag is read each time, and streams and topics that are looked at for them.
GROUPS_READ_MAX: Final = 100
TOPICS_READ_MAX: Final = 200
STREAMS_READ_MAX: Final = 200
# Groups are looked for again after so many readings.
READINGS_PER_SEARCH: Final = 10


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A group, with the stream and the topic that it is in."""

    stream: streams_pb2.Stream
    topic: streams_pb2.Topic
    group: consumer_groups_pb2.ConsumerGroup


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The sum of the known lags of a group, whole if all of its partitions were read."""

    place: GroupPlace
    lag: int
    is_whole: bool


class GroupLags:
    """Reads the lags again and again.

    `partitions_max` bounds what is read of one group, `reads_max` the reads at a time.
    """

    def __init__(
        self,
        client: FacadeClient,
        *,
        consistency: Consistency = LINEARIZABLE,
        partitions_max: int = limits.OFFSETS_PAGE_MAX,
        reads_max: int = GROUPS_READ_MAX,
    ) -> None:
        self._client = client
        self._consistency = consistency
        self._partitions_max = partitions_max
        self._room = asyncio.Semaphore(reads_max)
        self._readings = 0
        self._places: list[GroupPlace] = []

    async def worst(self, count: int) -> list[GroupLag]:
        """Return the groups with the highest lag."""
        if self._readings % READINGS_PER_SEARCH == 0:
            self._places = [place async for place in self._found()]
        self._readings += 1
        lags = await asyncio.gather(*map(self._lag, self._places))
        known = [lag for lag in lags if lag is not None]
        return sorted(known, key=lambda each: -each.lag)[:count]

    async def _found(self) -> AsyncIterator[GroupPlace]:
        """Yield the first groups, as far as the user may see them."""
        streams = topics = groups = 0
        level = self._consistency
        try:
            async for stream in Streams(self._client).list(consistency=level):
                streams += 1
                if streams > STREAMS_READ_MAX:
                    return
                async for topic in Topics(self._client).list(stream.id, consistency=level):
                    topics += 1
                    if topics > TOPICS_READ_MAX:
                        return
                    async for group in self._groups_of(topic):
                        groups += 1
                        if groups > GROUPS_READ_MAX:
                            return
                        yield GroupPlace(stream, topic, group)
        except Refusal:
            return  # not permitted, or deleted meanwhile: the next search finds what there is then

    def _groups_of(
        self, topic: streams_pb2.Topic
    ) -> AsyncIterator[consumer_groups_pb2.ConsumerGroup]:
        request = groups_api.ListConsumerGroupsRequest(**topic_name(topic.stream_id, topic.id))
        return pages(self._client, request, lambda page: page.groups, self._consistency)

    async def _lag(self, place: GroupPlace) -> GroupLag | None:
        """Return the lag of a group; None if the group is gone, or may not be read."""
        group = place.group
        name = group_name(group.stream_id, group.topic_id, group.id)
        request = groups_api.FetchOffsetsRequest(**name, page_size=self._partitions_max)
        try:
            async with self._room:
                page = await self._client.call(request, consistency=self._consistency)
        except Refusal:
            return None
        lag = sum(each.lag for each in page.offsets if each.HasField("lag"))
        return GroupLag(place, lag, not page.next_page_token)
