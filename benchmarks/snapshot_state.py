"""The state that snapshots are measured with, and changes of a known part of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from google.protobuf.message import Message

from benchmarks.load_target import answered
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.streams.v1 import streams_pb2, streams_service_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Client

TOPICS_PER_REQUEST: Final = 2000
GROUPS_PER_REQUEST: Final = 1000
# Each password takes tens of milliseconds to hash.
USERS_PER_REQUEST: Final = 20
REQUESTS_AT_ONCE: Final = 4
# A request hashes passwords on two processors, which takes far less than this.
REQUEST_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the state."""

    streams: int
    topics_per_stream: int
    partitions_per_topic: int
    groups: int
    users: int

    @property
    def topics(self) -> int:
        """The number of topics in all streams."""
        return self.streams * self.topics_per_stream


FULL: Final = Size(25, 4000, 10, 10_000, 1_000)
QUICK: Final = Size(25, 400, 10, 1_000, 100)


class StateTopics:
    """All topics by number, stream by stream: neighbours in number are neighbours on disk."""

    def __init__(self, stream_ids: Sequence[int], size: Size) -> None:
        self.stream_ids = tuple(stream_ids)
        self.count = size.topics
        self._per_stream = size.topics_per_stream
        self._partitions = size.partitions_per_topic
        self._streams = [common_pb2.Identifier(id=number) for number in stream_ids]

    def create(self, number: int) -> Message:
        """Return the request that creates a topic."""
        return streams_service_pb2.CreateTopicRequest(
            stream=self._stream(number),
            name=self._name(number),
            partitions_count=self._partitions,
        )

    def update(self, number: int, expiry_us: int) -> Message:
        """Return a request that changes a topic if the expiry differs from the present one."""
        return streams_service_pb2.UpdateTopicRequest(
            stream=self._stream(number),
            topic=self._identifier(number),
            options=streams_pb2.TopicOptions(message_expiry_us=expiry_us),
        )

    def get(self, number: int) -> Message:
        """Return the request that reads a topic."""
        return streams_service_pb2.GetTopicRequest(
            stream=self._stream(number), topic=self._identifier(number)
        )

    def create_group(self, number: int) -> Message:
        """Return the request that creates a group of a topic."""
        return groups_pb2.CreateConsumerGroupRequest(
            stream=self._stream(number), topic=self._identifier(number), name=f"group-{number}"
        )

    def create_one_more(self, name: str) -> Message:
        """Return a request that creates a topic beside these."""
        return streams_service_pb2.CreateTopicRequest(stream=self._streams[-1], name=name)

    def _stream(self, number: int) -> common_pb2.Identifier:
        return self._streams[number // self._per_stream]

    def _name(self, number: int) -> str:
        return f"topic-{number:06}"

    def _identifier(self, number: int) -> common_pb2.Identifier:
        return common_pb2.Identifier(name=self._name(number))


async def build(client: Client, size: Size) -> StateTopics:
    """Fill an empty cluster. Raises Refusal."""
    made = await client.batch(
        streams_service_pb2.CreateStreamRequest(name=f"stream-{number:02}")
        for number in range(size.streams)
    )
    topics = StateTopics([response.stream_id for response in map(answered, made)], size)
    await _send(client, map(topics.create, range(topics.count)), TOPICS_PER_REQUEST)
    step = topics.count // size.groups
    groups = (topics.create_group(number * step) for number in range(size.groups))
    await _send(client, groups, GROUPS_PER_REQUEST)
    users = (
        users_pb2.CreateUserRequest(username=f"user-{number:05}", password=f"secret-{number}")
        for number in range(size.users)
    )
    await _send(client, users, USERS_PER_REQUEST)
    return topics


def chosen(topics: int, count: int, *, clustered: bool, chance: random.Random) -> Sequence[int]:
    """Return so many topics: neighbours, or drawn from all."""
    if clustered:
        first = chance.randrange(topics - count + 1)
        return range(first, first + count)
    return sorted(chance.sample(range(topics), count))


async def change(
    client: Client, topics: StateTopics, numbers: Iterable[int], expiry_us: int
) -> None:
    """Change these topics. Raises Refusal."""
    requests = (topics.update(number, expiry_us) for number in numbers)
    await _send(client, requests, TOPICS_PER_REQUEST)


async def _send(client: Client, requests: Iterable[Message], per_request: int) -> None:
    """Send all, several requests at a time."""
    source = iter(requests)

    async def sender() -> None:
        while batch := list(islice(source, per_request)):
            results: list[Any] = await client.batch(batch, timeout_s=REQUEST_TIMEOUT_S)
            for result in results:
                answered(result)

    await asyncio.gather(*(sender() for _ in range(REQUESTS_AT_ONCE)))
