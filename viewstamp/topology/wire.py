"""Entities of the API as values of a topology, and back: the only place that knows both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client.errors import ProtocolError
from viewstamp.client.identifiers import identifier
from viewstamp.topology.model import (
    DeclaredGroup,
    DeclaredTopic,
    DeclaredUser,
    Grant,
    UserGrants,
    nested,
)


def topic_of(topic: streams_pb2.Topic) -> DeclaredTopic:
    """Return a topic with everything declared, but without groups."""
    options = topic.options
    return DeclaredTopic(
        name=topic.name,
        partitions=topic.partitions_count,
        message_expiry_us=options.message_expiry_us,
        max_topic_size_bytes=options.max_topic_size_bytes,
        compression_algorithm=_word(
            streams_pb2.CompressionAlgorithm, options.compression_algorithm
        ),
        replication_factor=options.replication_factor,
        segment_size_bytes=options.segment_size_bytes,
    )


def group_of(group: consumer_groups_pb2.ConsumerGroup) -> DeclaredGroup:
    """Return a group with everything declared."""
    return DeclaredGroup(
        name=group.name,
        assignor=_word(consumer_groups_pb2.Assignor, group.assignor),
        member_timeout_ms=group.member_timeout_ms,
        offsets_retention_ms=group.offsets_retention_ms,
    )


def user_of(
    user: users_pb2.User, stream_names: Mapping[int, str], topic_names: Mapping[int, str]
) -> DeclaredUser:
    """Return a user with everything declared; what has no name for the caller has an id."""
    grants = (
        Grant(
            stream_names.get(stream, f"id {stream}") if stream else "",
            topic_names.get(topic, f"id {topic}") if topic else "",
            permission,
        )
        for stream, topic, permission in _grants(user.permissions)
    )
    return DeclaredUser(user.username, _word(users_pb2.UserStatus, user.status), nested(grants))


def granted_ids(permissions: users_pb2.Permissions) -> Iterator[tuple[int, int]]:
    """Yield the streams (with topic 0) and topics for which there are permissions, by id."""
    for stream in permissions.streams:
        yield stream.stream.id, 0
        for topic in stream.topics:
            yield stream.stream.id, topic.topic.id


def options_message(topic: DeclaredTopic, *, is_new: bool) -> streams_pb2.TopicOptions:
    """Return the options that a topic declares, as far as they may be given."""
    return streams_pb2.TopicOptions(
        message_expiry_us=topic.message_expiry_us,
        max_topic_size_bytes=topic.max_topic_size_bytes,
        compression_algorithm=number(streams_pb2.CompressionAlgorithm, topic.compression_algorithm),
        replication_factor=topic.replication_factor,
        segment_size_bytes=topic.segment_size_bytes if is_new else None,
    )


def permissions_message(grants: UserGrants) -> users_pb2.Permissions:
    """Return permissions by names."""
    message = users_pb2.Permissions()
    _set(getattr(message, "global"), grants.everywhere)
    for stream in grants.streams:
        of_stream = message.streams.add(stream=identifier(stream.stream))
        _set(of_stream, stream.permissions)
        for topic in stream.topics:
            _set(of_stream.topics.add(topic=identifier(topic.topic)), topic.permissions)
    return message


def number(enum: Any, word: str | None) -> Any:
    """Return the number of an enum's value that is given as a word; 0 for none."""
    prefix = enum.keys()[0].removesuffix("UNSPECIFIED")
    return 0 if word is None else enum.Value(f"{prefix}{word.upper()}")


def _word(enum: Any, value: int) -> str:
    unspecified: str = enum.keys()[0]
    try:
        name: str = enum.Name(value)
    except ValueError as error:
        raise ProtocolError(f"this build knows less than the cluster: {error}; upgrade it") from (
            error
        )
    return name.removeprefix(unspecified.removesuffix("UNSPECIFIED")).lower()


def _set(message: Any, permissions: tuple[str, ...]) -> None:
    for permission in permissions:
        setattr(message, permission, True)


def _grants(permissions: users_pb2.Permissions) -> Iterator[tuple[int, int, str]]:
    """Yield every grant with the ids of stream and topic, 0 for none."""
    for permission in _granted(getattr(permissions, "global")):
        yield 0, 0, permission
    for stream in permissions.streams:
        for permission in _granted(stream):
            yield stream.stream.id, 0, permission
        for topic in stream.topics:
            for permission in _granted(topic):
                yield stream.stream.id, topic.topic.id, permission


def _granted(message: Any) -> Iterator[str]:
    return (field.name for field, value in message.ListFields() if value is True)
