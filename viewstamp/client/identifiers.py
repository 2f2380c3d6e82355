"""Entities named by id or by name, offsets and times, and what the typed facades share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeAlias, TypedDict, TypeVar

from google.protobuf.message import Message

from viewstamp.api.common.v1 import common_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency

T = TypeVar("T")
# The result of a facade's method; await it for the response.
Answer: TypeAlias = Coroutine[Any, Any, T]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class FacadeClient(Protocol):
    """The part of a client that the facades call."""

    async def call(self, request: Message, *, consistency: Consistency = ...) -> Any:
        """Call the method of `request` and return its response."""


class Facade:
    """The typed methods of one domain, over the calls of a client."""

    def __init__(self, client: FacadeClient) -> None:
        self._client = client


class Guards(TypedDict, total=False):
    """Conditions that any change of an entity may have, by keyword.

    With `expected_revision` the change is refused unless the entity was last changed at that
    revision. With `validate_only` the answer is the same, and nothing changes.
    """

    expected_revision: int | None
    validate_only: bool


class TopicName(TypedDict):
    """The fields of a request that name a topic."""

    stream: common_pb2.Identifier
    topic: common_pb2.Identifier


class GroupName(TopicName):
    """The fields of a request that name a consumer group."""

    group: common_pb2.Identifier


def topic_name(stream: int | str, topic: int | str) -> TopicName:
    """Return the fields that name a topic."""
    return {"stream": identifier(stream), "topic": identifier(topic)}


def group_name(stream: int | str, topic: int | str, group: int | str) -> GroupName:
    """Return the fields that name a consumer group."""
    return {**topic_name(stream, topic), "group": identifier(group)}


def identifier(entity: int | str) -> common_pb2.Identifier:
    """Return an id (int) or a name (str) as the API takes it."""
    if isinstance(entity, str):
        return common_pb2.Identifier(name=entity)
    return common_pb2.Identifier(id=entity)


def partition_offsets(offsets: Mapping[int, int]) -> Sequence[common_pb2.PartitionOffset]:
    """Return offsets by partition as the API takes them."""
    return [
        common_pb2.PartitionOffset(partition=partition, offset=offset)
        for partition, offset in sorted(offsets.items())
    ]


def microseconds(time: datetime) -> int:
    """Return a time as the API takes it: microseconds since 1970, at least 1.

    Raises ValueError if it has no time zone, or lies before 1970.
    """
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone: give a datetime that has one, such as UTC")
    since = (time - _EPOCH) // _MICROSECOND
    if since < 1:
        raise ValueError(f"{time} is too early: give a time after 1970 began")
    return since


async def pages(
    client: FacadeClient,
    request: Any,
    items: Callable[[Any], Any],
    consistency: Consistency = LINEARIZABLE,
) -> AsyncIterator[Any]:
    """Yield the items of all pages that answer `request`, whose page token is still empty."""
    while True:
        page = await client.call(request, consistency=consistency)
        for item in items(page):
            yield item
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token
