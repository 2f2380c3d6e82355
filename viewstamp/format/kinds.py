"""Kinds of entities: the content of the sections, for tools that read snapshots.

The machines do not need this table; they know their own entities. Command line, export and analysis
read sections of all stages by it. The entity protos state kinds and keys, and the tests compare
this table with them.

A key consists of the named fields, in their order: an integer is 8 bytes big-endian, text is UTF-8
and always the last. So keys have the order of their fields. Counters have the empty key.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.cluster.v1 import cluster_service_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.sessions.v1 import sessions_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.format import FormatError

KEY_INTEGER_BYTES: Final = 8

MessageT = TypeVar("MessageT", bound=Message)


class KindInfo(NamedTuple):
    """One kind of one section."""

    name: str
    """Unique over all sections: the name of its table in an export."""
    message: type[Message]
    """The message that its canonical bytes encode."""
    key_fields: tuple[str, ...]
    """Fields that make the key; a dot leads into a message."""


# By stage number and kind number.
KINDS: Final[Mapping[tuple[int, int], KindInfo]] = {
    (routing_pb2.STAGE_SESSIONS, 1): KindInfo(
        "sessions", sessions_pb2.SessionEntity, ("session_id",)
    ),
    (routing_pb2.STAGE_SESSIONS, 2): KindInfo(
        "credential_minimums", sessions_pb2.MinimumEntity, ("user_id",)
    ),
    (routing_pb2.STAGE_SESSIONS, 3): KindInfo(
        "reply_windows", sessions_pb2.WindowEntity, ("session_id",)
    ),
    (routing_pb2.STAGE_SESSIONS, 4): KindInfo(
        "replies", sessions_pb2.ReplyEntity, ("session_id", "number")
    ),
    (routing_pb2.STAGE_USERS, 1): KindInfo("users", users_pb2.UserEntity, ("id",)),
    (routing_pb2.STAGE_USERS, 2): KindInfo(
        "personal_access_tokens", users_pb2.PersonalAccessTokenEntity, ("user_id", "name")
    ),
    (routing_pb2.STAGE_USERS, 3): KindInfo("users_counters", users_pb2.UsersCountersEntity, ()),
    (routing_pb2.STAGE_STREAMS, 1): KindInfo("streams", streams_pb2.StreamEntity, ("id",)),
    (routing_pb2.STAGE_STREAMS, 2): KindInfo(
        "topics", streams_pb2.TopicEntity, ("stream_id", "id")
    ),
    (routing_pb2.STAGE_STREAMS, 3): KindInfo("access", streams_pb2.AccessEntity, ("user_id",)),
    (routing_pb2.STAGE_STREAMS, 4): KindInfo(
        "streams_counters", streams_pb2.StreamsCountersEntity, ()
    ),
    (routing_pb2.STAGE_STREAMS, 5): KindInfo(
        "watermarks", streams_pb2.WatermarksEntity, ("topic_id", "first_partition")
    ),
    (routing_pb2.STAGE_STREAMS, 6): KindInfo("brokers", brokers_pb2.BrokerEntity, ("id",)),
    (routing_pb2.STAGE_STREAMS, 7): KindInfo(
        "placements", brokers_pb2.PlacementsEntity, ("topic_id", "first_partition")
    ),
    (routing_pb2.STAGE_CONSUMER_GROUPS, 1): KindInfo(
        "consumer_groups",
        consumer_groups_pb2.ConsumerGroupEntity,
        ("stream_id", "topic_id", "id"),
    ),
    (routing_pb2.STAGE_CONSUMER_GROUPS, 2): KindInfo(
        "consumer_group_members", consumer_groups_pb2.MemberEntity, ("group_id", "session_id")
    ),
    (routing_pb2.STAGE_CONSUMER_GROUPS, 3): KindInfo(
        "consumer_groups_counters", consumer_groups_pb2.ConsumerGroupsCountersEntity, ()
    ),
    (routing_pb2.STAGE_CONSUMER_GROUPS, 4): KindInfo(
        "consumer_group_chores",
        consumer_groups_pb2.ChoreEntity,
        ("kind", "first_id", "second_id"),
    ),
    (routing_pb2.STAGE_CONSUMER_GROUPS, 5): KindInfo(
        "consumer_group_watermarks",
        consumer_groups_pb2.KnownWatermarksEntity,
        ("topic_id", "first_partition"),
    ),
    (routing_pb2.STAGE_CONSUMER_GROUPS, 6): KindInfo(
        "consumer_group_offsets",
        consumer_groups_pb2.CommittedOffsetsEntity,
        ("group_id", "first_partition"),
    ),
    (routing_pb2.STAGE_CONSUMER_GROUPS, 7): KindInfo(
        "consumer_group_marks",
        consumer_groups_pb2.MarksEntity,
        ("topic_id", "first_partition"),
    ),
    (routing_pb2.STAGE_CATALOG, 1): KindInfo(
        "snapshots", snapshots_service_pb2.SnapshotEntity, ("snapshot.generation",)
    ),
    (routing_pb2.STAGE_CATALOG, 2): KindInfo(
        "catalog_counters", snapshots_service_pb2.CatalogCountersEntity, ()
    ),
    (routing_pb2.STAGE_CATALOG, 3): KindInfo(
        "feature_level", cluster_service_pb2.FeatureLevelEntity, ()
    ),
    (routing_pb2.STAGE_CATALOG, 4): KindInfo(
        "cluster_description", cluster_service_pb2.DescriptionEntity, ()
    ),
    (routing_pb2.STAGE_CATALOG, 5): KindInfo(
        "cluster_members", cluster_service_pb2.MembersEntity, ()
    ),
}


def decode_entity(stage: int, kind: int, canonical: bytes) -> Message:
    """Return the message of an entity's canonical bytes.

    Raises FormatError for a kind that is not in the table or bytes that do not decode.
    """
    info = KINDS.get((stage, kind))
    if info is None:
        known = ", ".join(str(other) for of, other in KINDS if of == stage) or "none"
        raise FormatError(f"stage {stage} has no entities of kind {kind}; known kinds: {known}")
    try:
        return info.message.FromString(canonical)
    except DecodeError as error:
        raise FormatError(f"an entity of {info.name} does not decode: {error}") from error


def key_of(info: KindInfo, message: Message) -> bytes:
    """Return the key under which an entity of this kind stands in its section."""
    return b"".join(_key_part(_field(message, path)) for path in info.key_fields)


def redacted(message: MessageT) -> MessageT:
    """Return a copy without any field marked debug_redact, at any depth.

    Fields that this build does not know are left out too: they may be secrets of a later version.
    """
    copy = type(message)()
    copy.CopyFrom(message)
    copy.DiscardUnknownFields()
    _redact(copy)
    return copy


def withheld(message: MessageT) -> MessageT:
    """Return a copy of only what `redacted` leaves out. Compare it, but never show it."""
    copy = type(message)()
    copy.CopyFrom(message)
    _withhold(copy)
    return copy


def _field(message: Message, path: str) -> int | str:
    value: Any = message
    for name in path.split("."):
        value = getattr(value, name)
    assert isinstance(value, int | str)
    return value


def _key_part(value: int | str) -> bytes:
    return value.to_bytes(KEY_INTEGER_BYTES, "big") if isinstance(value, int) else value.encode()


def _redact(message: Message) -> None:
    for name in _secret_fields(message.DESCRIPTOR):
        message.ClearField(name)
    for field in _message_fields(message.DESCRIPTOR):
        for child in _children(message, field):
            _redact(child)


def _withhold(message: Message) -> None:
    """Clear all that may be shown, and messages that are empty without it."""
    secret = _secret_fields(message.DESCRIPTOR)
    for field, _ in message.ListFields():
        if field.name in secret:
            continue
        children = [] if field.message_type is None else list(_children(message, field))
        for child in children:
            _withhold(child)
        left = [child for child in children if child.ByteSize()]
        message.ClearField(field.name)
        _put(message, field, left)


def _put(message: Message, field: FieldDescriptor, children: Sequence[Message]) -> None:
    if field.is_repeated and children:
        getattr(message, field.name).extend(children)
    elif children:
        getattr(message, field.name).CopyFrom(children[0])


@functools.cache
def _secret_fields(descriptor: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in descriptor.fields if field.GetOptions().debug_redact)


@functools.cache
def _message_fields(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    return tuple(field for field in descriptor.fields if field.message_type is not None)


def _children(message: Message, field: FieldDescriptor) -> Iterator[Message]:
    value = getattr(message, field.name)
    if field.is_repeated:
        yield from value
    elif message.HasField(field.name):
        yield value
