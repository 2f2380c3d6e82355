"""`client.streams` and `client.topics`: streams, topics, partitions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Final, Unpack

from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as service_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.divided import in_parts
from viewstamp.client.identifiers import (
    Answer,
    Facade,
    Guards,
    identifier,
    microseconds,
    pages,
    partition_offsets,
    topic_name,
)

_NS_PER_US: Final = 1_000


class Streams(Facade):
    """Streams by id or name. The RPCs of StreamsService document the errors."""

    def create(
        self, name: str, *, validate_only: bool = False
    ) -> Answer[service_pb2.CreateStreamResponse]:
        """Create a stream."""
        request = service_pb2.CreateStreamRequest(name=name, validate_only=validate_only)
        return self._client.call(request)

    def update(
        self, stream: int | str, *, name: str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.UpdateStreamResponse]:
        """Rename a stream."""
        request = service_pb2.UpdateStreamRequest(stream=identifier(stream), name=name, **guards)
        return self._client.call(request)

    def delete(
        self, stream: int | str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.DeleteStreamResponse]:
        """Delete a stream with its topics, their groups and every grant on them."""
        request = service_pb2.DeleteStreamRequest(stream=identifier(stream), **guards)
        return self._client.call(request)

    def purge(
        self, stream: int | str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.PurgeStreamResponse]:
        """Tell the data plane to drop every message of a stream."""
        request = service_pb2.PurgeStreamRequest(stream=identifier(stream), **guards)
        return self._client.call(request)

    async def get(
        self, stream: int | str, *, consistency: Consistency = LINEARIZABLE
    ) -> streams_pb2.Stream:
        """Return a stream."""
        request = service_pb2.GetStreamRequest(stream=identifier(stream))
        response = await self._client.call(request, consistency=consistency)
        found: streams_pb2.Stream = response.stream
        return found

    def list(
        self, *, page_size: int = 0, consistency: Consistency = LINEARIZABLE
    ) -> AsyncIterator[streams_pb2.Stream]:
        """Iterate over all streams by ascending id."""
        request = service_pb2.ListStreamsRequest(page_size=page_size)
        return pages(self._client, request, lambda page: page.streams, consistency)


class Topics(Facade):
    """Topics of streams, both by id or name."""

    def create(
        self,
        stream: int | str,
        name: str,
        *,
        partitions_count: int = 1,
        options: streams_pb2.TopicOptions | None = None,
        validate_only: bool = False,
    ) -> Answer[service_pb2.CreateTopicResponse]:
        """Create a topic with 0 to 1000 partitions; absent options take their defaults."""
        request = service_pb2.CreateTopicRequest(
            stream=identifier(stream),
            name=name,
            partitions_count=partitions_count,
            options=options,
            validate_only=validate_only,
        )
        return self._client.call(request)

    def update(
        self,
        stream: int | str,
        topic: int | str,
        *,
        name: str | None = None,
        options: streams_pb2.TopicOptions | None = None,
        **guards: Unpack[Guards],
    ) -> Answer[service_pb2.UpdateTopicResponse]:
        """Rename a topic or change options; absent arguments change nothing."""
        request = service_pb2.UpdateTopicRequest(
            **topic_name(stream, topic), name=name, options=options, **guards
        )
        return self._client.call(request)

    def delete(
        self, stream: int | str, topic: int | str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.DeleteTopicResponse]:
        """Delete a topic with its groups and every grant on it."""
        request = service_pb2.DeleteTopicRequest(**topic_name(stream, topic), **guards)
        return self._client.call(request)

    def purge(
        self, stream: int | str, topic: int | str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.PurgeTopicResponse]:
        """Tell the data plane to drop every message of a topic."""
        request = service_pb2.PurgeTopicRequest(**topic_name(stream, topic), **guards)
        return self._client.call(request)

    def add_partitions(
        self, stream: int | str, topic: int | str, partitions_count: int, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.CreatePartitionsResponse]:
        """Add 1 to 1000 partitions at the end."""
        request = service_pb2.CreatePartitionsRequest(
            **topic_name(stream, topic), partitions_count=partitions_count, **guards
        )
        return self._client.call(request)

    def remove_partitions(
        self, stream: int | str, topic: int | str, partitions_count: int, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.DeletePartitionsResponse]:
        """Remove 1 to 1000 partitions from the end."""
        request = service_pb2.DeletePartitionsRequest(
            **topic_name(stream, topic), partitions_count=partitions_count, **guards
        )
        return self._client.call(request)

    async def partitions(
        self,
        stream: int | str,
        topic: int | str,
        *,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> Sequence[streams_pb2.PartitionRange]:
        """Return the partitions as runs that were created together, by ascending number.

        Reads all pages; it takes more than one for a topic whose partitions were created by more
        than 16,384 commands, or with a `page_size`.
        """
        request = service_pb2.ListPartitionsRequest(
            **topic_name(stream, topic), page_size=page_size
        )
        found = pages(self._client, request, lambda page: page.partitions, consistency)
        return [each async for each in found]

    async def report_partition_ends(
        self,
        stream: int | str,
        topic: int | str,
        end_offsets: Mapping[int, int],
        *,
        broker: common_pb2.BrokerStamp | None = None,
        reported_at: datetime | None = None,
        validate_only: bool = False,
    ) -> service_pb2.ReportPartitionEndsResponse:
        """Record the next offset to be written, by partition; a lower one moves no end.

        Name the topic by its id: a name may mean another topic by now. Of partitions that are
        placed only the leader can report: `broker` is its `BrokerSession.stamp`. All that lies
        below the ends was written by `reported_at`, by default now. A report that costs more than
        one command may is sent in parts, each with the deadline of a call; if it fails, those
        before have taken effect. Raises ValueError for a time without a time zone.
        """
        now_us = time.time_ns() // _NS_PER_US
        reported_at_us = now_us if reported_at is None else microseconds(reported_at)

        def send(part: Mapping[int, int]) -> Answer[service_pb2.ReportPartitionEndsResponse]:
            request = service_pb2.ReportPartitionEndsRequest(
                **topic_name(stream, topic),
                end_offsets=partition_offsets(part),
                broker=broker,
                reported_at_us=reported_at_us,
                validate_only=validate_only,
            )
            return self._client.call(request)

        return await in_parts(send, end_offsets)

    async def truncate_partitions(
        self,
        stream: int | str,
        topic: int | str,
        start_offsets: Mapping[int, int],
        *,
        broker: common_pb2.BrokerStamp | None = None,
        validate_only: bool = False,
    ) -> service_pb2.TruncatePartitionsResponse:
        """Record the first offset that remains, by partition; a lower one changes nothing.

        Name the topic by its id: a name may mean another topic by now. A broker that drops data
        gives its `BrokerSession.stamp`, and then has to lead what it names. What costs more than
        one command may is sent in parts, as by `report_partition_ends`.
        """

        def send(part: Mapping[int, int]) -> Answer[service_pb2.TruncatePartitionsResponse]:
            request = service_pb2.TruncatePartitionsRequest(
                **topic_name(stream, topic),
                start_offsets=partition_offsets(part),
                broker=broker,
                validate_only=validate_only,
            )
            return self._client.call(request)

        return await in_parts(send, start_offsets)

    def watermarks(
        self,
        stream: int | str,
        topic: int | str,
        *,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> AsyncIterator[streams_pb2.Watermarks]:
        """Iterate over where the data of partitions begins and ends, by ascending partition.

        Partitions of which nothing was reported are left out.
        """
        request = service_pb2.ListWatermarksRequest(
            **topic_name(stream, topic), page_size=page_size
        )
        return pages(self._client, request, lambda page: page.watermarks, consistency)

    async def get(
        self, stream: int | str, topic: int | str, *, consistency: Consistency = LINEARIZABLE
    ) -> streams_pb2.Topic:
        """Return a topic."""
        request = service_pb2.GetTopicRequest(**topic_name(stream, topic))
        response = await self._client.call(request, consistency=consistency)
        found: streams_pb2.Topic = response.topic
        return found

    def list(
        self,
        stream: int | str,
        *,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> AsyncIterator[streams_pb2.Topic]:
        """Iterate over a stream's topics by ascending id."""
        request = service_pb2.ListTopicsRequest(stream=identifier(stream), page_size=page_size)
        return pages(self._client, request, lambda page: page.topics, consistency)
