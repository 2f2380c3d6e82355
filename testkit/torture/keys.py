"""What transactions write and read: registers and lists in every domain, as requests of the API.

A register is an entity whose name changes: each write renames it to a name that was never used. A
list is a topic to which consumer groups are added. Reads tell the revision that made each version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from testkit.oracles.transactions import (
    ReadList,
    ReadVersion,
    Transaction,
    TransactionOutcome,
    Written,
)
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import ConsumerGroup
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.streams.v1.streams_pb2 import Stream, Topic
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.api.users.v1.users_pb2 import User
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client import Client
from viewstamp.client.identifiers import identifier
from viewstamp.client.watching import decoded
from viewstamp.limits import PAGE_SIZE_MAX

USERS: Final = 3
STREAMS: Final = 3
TOPICS: Final = 3
LISTS: Final = 3
# What one caller adds to a list. A read of a list must fit on one page and keeps what it saw.
APPENDS_MAX: Final = 80
# Nobody logs in as these users.
PASSWORD: Final = "of nobody"
USER: Final = "user"
STREAM: Final = "stream"
TOPIC: Final = "topic"
LIST: Final = "groups of topic"


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """A register or a list: its kind, and the ids that name it."""

    kind: str
    ids: tuple[int, ...]

    @property
    def key(self) -> str:
        """Its name in a history."""
        return f"{self.kind} {'/'.join(map(str, self.ids))}"


@dataclass(frozen=True, slots=True)
class Calls:
    """How places of a kind are written and read."""

    write: Callable[[KeyPlace, str], Any]
    read: Callable[[KeyPlace], Message]
    seen: Callable[[KeyPlace, Any], ReadVersion | ReadList]


class ShownPlace(NamedTuple):
    """How a change tells of a place: its kind, the change's ids, the entity's field of the name."""

    kind: str
    ids: tuple[str, ...]
    name: str


def write_of(place: KeyPlace, version: str, expected_revision: int | None = None) -> Message:
    """Return the request that writes a version, if the last one is of the expected revision."""
    request: Message = CALLS[place.kind].write(place, version)
    if expected_revision is not None:
        assert place.kind != LIST, "a list has no revision of its own"
        request.expected_revision = expected_revision  # type: ignore[attr-defined]
    return request


def read_of(place: KeyPlace) -> Message:
    """Return the request that reads a place."""
    return CALLS[place.kind].read(place)


def seen_in(
    pairs: Iterable[tuple[KeyPlace, Any]],
) -> tuple[tuple[ReadVersion, ...], tuple[ReadList, ...]]:
    """Return what the answers to the reads of some places show."""
    found = [CALLS[place.kind].seen(place, answer) for place, answer in pairs]
    return (
        tuple(one for one in found if isinstance(one, ReadVersion)),
        tuple(one for one in found if isinstance(one, ReadList)),
    )


def shown_by(change: watch_pb2.Change) -> Written | None:
    """Return the version that a watcher was shown of a place; None of what is no place's kind."""
    found = SHOWN.get(change.entity_type)
    if found is None or change.kind == watch_pb2.CHANGE_KIND_DELETED:
        return None
    place = KeyPlace(found.kind, tuple(getattr(change, name) for name in found.ids))
    return Written(place.key, getattr(decoded(change), found.name))


async def create_places(client: Client, prefix: str) -> tuple[list[KeyPlace], list[Transaction]]:
    """Create entities for a round; return them, and the transactions that made them."""
    made: list[tuple[KeyPlace, Transaction]] = []
    for number in range(USERS):
        name = f"{prefix}-user-{number}"
        created = await client.users.create(name, PASSWORD)
        made.append(_made(KeyPlace(USER, (created.user_id,)), name, created.header.revision))
    for number in range(STREAMS):
        name = f"{prefix}-stream-{number}"
        new = await client.streams.create(name)
        made.append(_made(KeyPlace(STREAM, (new.stream_id,)), name, new.header.revision))
    streams = [place.ids[0] for place, _ in made if place.kind == STREAM]
    for number in range(TOPICS + LISTS):
        name, stream_id = f"{prefix}-topic-{number}", streams[number % STREAMS]
        topic = await client.topics.create(stream_id, name, partitions_count=1)
        kind = TOPIC if number < TOPICS else LIST
        place = KeyPlace(kind, (stream_id, topic.topic_id))
        made.append(_made(place, name, topic.header.revision))
    # A list begins without a version: the name of its topic is no version of it.
    return [place for place, _ in made], [each for place, each in made if place.kind != LIST]


def _made(place: KeyPlace, name: str, revision: int) -> tuple[KeyPlace, Transaction]:
    """Return an entity and its creation. All are over before the round begins, at time 0."""
    creation = Transaction(
        name=f"creation of {place.key}",
        called_at=0,
        returned_at=0,
        outcome=TransactionOutcome.COMMITTED,
        revision=revision,
        writes=(Written(place.key, name),),
    )
    return place, creation


def _register(entity: str, name: str) -> Callable[[KeyPlace, Any], ReadVersion]:
    def seen(place: KeyPlace, answer: Any) -> ReadVersion:
        found = getattr(answer, entity)
        return ReadVersion(place.key, getattr(found, name), found.modified_revision)

    return seen


def _groups_seen(place: KeyPlace, answer: Any) -> ReadList:
    groups = ((group.name, group.created_revision) for group in answer.groups)
    return ReadList(place.key, tuple(groups))


def _of_topic(place: KeyPlace) -> dict[str, Any]:
    stream_id, topic_id = place.ids
    return {"stream": identifier(stream_id), "topic": identifier(topic_id)}


CALLS: Final[Mapping[str, Calls]] = MappingProxyType(
    {
        USER: Calls(
            lambda p, v: users_pb2.UpdateUserRequest(user=identifier(p.ids[0]), username=v),
            lambda p: users_pb2.GetUserRequest(user=identifier(p.ids[0])),
            _register("user", "username"),
        ),
        STREAM: Calls(
            lambda p, v: streams_pb2.UpdateStreamRequest(stream=identifier(p.ids[0]), name=v),
            lambda p: streams_pb2.GetStreamRequest(stream=identifier(p.ids[0])),
            _register("stream", "name"),
        ),
        TOPIC: Calls(
            lambda p, v: streams_pb2.UpdateTopicRequest(**_of_topic(p), name=v),
            lambda p: streams_pb2.GetTopicRequest(**_of_topic(p)),
            _register("topic", "name"),
        ),
        LIST: Calls(
            lambda p, v: groups_pb2.CreateConsumerGroupRequest(**_of_topic(p), name=v),
            lambda p: groups_pb2.ListConsumerGroupsRequest(**_of_topic(p), page_size=PAGE_SIZE_MAX),
            _groups_seen,
        ),
    }
)
SHOWN: Final[Mapping[str, ShownPlace]] = MappingProxyType(
    {
        User.DESCRIPTOR.full_name: ShownPlace(USER, ("user_id",), "username"),
        Stream.DESCRIPTOR.full_name: ShownPlace(STREAM, ("stream_id",), "name"),
        Topic.DESCRIPTOR.full_name: ShownPlace(TOPIC, ("stream_id", "topic_id"), "name"),
        ConsumerGroup.DESCRIPTOR.full_name: ShownPlace(LIST, ("stream_id", "topic_id"), "name"),
    }
)
