"""The commands that the load sends, as small values that fit into a line of JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from google.protobuf.message import Message

from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_pb2, users_service_pb2
from viewstamp.client.identifiers import identifier
from viewstamp.limits import MEMBER_TIMEOUT_MAX_US

# How long groups of the load keep members that give no signs of life: sessions of the load give
# none, and a loaded machine may take minutes until it looks for everything that they joined.
PATIENCE_MS: Final = MEMBER_TIMEOUT_MAX_US // 1_000


class CommandKind(StrEnum):
    """The kinds of commands."""

    CREATE_STREAM = "create_stream"
    DELETE_STREAM = "delete_stream"
    CREATE_TOPIC = "create_topic"
    DELETE_TOPIC = "delete_topic"
    CREATE_GROUP = "create_group"
    DELETE_GROUP = "delete_group"
    JOIN = "join"
    LEAVE = "leave"
    CREATE_USER = "create_user"
    DELETE_USER = "delete_user"
    GRANT = "grant"
    CREATE_TOKEN = "create_token"
    DELETE_TOKEN = "delete_token"


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `name` is a user's or a token's; GRANT gives user `name` read of `stream`."""

    kind: CommandKind
    stream: str = ""
    topic: str = ""
    group: str = ""
    name: str = ""
    partitions: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the command for a record, without what is empty."""
        named = {key: value for key, value in asdict(self).items() if value}
        return {**named, "kind": str(self.kind)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Command:
        """Return the command of a record. Raises ValueError, TypeError."""
        return cls(**{**fields, "kind": CommandKind(fields["kind"])})


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The outcome of a command: the reason of its refusal ("" for none), the id created (or 0)."""

    reason: str = ""
    entity_id: int = 0


# The field of a response that holds the new id.
ID_FIELDS: Final[Mapping[CommandKind, str]] = {
    CommandKind.CREATE_STREAM: "stream_id",
    CommandKind.CREATE_TOPIC: "topic_id",
    CommandKind.CREATE_GROUP: "group_id",
    CommandKind.CREATE_USER: "user_id",
}


def request_of(command: Command) -> Message:
    """Return the command as the API takes it."""
    return _BUILDERS[command.kind](command)


def _topic(command: Command) -> dict[str, Any]:
    return {"stream": identifier(command.stream), "topic": identifier(command.topic)}


def _group(command: Command) -> dict[str, Any]:
    return {**_topic(command), "group": identifier(command.group)}


def _create_topic(command: Command) -> Message:
    return streams_pb2.CreateTopicRequest(
        stream=identifier(command.stream), name=command.topic, partitions_count=command.partitions
    )


def _create_group(command: Command) -> Message:
    return groups_pb2.CreateConsumerGroupRequest(
        **_topic(command), name=command.group, member_timeout_ms=PATIENCE_MS
    )


def _grant(command: Command) -> Message:
    grant = users_pb2.StreamPermissions(stream=identifier(command.stream), read_stream=True)
    return users_service_pb2.UpdatePermissionsRequest(
        user=identifier(command.name), permissions=users_pb2.Permissions(streams=[grant])
    )


def _create_user(command: Command) -> Message:
    # Nobody logs in as these users: the password only has to be hashed.
    return users_service_pb2.CreateUserRequest(username=command.name, password=f"of {command.name}")


_BUILDERS: Final[Mapping[CommandKind, Callable[[Command], Message]]] = {
    CommandKind.CREATE_STREAM: lambda c: streams_pb2.CreateStreamRequest(name=c.stream),
    CommandKind.DELETE_STREAM: lambda c: streams_pb2.DeleteStreamRequest(
        stream=identifier(c.stream)
    ),
    CommandKind.CREATE_TOPIC: _create_topic,
    CommandKind.DELETE_TOPIC: lambda c: streams_pb2.DeleteTopicRequest(**_topic(c)),
    CommandKind.CREATE_GROUP: _create_group,
    CommandKind.DELETE_GROUP: lambda c: groups_pb2.DeleteConsumerGroupRequest(**_group(c)),
    CommandKind.JOIN: lambda c: groups_pb2.JoinConsumerGroupRequest(**_group(c)),
    CommandKind.LEAVE: lambda c: groups_pb2.LeaveConsumerGroupRequest(**_group(c)),
    CommandKind.CREATE_USER: _create_user,
    CommandKind.DELETE_USER: lambda c: users_service_pb2.DeleteUserRequest(user=identifier(c.name)),
    CommandKind.GRANT: _grant,
    CommandKind.CREATE_TOKEN: lambda c: users_service_pb2.CreatePersonalAccessTokenRequest(
        name=c.name
    ),
    CommandKind.DELETE_TOKEN: lambda c: users_service_pb2.DeletePersonalAccessTokenRequest(
        name=c.name
    ),
}
