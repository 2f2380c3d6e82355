"""The layout of a document: one table, from which reading, writing and the JSON schema follow."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.names import check_name
from viewstamp.topology.model import (
    VERSION,
    DeclaredGroup,
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    PruneScope,
    StreamGrants,
    TopicGrants,
    Topology,
    UserGrants,
)
from viewstamp.topology.shapes import (
    ChoiceShape,
    DurationShape,
    Json,
    ListShape,
    NumberShape,
    RecordField,
    RecordShape,
    SizeShape,
    SwitchShape,
    TextShape,
)

# What fits into the fields of the API.
UINT64_MAX: Final = (1 << 64) - 1
SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def document_schema() -> dict[str, Json]:
    """Return the JSON schema of a document."""
    return {"$schema": SCHEMA_DIALECT, "title": "Viewstamp topology", **TOPOLOGY.schema()}


def _name(reason: Reason.ValueType, bytes_min: int, bytes_max: int) -> TextShape:
    check = partial(check_name, reason=reason, bytes_min=bytes_min, bytes_max=bytes_max)
    return TextShape(bytes_max, check)


def _permissions(message: Any) -> ListShape:
    """Return a list of the permissions for which a message has flags."""
    fields = message.DESCRIPTOR.fields
    return ListShape(ChoiceShape(tuple(one.name for one in fields if one.message_type is None)))


def _words(enum: Any) -> ChoiceShape:
    """Return the values of an enum as words, but the first one, which stands for no value."""
    unspecified, *names = enum.keys()
    prefix = unspecified.removesuffix("UNSPECIFIED")
    return ChoiceShape(tuple(name.removeprefix(prefix).lower() for name in names))


def _check_user(user: DeclaredUser) -> str:
    if user.username == limits.ROOT_USERNAME:
        return f"{limits.ROOT_USERNAME} belongs to no topology: leave it out"
    return ""


def _check_topic(topic: DeclaredTopic) -> str:
    size, segment = topic.max_topic_size_bytes, topic.segment_size_bytes
    if size and segment and size < segment:
        return "max_topic_size must be at least segment_size: a topic consists of whole segments"
    return ""


_BOUNDS: Final = (limits.NAME_BYTES_MIN, limits.NAME_BYTES_MAX)
_STREAM_NAME: Final = _name(Reason.REASON_INVALID_STREAM_NAME, *_BOUNDS)
_TOPIC_NAME: Final = _name(Reason.REASON_INVALID_TOPIC_NAME, *_BOUNDS)
_USERNAME: Final = _name(
    Reason.REASON_INVALID_USERNAME, limits.USERNAME_BYTES_MIN, limits.USERNAME_BYTES_MAX
)
_ABSENT: Final = "Left as it is if absent"

GROUP: Final = RecordShape(
    make=DeclaredGroup,
    help="A consumer group of a topic.",
    fields={
        "name": RecordField(
            _name(Reason.REASON_INVALID_GROUP_NAME, *_BOUNDS),
            "The name, unique on the topic.",
            is_required=True,
        ),
        "assignor": RecordField(
            _words(consumer_groups_pb2.Assignor),
            f"How partitions are divided. {_ABSENT}; uniform for a new group.",
        ),
        "member_timeout": RecordField(
            DurationShape(limits.MEMBER_TIMEOUT_MIN_US, limits.MEMBER_TIMEOUT_MAX_US, 1_000),
            f"A member that is silent for so long is removed. {_ABSENT}; 45s for a new group.",
            "member_timeout_ms",
        ),
        "offsets_retention": RecordField(
            DurationShape(
                limits.OFFSETS_RETENTION_MIN_US, limits.OFFSETS_RETENTION_MAX_US, 1_000, "forever"
            ),
            "Offsets are forgotten once the group has had neither members nor commits for so long. "
            f"{_ABSENT}; forever for a new group.",
            "offsets_retention_ms",
        ),
    },
)
TOPIC: Final = RecordShape(
    make=DeclaredTopic,
    help="A topic of a stream.",
    check=_check_topic,
    fields={
        "name": RecordField(_TOPIC_NAME, "The name, unique in the stream.", is_required=True),
        "partitions": RecordField(
            NumberShape(0, limits.PARTITIONS_PER_TOPIC_MAX),
            f"How many partitions. {_ABSENT}; 1 for a new topic.",
        ),
        "message_expiry": RecordField(
            DurationShape(1, UINT64_MAX, 1, "never"),
            f"How long messages are kept. {_ABSENT}; never for a new topic.",
            "message_expiry_us",
        ),
        "max_topic_size": RecordField(
            SizeShape(limits.SEGMENT_SIZE_BYTES_MIN, UINT64_MAX, endless="unlimited"),
            f"How much the topic may hold. {_ABSENT}; unlimited for a new topic.",
            "max_topic_size_bytes",
        ),
        "compression_algorithm": RecordField(
            _words(streams_pb2.CompressionAlgorithm),
            f"How messages are compressed. {_ABSENT}; none for a new topic.",
        ),
        "replication_factor": RecordField(
            NumberShape(1, limits.REPLICATION_FACTOR_MAX),
            f"How many copies of each message. {_ABSENT}; 1 for a new topic.",
        ),
        "segment_size": RecordField(
            SizeShape(
                limits.SEGMENT_SIZE_BYTES_MIN,
                limits.SEGMENT_SIZE_BYTES_MAX,
                limits.SEGMENT_SIZE_BYTES_MULTIPLE,
            ),
            "The size of a segment, fixed at creation: another one than that of an existing topic "
            "is an error. 1GiB for a new topic if absent.",
            "segment_size_bytes",
        ),
        "prune": RecordField(
            SwitchShape(), "Groups of this topic that are not listed may be deleted by --prune."
        ),
        "groups": RecordField(
            ListShape(GROUP, lambda group: group.name), "Consumer groups of the topic."
        ),
    },
)
STREAM: Final = RecordShape(
    make=DeclaredStream,
    help="A stream, which holds topics.",
    fields={
        "name": RecordField(_STREAM_NAME, "The name, unique.", is_required=True),
        "prune": RecordField(
            SwitchShape(),
            "Topics of this stream, and groups of its topics, that are not listed may be deleted "
            "by --prune.",
        ),
        "topics": RecordField(ListShape(TOPIC, lambda topic: topic.name), "Topics of the stream."),
    },
)
TOPIC_GRANTS: Final = RecordShape(
    make=TopicGrants,
    help="Permissions in one topic.",
    fields={
        "topic": RecordField(_TOPIC_NAME, "The name of the topic.", is_required=True),
        "permissions": RecordField(
            _permissions(users_pb2.TopicPermissions), "Permissions in this topic."
        ),
    },
)
STREAM_GRANTS: Final = RecordShape(
    make=StreamGrants,
    help="Permissions in one stream.",
    fields={
        "stream": RecordField(_STREAM_NAME, "The name of the stream.", is_required=True),
        "permissions": RecordField(
            _permissions(users_pb2.StreamPermissions),
            "Permissions in this stream and all of its topics.",
        ),
        "topics": RecordField(
            ListShape(TOPIC_GRANTS, lambda grants: grants.topic), "Permissions in single topics."
        ),
    },
)
USER: Final = RecordShape(
    make=DeclaredUser,
    help="A user. A password is never part of a document.",
    check=_check_user,
    fields={
        "username": RecordField(_USERNAME, "The name, unique.", is_required=True),
        "status": RecordField(
            _words(users_pb2.UserStatus),
            f"Whether the user may act. {_ABSENT}; active for a new user.",
        ),
        "permissions": RecordField(
            RecordShape(
                make=UserGrants,
                help="All that the user may do: what is not listed is taken away.",
                fields={
                    "global": RecordField(
                        _permissions(users_pb2.GlobalPermissions),
                        "Permissions everywhere.",
                        "everywhere",
                    ),
                    "streams": RecordField(
                        ListShape(STREAM_GRANTS, lambda grants: grants.stream),
                        "Permissions in single streams.",
                    ),
                },
            ),
            f"All that the user may do: what is not listed is taken away. {_ABSENT}.",
        ),
    },
)
PRUNE: Final = RecordShape(
    make=PruneScope,
    help="What this topology owns beyond what it lists; `*` stands for any characters.",
    fields={
        "streams": RecordField(
            ListShape(_STREAM_NAME),
            "Streams whose name matches and that are not listed may be deleted by --prune.",
        ),
        "users": RecordField(
            ListShape(_name(Reason.REASON_INVALID_USERNAME, 1, limits.USERNAME_BYTES_MAX)),
            "Users whose name matches and that are not listed may be deleted by --prune.",
        ),
    },
)
TOPOLOGY: Final = RecordShape(
    make=Topology,
    help="Streams and users as they should be. What is not listed is left alone.",
    fields={
        "version": RecordField(
            NumberShape(VERSION, VERSION), "The version of this format.", is_required=True
        ),
        "prune": RecordField(PRUNE, PRUNE.help),
        "streams": RecordField(ListShape(STREAM, lambda stream: stream.name), "Streams."),
        "users": RecordField(ListShape(USER, lambda user: user.username), "Users."),
    },
)
