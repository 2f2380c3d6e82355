"""What an informer begins with: all entities of some types, from the list calls of the API.

The pages are of several revisions, of `first_revision` to `last_revision`. That is no fault: an
informer watches from behind the first one, and applies every change up to the last one and beyond.
Each change has the whole entity. So what changed in between is as its last change says, whether a
page had it before, after or not at all. What did not change in between was the same for all pages,
and the page that had to have it has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as brokers_api
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.client.entity_cache import EntityKey, EntityTables, full_name_of
from viewstamp.client.errors import ProtocolError
from viewstamp.client.identifiers import FacadeClient, identifier
from viewstamp.client.watching import DERIVED_FIELDS
from viewstamp.errors import Refusal
from viewstamp.limits import PAGE_SIZE_MAX, PARTITIONS_PER_OFFSETS_ROW

T = TypeVar("T")
# Calls under way at a time; the client packs them into few messages.
LISTED_TOGETHER_MAX: Final = 64
# A parent that was deleted after its page: the watch brings what became of what was in it.
_GONE: Final = frozenset(
    {
        Reason.REASON_STREAM_NOT_FOUND,
        Reason.REASON_TOPIC_NOT_FOUND,
        Reason.REASON_USER_NOT_FOUND,
    }
)


@dataclass(frozen=True, slots=True)
class ListedType:
    """A type of entities that an informer can hold."""

    message: type[Message]
    key: Callable[[Any], EntityKey]
    entities: Callable[[EntityLists], Awaitable[list[Any]]]
    # Whether it is a stream, or is in one; and whether it is a topic, or is in one.
    in_stream: bool = True
    in_topic: bool = True


class EntityLists:
    """Lists the entities of a cluster, of a stream, or of a topic; filters are ids."""

    def __init__(
        self,
        client: FacadeClient,
        stream: common_pb2.Identifier | None,
        topic: common_pb2.Identifier | None,
    ) -> None:
        self.first_revision = self.last_revision = 0
        self.cluster_id = b""
        self._client = client
        self._stream = stream
        self._topic = topic

    async def tables(self, types: Sequence[ListedType]) -> EntityTables:
        """Return all entities by type, as changes have them. Raises Refusal, ClientError."""
        found: EntityTables = {}
        for each in types:
            name = full_name_of(each.message)
            entities = await each.entities(self)
            for entity in entities:
                for derived in DERIVED_FIELDS.get(name, ()):
                    entity.ClearField(derived)
            found[name] = {each.key(entity): entity for entity in entities}
        return found

    async def streams(self) -> list[Any]:
        """Return the streams. Raises Refusal, ClientError."""
        if self._stream is not None:
            asked = streams_api.GetStreamRequest(stream=self._stream)
            return [(await self._answer(asked)).stream]
        return await self._pages(streams_api.ListStreamsRequest(), "streams")

    async def topics(self) -> list[Any]:
        """Return the topics. Raises Refusal, ClientError."""
        if self._topic is not None:
            asked = streams_api.GetTopicRequest(stream=self._stream, topic=self._topic)
            return [(await self._answer(asked)).topic]
        if self._stream is not None:
            return await self._topics_of(self._stream)
        ids = [identifier(stream.id) for stream in await self.streams()]
        return _joined(await _each(ids, self._topics_of))

    async def groups(self) -> list[Any]:
        """Return the consumer groups. Raises Refusal, ClientError."""
        requests = [
            groups_api.ListConsumerGroupsRequest(
                stream=identifier(topic.stream_id), topic=identifier(topic.id)
            )
            for topic in await self.topics()
        ]
        return _joined(await _each(requests, lambda asked: self._pages(asked, "groups")))

    async def brokers(self) -> list[Any]:
        """Return the brokers. Raises Refusal, ClientError."""
        return await self._pages(brokers_api.ListBrokersRequest(), "brokers")

    async def placements(self) -> list[Any]:
        """Return who has the partitions, a row at a time. Raises Refusal, ClientError.

        Two pages, and so two revisions, may share a row. A change in between has all of the row.
        """
        return _joined(await _each(await self.topics(), self._placements_of))

    async def users(self) -> list[Any]:
        """Return the users with their permissions. Raises Refusal, ClientError."""
        listed = await self._pages(users_api.ListUsersRequest(), "users")
        requests = [users_api.GetUserRequest(user=identifier(user.id)) for user in listed]
        return [answer.user for answer in await _each(requests, self._answer)]

    async def _placements_of(self, topic: streams_pb2.Topic) -> list[Any]:
        request = brokers_api.ListPlacementsRequest(
            stream=identifier(topic.stream_id),
            topic=identifier(topic.id),
            page_size=PAGE_SIZE_MAX,
        )
        placements = await self._pages(request, "placements")
        for each in placements:
            # They follow from the rest and from the brokers.
            each.ClearField("leader")
            each.ClearField("leader_epoch")
        return [
            brokers_pb2.Placements(stream_id=topic.stream_id, topic_id=topic.id, placements=row)
            for _, row in groupby(placements, _row_number)
        ]

    async def _topics_of(self, stream: common_pb2.Identifier) -> list[Any]:
        return await self._pages(streams_api.ListTopicsRequest(stream=stream), "topics")

    async def _pages(self, request: Any, name: str) -> list[Any]:
        return [each async for page in self._paged(request) for each in getattr(page, name)]

    async def _paged(self, request: Any) -> AsyncIterator[Any]:
        while True:
            page = await self._answer(request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def _answer(self, request: Message) -> Any:
        answer = await self._client.call(request)
        header = answer.header
        if self.cluster_id not in (b"", header.cluster_id):
            raise ProtocolError("another cluster answers than the one that answered before")
        self.cluster_id = header.cluster_id
        # The first call was answered before any other one began, so no other revision is lower.
        self.first_revision = self.first_revision or header.revision
        self.last_revision = max(self.last_revision, header.revision)
        return answer


# By full name.
LISTED_TYPES: Final = MappingProxyType(
    {
        full_name_of(each.message): each
        for each in (
            ListedType(
                message=streams_pb2.Stream,
                key=lambda stream: (stream.id,),
                entities=EntityLists.streams,
                in_topic=False,
            ),
            ListedType(
                message=streams_pb2.Topic,
                key=lambda topic: (topic.stream_id, topic.id),
                entities=EntityLists.topics,
            ),
            ListedType(
                message=consumer_groups_pb2.ConsumerGroup,
                key=lambda group: (group.id,),
                entities=EntityLists.groups,
            ),
            ListedType(
                message=brokers_pb2.Broker,
                key=lambda broker: (broker.id,),
                entities=EntityLists.brokers,
                in_stream=False,
                in_topic=False,
            ),
            ListedType(
                message=brokers_pb2.Placements,
                key=lambda row: (row.stream_id, row.topic_id, _row_number(row.placements[0])),
                entities=EntityLists.placements,
            ),
            ListedType(
                message=users_pb2.User,
                key=lambda user: (user.id,),
                entities=EntityLists.users,
                in_stream=False,
                in_topic=False,
            ),
        )
    }
)


def _row_number(placement: brokers_pb2.Placement) -> int:
    return placement.partition // PARTITIONS_PER_OFFSETS_ROW


async def _each(items: Sequence[Any], asked: Callable[[Any], Awaitable[T]]) -> list[T]:
    """Return the answers for all items, a few at a time, without those that are gone."""
    found: list[T] = []
    for start in range(0, len(items), LISTED_TOGETHER_MAX):
        together = items[start : start + LISTED_TOGETHER_MAX]
        answers = await asyncio.gather(*(_unless_gone(asked(item)) for item in together))
        found += _joined(answers)
    return found


async def _unless_gone(call: Awaitable[T]) -> list[T]:
    try:
        return [await call]
    except Refusal as refusal:
        if refusal.reason not in _GONE:
            raise
        return []


def _joined(lists: Sequence[list[Any]]) -> list[Any]:
    return [each for found in lists for each in found]
