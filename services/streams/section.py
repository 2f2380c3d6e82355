"""The section: every entity in its canonical encoding, and back.

Kinds and keys are those that streams/v1/streams.proto states. An encoding is canonical: equal
states yield equal bytes, since every field has one representation, fields are written in order of
number, and entities come in ascending (kind, key) order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from services.runtime.domain import Entity
from services.streams import grants, partitions
from services.streams.access import new_access
from services.streams.model import FIRST_ID, NEXT_STREAM_ID, NEXT_TOPIC_ID, State, Stream, Topic
from services.streams.options import to_message as options_message
from services.streams.partitions import PartitionRun
from services.streams.queries import add_ranges
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2

SECTION_VERSION: Final = 1
STREAM_KIND: Final = 1
TOPIC_KIND: Final = 2
ACCESS_KIND: Final = 3
COUNTERS_KIND: Final = 4
_ID_BYTES: Final = 8


def entities(state: State) -> Iterator[Entity]:
    """Yield (kind, key, canonical bytes) of every entity, ascending."""
    for stream_id in state.streams.sorted_keys():
        stream = state.streams.rows[stream_id]
        yield STREAM_KIND, _key(stream_id), encode_stream(stream)
    for topic_key in state.topics.sorted_keys():
        yield TOPIC_KIND, _key(*topic_key), encode_topic(state.topics.rows[topic_key])
    for user_id in state.access.sorted_keys():
        yield ACCESS_KIND, _key(user_id), encode_access(state, user_id)
    yield COUNTERS_KIND, b"", encode_counters(state)


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


def encode_access(state: State, user_id: int) -> bytes:
    """Return the canonical bytes of a user's AccessEntity."""
    access = state.access.rows[user_id]
    return streams_pb2.AccessEntity(
        user_id=user_id,
        minimum_credential_revision=access.minimum_credential_revision,
        permissions=access.permissions,
        active=access.active,
    ).SerializeToString(deterministic=True)


def encode_counters(state: State) -> bytes:
    """Return the canonical bytes of the StreamsCountersEntity."""
    return streams_pb2.StreamsCountersEntity(
        next_stream_id=state.counters.rows.get(NEXT_STREAM_ID, FIRST_ID),
        next_topic_id=state.counters.rows.get(NEXT_TOPIC_ID, FIRST_ID),
    ).SerializeToString(deterministic=True)


def load(state: State, loaded: Iterable[Entity]) -> None:
    """Fill an empty state with the entities of a section, indexes included.

    Raises ValueError for what a machine cannot have written: entities out of order, of an unknown
    kind, not in canonical encoding, or at odds with each other; and protobuf's DecodeError for
    bytes that are no entity at all.
    """
    previous: tuple[int, bytes] | None = None
    for kind, key, canonical in loaded:
        if kind not in _LOADERS:
            raise ValueError(f"a streams section has no entities of kind {kind}")
        if previous is not None and previous >= (kind, key):
            raise ValueError(f"the entity of kind {kind} and key {key.hex()} is out of order")
        previous = kind, key
        if _LOADERS[kind](state, canonical) != (key, canonical):
            raise ValueError(f"the entity of kind {kind} and key {key.hex()} is not canonical")
    if previous is None or previous[0] != COUNTERS_KIND:
        raise ValueError("a streams section ends with its counters, and this one has none")
    _check_whole(state)


def _check_whole(state: State) -> None:
    """Raise ValueError if entities are at odds with each other."""
    for stream_id in state.streams.rows:
        if stream_id >= state.counters.rows[NEXT_STREAM_ID]:
            raise ValueError(f"stream {stream_id} has an id that the next stream may get")
    if len(state.stream_ids) != len(state.streams):
        raise ValueError("two streams share a name")
    for topic in state.topics.rows.values():
        if topic.stream_id not in state.streams:
            raise ValueError(f"topic {topic.id} is in stream {topic.stream_id}, which is not there")
        if topic.id >= state.counters.rows[NEXT_TOPIC_ID]:
            raise ValueError(f"topic {topic.id} has an id that the next topic may get")
        if state.topics.find(topic.stream_id, topic.name) is not topic:
            raise ValueError(f"two topics of stream {topic.stream_id} are called {topic.name!r}")


def _load_stream(state: State, canonical: bytes) -> tuple[bytes, bytes]:
    entity = streams_pb2.StreamEntity.FromString(canonical)
    stream = Stream(
        entity.id,
        entity.name,
        entity.created_at,
        entity.created_revision,
        entity.modified_revision,
        entity.purge_generation,
    )
    state.streams.put(stream.id, stream)
    state.stream_ids.put(stream.name, stream.id)
    return _key(stream.id), encode_stream(stream)


def _load_topic(state: State, canonical: bytes) -> tuple[bytes, bytes]:
    entity = streams_pb2.TopicEntity.FromString(canonical)
    runs = tuple(PartitionRun(run.count, run.created_revision) for run in entity.partitions)
    topic = Topic(
        entity.id,
        entity.stream_id,
        entity.name,
        sum(run.length for run in runs),
        partitions.compact(runs, entity.created_revision),
        state.options_pool.created(entity.options),
        entity.created_at,
        entity.created_revision,
        entity.modified_revision,
        entity.purge_generation,
    )
    state.topics.put((topic.stream_id, topic.id), topic)
    return _key(topic.stream_id, topic.id), encode_topic(topic)


def _load_access(state: State, canonical: bytes) -> tuple[bytes, bytes]:
    entity = streams_pb2.AccessEntity.FromString(canonical)
    access = new_access(entity.user_id, entity.minimum_credential_revision)
    permissions = users_pb2.Permissions.FromString(entity.permissions)
    grants.put(state, access._replace(active=entity.active).with_permissions(permissions))
    return _key(entity.user_id), encode_access(state, entity.user_id)


def _load_counters(state: State, canonical: bytes) -> tuple[bytes, bytes]:
    entity = streams_pb2.StreamsCountersEntity.FromString(canonical)
    state.counters.put(NEXT_STREAM_ID, entity.next_stream_id)
    state.counters.put(NEXT_TOPIC_ID, entity.next_topic_id)
    return b"", encode_counters(state)


_LOADERS: Final[Mapping[int, Callable[[State, bytes], tuple[bytes, bytes]]]] = {
    STREAM_KIND: _load_stream,
    TOPIC_KIND: _load_topic,
    ACCESS_KIND: _load_access,
    COUNTERS_KIND: _load_counters,
}


def _key(*ids: int) -> bytes:
    return b"".join(id_.to_bytes(_ID_BYTES, "big") for id_ in ids)
