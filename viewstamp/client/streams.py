"""`client.streams` and `client.topics`: streams, topics, partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as service_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.identifiers import FacadeClient, identifier, pages


class Streams:
    """Streams by id or name. Errors are those of the RPCs of StreamsService."""

    def __init__(self, client: FacadeClient) -> None:
        self._client = client

    async def create(
        self, name: str, *, validate_only: bool = False
    ) -> service_pb2.CreateStreamResponse:
        """Create a stream."""
        request = service_pb2.CreateStreamRequest(name=name, validate_only=validate_only)
        response: service_pb2.CreateStreamResponse = await self._client.call(request)
        return response

    async def update(
        self,
        stream: int | str,
        *,
        name: str,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.UpdateStreamResponse:
        """Rename a stream."""
        response: service_pb2.UpdateStreamResponse = await self._client.call(
            service_pb2.UpdateStreamRequest(
                stream=identifier(stream),
                name=name,
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def delete(
        self,
        stream: int | str,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.DeleteStreamResponse:
        """Delete a stream with its topics, their groups and every grant on them."""
        response: service_pb2.DeleteStreamResponse = await self._client.call(
            service_pb2.DeleteStreamRequest(
                stream=identifier(stream),
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def purge(
        self,
        stream: int | str,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.PurgeStreamResponse:
        """Tell the data plane to drop every message of a stream."""
        response: service_pb2.PurgeStreamResponse = await self._client.call(
            service_pb2.PurgeStreamRequest(
                stream=identifier(stream),
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

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
        return pages(
            lambda token: self._client.call(
                service_pb2.ListStreamsRequest(page_size=page_size, page_token=token),
                consistency=consistency,
            ),
            lambda page: page.streams,
        )


class Topics:
    """Topics of streams, both by id or name."""

    def __init__(self, client: FacadeClient) -> None:
        self._client = client

    async def create(
        self,
        stream: int | str,
        name: str,
        *,
        partitions_count: int = 1,
        options: streams_pb2.TopicOptions | None = None,
        validate_only: bool = False,
    ) -> service_pb2.CreateTopicResponse:
        """Create a topic with 0 to 1000 partitions; absent options take their defaults."""
        response: service_pb2.CreateTopicResponse = await self._client.call(
            service_pb2.CreateTopicRequest(
                stream=identifier(stream),
                name=name,
                partitions_count=partitions_count,
                options=options,
                validate_only=validate_only,
            )
        )
        return response

    async def update(
        self,
        stream: int | str,
        topic: int | str,
        *,
        name: str | None = None,
        options: streams_pb2.TopicOptions | None = None,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.UpdateTopicResponse:
        """Rename a topic or change options; what is absent stays."""
        response: service_pb2.UpdateTopicResponse = await self._client.call(
            service_pb2.UpdateTopicRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                name=name,
                options=options,
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def delete(
        self,
        stream: int | str,
        topic: int | str,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.DeleteTopicResponse:
        """Delete a topic with its groups and every grant on it."""
        response: service_pb2.DeleteTopicResponse = await self._client.call(
            service_pb2.DeleteTopicRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def purge(
        self,
        stream: int | str,
        topic: int | str,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.PurgeTopicResponse:
        """Tell the data plane to drop every message of a topic."""
        response: service_pb2.PurgeTopicResponse = await self._client.call(
            service_pb2.PurgeTopicRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def add_partitions(
        self,
        stream: int | str,
        topic: int | str,
        partitions_count: int,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.CreatePartitionsResponse:
        """Add 1 to 1000 partitions at the end."""
        response: service_pb2.CreatePartitionsResponse = await self._client.call(
            service_pb2.CreatePartitionsRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                partitions_count=partitions_count,
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def remove_partitions(
        self,
        stream: int | str,
        topic: int | str,
        partitions_count: int,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.DeletePartitionsResponse:
        """Remove 1 to 1000 partitions from the end."""
        response: service_pb2.DeletePartitionsResponse = await self._client.call(
            service_pb2.DeletePartitionsRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                partitions_count=partitions_count,
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def partitions(
        self, stream: int | str, topic: int | str, *, consistency: Consistency = LINEARIZABLE
    ) -> Sequence[streams_pb2.PartitionRange]:
        """Return the partitions as runs that were created together, by ascending number."""
        request = service_pb2.ListPartitionsRequest(
            stream=identifier(stream), topic=identifier(topic)
        )
        response = await self._client.call(request, consistency=consistency)
        return tuple(response.partitions)

    async def get(
        self, stream: int | str, topic: int | str, *, consistency: Consistency = LINEARIZABLE
    ) -> streams_pb2.Topic:
        """Return a topic."""
        request = service_pb2.GetTopicRequest(stream=identifier(stream), topic=identifier(topic))
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
        return pages(
            lambda token: self._client.call(
                service_pb2.ListTopicsRequest(
                    stream=identifier(stream), page_size=page_size, page_token=token
                ),
                consistency=consistency,
            ),
            lambda page: page.topics,
        )
