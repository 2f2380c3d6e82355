"""Permissions as immutable tuples, in one canonical form.

Flags are bits, in the order of the bool fields of the messages. Canonical: streams and topics by
ascending id, each once, and none without a flag.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.errors import Refusal


class TopicPermissions(NamedTuple):
    """What a user may do in one topic."""

    topic_id: int
    flags: int


class StreamPermissions(NamedTuple):
    """What a user may do in one stream."""

    stream_id: int
    flags: int
    topics: tuple[TopicPermissions, ...]


class Permissions(NamedTuple):
    """All that a user was granted."""

    global_flags: int
    streams: tuple[StreamPermissions, ...]


def _flag_names(message: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in message.fields if field.type == FieldDescriptor.TYPE_BOOL)


GLOBAL_FLAGS: Final = _flag_names(users_pb2.GlobalPermissions.DESCRIPTOR)
STREAM_FLAGS: Final = _flag_names(users_pb2.StreamPermissions.DESCRIPTOR)
TOPIC_FLAGS: Final = _flag_names(users_pb2.TopicPermissions.DESCRIPTOR)
GLOBAL_BITS: Final = {name: 1 << index for index, name in enumerate(GLOBAL_FLAGS)}

NO_PERMISSIONS: Final = Permissions(0, ())
ALL_PERMISSIONS: Final = Permissions((1 << len(GLOBAL_FLAGS)) - 1, ())


def canonical(global_flags: int, streams: Iterable[StreamPermissions]) -> Permissions:
    """Return permissions in canonical form: grants for the same stream or topic are united."""
    flags: dict[int, int] = {}
    topics: dict[int, dict[int, int]] = {}
    for stream in streams:
        flags[stream.stream_id] = flags.get(stream.stream_id, 0) | stream.flags
        united = topics.setdefault(stream.stream_id, {})
        for topic_id, topic_flags in stream.topics:
            united[topic_id] = united.get(topic_id, 0) | topic_flags
    every = (
        StreamPermissions(stream_id, flags[stream_id], _canonical_topics(topics[stream_id]))
        for stream_id in sorted(flags)
    )
    return Permissions(global_flags, tuple(s for s in every if s.flags or s.topics))


def resolved(message: users_pb2.Permissions, context: bytes) -> Permissions:
    """Return the permissions that a request names, with the ids that streams found.

    `context` is an encoded GrantsContext. Raises Refusal STREAM_NOT_FOUND, TOPIC_NOT_FOUND or
    MALFORMED_REQUEST.
    """
    found = effects_pb2.GrantsContext.FromString(context).streams
    streams = [
        _resolved_stream(named, at) for named, at in zip(message.streams, found, strict=True)
    ]
    return canonical(_flags_of(getattr(message, "global"), GLOBAL_FLAGS), streams)


def grants_count(message: users_pb2.Permissions) -> int:
    """Return how many streams and topics a request names."""
    return sum(1 + len(stream.topics) for stream in message.streams)


def has_stream(permissions: Permissions, stream_id: int) -> bool:
    """Return whether anything is granted in a stream."""
    streams = permissions.streams
    at = _place(streams, stream_id)
    return at < len(streams) and streams[at].stream_id == stream_id


def without_stream(permissions: Permissions, stream_id: int) -> Permissions:
    """Return the permissions without anything in a stream; the same object if nothing was."""
    if not has_stream(permissions, stream_id):
        return permissions
    streams = permissions.streams
    at = _place(streams, stream_id)
    return permissions._replace(streams=streams[:at] + streams[at + 1 :])


def without_topic(permissions: Permissions, stream_id: int, topic_id: int) -> Permissions:
    """Return the permissions without anything in a topic; the same object if nothing was."""
    if not has_stream(permissions, stream_id):
        return permissions
    streams = permissions.streams
    at = _place(streams, stream_id)
    stream = streams[at]
    topics = tuple(topic for topic in stream.topics if topic.topic_id != topic_id)
    if len(topics) == len(stream.topics):
        return permissions
    left = (stream._replace(topics=topics),) if topics or stream.flags else ()
    return permissions._replace(streams=streams[:at] + left + streams[at + 1 :])


def _place(streams: tuple[StreamPermissions, ...], stream_id: int) -> int:
    return bisect_left(streams, stream_id, key=lambda stream: stream.stream_id)


def to_message(permissions: Permissions) -> users_pb2.Permissions:
    """Return the message of the permissions; parts without any flag are absent."""
    message = users_pb2.Permissions()
    if permissions.global_flags:
        _set_flags(getattr(message, "global"), permissions.global_flags, GLOBAL_FLAGS)
    for stream in permissions.streams:
        stream_message = message.streams.add()
        stream_message.stream.id = stream.stream_id
        _set_flags(stream_message, stream.flags, STREAM_FLAGS)
        for topic in stream.topics:
            topic_message = stream_message.topics.add()
            topic_message.topic.id = topic.topic_id
            _set_flags(topic_message, topic.flags, TOPIC_FLAGS)
    return message


def from_message(message: users_pb2.Permissions) -> Permissions:
    """Return the permissions of a message that holds ids only."""
    streams = (
        StreamPermissions(
            stream.stream.id,
            _flags_of(stream, STREAM_FLAGS),
            tuple(
                TopicPermissions(topic.topic.id, _flags_of(topic, TOPIC_FLAGS))
                for topic in stream.topics
            ),
        )
        for stream in message.streams
    )
    return canonical(_flags_of(getattr(message, "global"), GLOBAL_FLAGS), streams)


def _resolved_stream(
    named: users_pb2.StreamPermissions, found: effects_pb2.ResolvedStream
) -> StreamPermissions:
    if not found.HasField("stream_id"):
        name = _key_of(named.stream, "stream")
        raise Refusal.of(Reason.REASON_STREAM_NOT_FOUND, "in_permissions", stream=name)
    topics = tuple(
        _resolved_topic(topic, at, found.stream_id)
        for topic, at in zip(named.topics, found.topics, strict=True)
    )
    return StreamPermissions(found.stream_id, _flags_of(named, STREAM_FLAGS), topics)


def _resolved_topic(
    named: users_pb2.TopicPermissions, found: effects_pb2.ResolvedTopic, stream_id: int
) -> TopicPermissions:
    if not found.HasField("topic_id"):
        name = _key_of(named.topic, "topic")
        raise Refusal.of(
            Reason.REASON_TOPIC_NOT_FOUND, "in_permissions", topic=name, stream=stream_id
        )
    return TopicPermissions(found.topic_id, _flags_of(named, TOPIC_FLAGS))


def _key_of(identifier: common_pb2.Identifier, what: str) -> int | str:
    """Return the id or the name that is set. Raises Refusal MALFORMED_REQUEST if neither is."""
    kind = identifier.WhichOneof("kind")
    if kind is None:
        raise Refusal.of(Reason.REASON_MALFORMED_REQUEST, "unnamed_in_permissions", field=what)
    return identifier.id if kind == "id" else identifier.name


def _canonical_topics(flags: dict[int, int]) -> tuple[TopicPermissions, ...]:
    return tuple(
        TopicPermissions(topic_id, flags[topic_id]) for topic_id in sorted(flags) if flags[topic_id]
    )


def _flags_of(message: Any, names: tuple[str, ...]) -> int:
    return sum(1 << index for index, name in enumerate(names) if getattr(message, name))


def _set_flags(message: Any, flags: int, names: tuple[str, ...]) -> None:
    for index, name in enumerate(names):
        if flags >> index & 1:
            setattr(message, name, True)
