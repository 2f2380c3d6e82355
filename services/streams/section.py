"""The section: every entity in its canonical encoding, and back.

Kinds and keys are those that streams/v1/streams.proto states. An encoding is canonical: equal
states yield equal bytes, since every field has one representation and fields are written in order
of number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from services.runtime import offset_rows, watermarks
from services.runtime.section import (
    EntityKind,
    Projected,
    Section,
    SectionError,
    id_key,
)
from services.streams import broker_entities, grants, partitions
from services.streams.access import Access, new_access
from services.streams.model import (
    FIRST_ID,
    NEXT_BROKER_ID,
    NEXT_STREAM_ID,
    NEXT_TOPIC_ID,
    Stream,
    StreamsState,
    Topic,
)
from services.streams.options import to_message as options_message
from services.streams.partitions import PartitionRun
from services.streams.queries import add_ranges
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.machine.freezing import WHOLE_TABLE_KEY

SECTION_VERSION: Final = 1
STREAM_KIND: Final = 1
TOPIC_KIND: Final = 2
ACCESS_KIND: Final = 3
COUNTERS_KIND: Final = 4
BROKER_KIND: Final = 6  # the watermarks are 5
PLACEMENTS_KIND: Final = 7

_TOPIC_KEY: Final = struct.Struct(">QQ")  # stream id, topic id
_TopicEntity: Final = streams_pb2.TopicEntity.FromString
# What Topic(...) does, at half the price.
_new_row: Final = tuple.__new__


def encode_stream(stream: Stream) -> bytes:
    """Return the canonical bytes of a StreamEntity."""
    return streams_pb2.StreamEntity(**stream._asdict()).SerializeToString(deterministic=True)


def encode_topic(topic: Topic) -> bytes:
    """Return the canonical bytes of a TopicEntity."""
    entity = streams_pb2.TopicEntity(
        id=topic.id,
        stream_id=topic.stream_id,
        name=topic.name,
        options=options_message(topic.options),
        created_at=topic.created_at,
        created_revision=topic.created_revision,
        modified_revision=topic.modified_revision,
        purge_generation=topic.purge_generation,
    )
    add_ranges(entity.partitions, topic)
    return entity.SerializeToString(deterministic=True)


def encode_access(access: Access) -> bytes:
    """Return the canonical bytes of a user's AccessEntity."""
    return streams_pb2.AccessEntity(
        user_id=access.user_id,
        minimum_credential_revision=access.minimum_credential_revision,
        permissions=access.permissions,
        active=access.active,
        minimum_token_revision=access.minimum_token_revision,
    ).SerializeToString(deterministic=True)


def encode_counters(counters: Mapping[str, int]) -> bytes:
    """Return the canonical bytes of the StreamsCountersEntity."""
    return streams_pb2.StreamsCountersEntity(
        next_stream_id=counters.get(NEXT_STREAM_ID, FIRST_ID),
        next_topic_id=counters.get(NEXT_TOPIC_ID, FIRST_ID),
        next_broker_id=counters.get(NEXT_BROKER_ID, 0),
    ).SerializeToString(deterministic=True)


def _load_stream(state: StreamsState, canonical: bytes) -> Projected:
    entity = streams_pb2.StreamEntity.FromString(canonical)
    stream = Stream._make(getattr(entity, name) for name in Stream._fields)
    if stream.name in state.stream_ids:
        raise SectionError(f"two streams share the name {stream.name!r}")
    state.streams.put(stream.id, stream)
    state.stream_ids.put(stream.name, stream.id)
    return id_key(stream.id), encode_stream(stream)


def _load_topic(state: StreamsState, canonical: bytes) -> Projected:
    """Insert a topic. With millions of topics, this decides how long a restart takes.

    So the row is not encoded again. It is made of all fields of the message, and of parts compared
    separately; so the message without unknown fields encodes to the same bytes as the row.
    """
    entity = _TopicEntity(canonical)
    id_, stream_id, name = entity.id, entity.stream_id, entity.name
    created = entity.created_revision
    options = state.options_pool.loaded(entity.options.SerializeToString(deterministic=True))
    if options is None:
        raise SectionError(f"topic {id_} has options that are not canonical, or not allowed")
    count, runs = _runs(entity.partitions, created)
    row = (
        id_,
        stream_id,
        name,
        count,
        runs,
        options,
        entity.created_at,
        created,
        entity.modified_revision,
        entity.purge_generation,
    )
    topics = state.topics
    children = topics.of_stream(stream_id)
    if name in children.by_name:
        raise SectionError(f"two topics of stream {stream_id} are called {name!r}")
    topics.add(children, _new_row(Topic, row))
    entity.DiscardUnknownFields()
    return _TOPIC_KEY.pack(stream_id, id_), entity.SerializeToString(deterministic=True)


def _load_access(state: StreamsState, canonical: bytes) -> Projected:
    entity = streams_pb2.AccessEntity.FromString(canonical)
    access = new_access(entity.user_id, entity.minimum_credential_revision)
    try:
        permissions = users_pb2.Permissions.FromString(entity.permissions)
    except DecodeError as error:
        raise SectionError(f"the grants of user {entity.user_id} do not decode") from error
    access = access._replace(
        active=entity.active, minimum_token_revision=entity.minimum_token_revision
    ).with_permissions(permissions)
    grants.put(state, access)
    return id_key(entity.user_id), encode_access(access)


def _load_counters(state: StreamsState, canonical: bytes) -> Projected:
    entity = streams_pb2.StreamsCountersEntity.FromString(canonical)
    state.counters.put(NEXT_STREAM_ID, entity.next_stream_id)
    state.counters.put(NEXT_TOPIC_ID, entity.next_topic_id)
    if entity.next_broker_id:
        state.counters.put(NEXT_BROKER_ID, entity.next_broker_id)
    return WHOLE_TABLE_KEY, encode_counters(state.counters.rows)


def _runs(ranges: Any, created_revision: int) -> tuple[int, partitions.Runs]:
    """Return how many partitions the ranges are, and the runs of the row. Raises SectionError."""
    if len(ranges) == 1:  # nearly always
        only = ranges[0]
        count: int = only.count
        if only.created_revision == created_revision and count and not only.first:
            return count, ()
    total, runs, last_revision = 0, [], None
    for piece in ranges:
        if piece.first != total or not piece.count or piece.created_revision == last_revision:
            raise SectionError("a topic's partitions are not canonical: holes, or runs cut in two")
        runs.append(PartitionRun(piece.count, piece.created_revision))
        total, last_revision = total + piece.count, piece.created_revision
    return total, partitions.compact(tuple(runs), created_revision)


def _check_whole(state: StreamsState) -> Iterable[None]:
    """Raise SectionError if entities contradict each other."""
    next_stream, next_topic = state.peek_id(NEXT_STREAM_ID), state.peek_id(NEXT_TOPIC_ID)
    for stream_id in state.streams.rows:
        if stream_id >= next_stream:
            raise SectionError(f"stream {stream_id} has an id that the next stream may get")
    for stream_id, children in state.topics.by_stream():
        if stream_id not in state.streams:
            raise SectionError(f"there are topics in stream {stream_id}, which is not there")
        if children.ids[-1] >= next_topic:
            raise SectionError(f"topic {children.ids[-1]} has an id that the next topic may get")
    for row in state.watermarks.rows.values():
        found = state.topics.rows.get((row.stream_id, row.topic_id))
        last = offset_rows.first_partition(row.number) + len(offset_rows.unpack(row.ends))
        if found is None or last > found.partitions_count:
            raise SectionError(
                f"there are watermarks of partition {last - 1} of topic {row.topic_id}, which is"
                " not there"
            )
    broker_entities.check(state)
    return ()


def _access_of_all(state: StreamsState) -> Iterator[Projected]:
    """Yield streams' knowledge of users: exactly its entities of that kind."""
    return ((key, canonical) for _, key, canonical in _ACCESS.entities(state))


_ACCESS: Final[EntityKind[StreamsState]] = EntityKind(
    ACCESS_KIND,
    table=lambda state: state.access,
    encode=encode_access,
    load=_load_access,
    encode_key=lambda user_id, access: id_key(user_id),
)
SECTION: Final[Section[StreamsState]] = Section(
    version=SECTION_VERSION,
    kinds=(
        EntityKind(
            STREAM_KIND,
            table=lambda state: state.streams,
            encode=encode_stream,
            load=_load_stream,
            encode_key=lambda stream_id, stream: id_key(stream_id),
        ),
        EntityKind(
            TOPIC_KIND,
            table=lambda state: state.topics,
            encode=encode_topic,
            load=_load_topic,
            encode_key=lambda key, topic: _TOPIC_KEY.pack(*key),
        ),
        _ACCESS,
        EntityKind(
            COUNTERS_KIND,
            table=lambda state: state.counters,
            encode=encode_counters,
            load=_load_counters,
            whole_table=True,
        ),
        watermarks.entity_kind(lambda state: state.watermarks),
        EntityKind(
            BROKER_KIND,
            table=lambda state: state.brokers,
            encode=broker_entities.encode_broker,
            load=broker_entities.load_broker,
            encode_key=lambda broker_id, broker: id_key(broker_id),
        ),
        EntityKind(
            PLACEMENTS_KIND,
            table=lambda state: state.placements,
            encode=broker_entities.encode_placements,
            load=broker_entities.load_placements,
            encode_key=lambda key, row: broker_entities.placements_key(row),
        ),
    ),
    check=_check_whole,
    projections={
        "access": _access_of_all,
        watermarks.PROJECTION: lambda state: watermarks.projected(state.watermarks),
    },
)
