"""The commands that carry a plan out, in order, and how they divide into transactions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message

from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.client.identifiers import group_name, identifier, topic_name
from viewstamp.topology import wire
from viewstamp.topology.changes import ChangeVerb, DeclaredKind, Plan, PlannedChange

# What a part of a transaction takes beside its request: its code, lengths, and a password, in whose
# place a hash comes.
PART_EXTRA_BYTES: Final = 192
# A topic has 1 partition if nothing is declared.
PARTITIONS_DEFAULT: Final = 1


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One command, of the change that asked for it."""

    request: Message
    change: PlannedChange
    # Whether no earlier step of the plan has to be taken before the cluster can judge it.
    stands_alone: bool

    @property
    def entity(self) -> tuple[DeclaredKind, tuple[str, ...]]:
        """The entity that it changes."""
        return self.change.kind, self.change.path


_Build: TypeAlias = Callable[[Any], Iterator[Message]]


def steps_of(plan: Plan) -> list[PlanStep]:
    """Return the commands of a plan, without the passwords of new users."""
    created = {
        each.path
        for each in plan.changes
        if each.verb is ChangeVerb.CREATE and each.kind is not DeclaredKind.USER
    }
    return [
        PlanStep(request, change, stands_alone=not index and _can_stand_alone(change, created))
        for change in plan.changes
        for index, request in enumerate(_BUILDERS[change.verb, change.kind](change))
    ]


def pieces_of(steps: Sequence[PlanStep]) -> list[list[PlanStep]]:
    """Return steps in as few transactions as possible, in order."""
    pieces: list[list[PlanStep]] = []
    room = 0
    for step in steps:
        size = step.request.ByteSize() + PART_EXTRA_BYTES
        if not pieces or room < size or len(pieces[-1]) == limits.TRANSACTION_PARTS_MAX:
            pieces.append([])
            room = limits.COMMAND_BYTES_MAX
        pieces[-1].append(step)
        room -= size
    return pieces


def _can_stand_alone(change: PlannedChange, created: set[tuple[str, ...]]) -> bool:
    """Whether the cluster has everything that a change names."""
    if change.kind is not DeclaredKind.USER:
        return not any(change.path[:length] in created for length in range(1, len(change.path)))
    permissions = getattr(change.declared, "permissions", None)
    named = set() if permissions is None else permissions.flat()
    paths = {path for one in named for path in ((one.stream,), (one.stream, one.topic))}
    return not paths & created


def _create_stream(change: PlannedChange) -> Iterator[Message]:
    yield streams_api.CreateStreamRequest(name=change.path[0])


def _create_topic(change: Any) -> Iterator[Message]:
    stream, name = change.path
    wanted = change.declared.partitions
    count = PARTITIONS_DEFAULT if wanted is None else wanted
    first = min(count, limits.PARTITIONS_PER_REQUEST_MAX)
    yield streams_api.CreateTopicRequest(
        stream=identifier(stream),
        name=name,
        partitions_count=first,
        options=wire.options_message(change.declared, is_new=True),
    )
    yield from _partitions(change, streams_api.CreatePartitionsRequest, count - first)


def _create_group(change: Any) -> Iterator[Message]:
    stream, topic, name = change.path
    declared = change.declared
    yield groups_api.CreateConsumerGroupRequest(
        **topic_name(stream, topic),
        name=name,
        assignor=wire.number(consumer_groups_pb2.Assignor, declared.assignor),
        member_timeout_ms=declared.member_timeout_ms,
        offsets_retention_ms=declared.offsets_retention_ms,
    )


def _create_user(change: Any) -> Iterator[Message]:
    declared = change.declared
    permissions = declared.permissions
    yield users_api.CreateUserRequest(
        username=declared.username,
        status=wire.number(users_pb2.UserStatus, declared.status),
        permissions=None if permissions is None else wire.permissions_message(permissions),
    )


def _update_topic(change: Any) -> Iterator[Message]:
    if any(each.name != "partitions" for each in change.fields):
        yield streams_api.UpdateTopicRequest(
            **topic_name(*change.path), options=wire.options_message(change.declared, is_new=False)
        )
    old, new = change.found.topic.partitions, change.declared.partitions
    if new is not None:
        yield from _partitions(change, streams_api.CreatePartitionsRequest, new - old)
        yield from _partitions(change, streams_api.DeletePartitionsRequest, old - new)


def _update_group(change: Any) -> Iterator[Message]:
    declared = change.declared
    yield groups_api.UpdateConsumerGroupRequest(
        **group_name(*change.path),
        assignor=wire.number(consumer_groups_pb2.Assignor, declared.assignor),
        member_timeout_ms=declared.member_timeout_ms,
        offsets_retention_ms=declared.offsets_retention_ms,
    )


def _update_user(change: Any) -> Iterator[Message]:
    user, declared = identifier(change.path[0]), change.declared
    changed = {each.name for each in change.fields}
    if "status" in changed:
        status = wire.number(users_pb2.UserStatus, declared.status)
        yield users_api.UpdateUserRequest(user=user, status=status)
    if changed - {"status"}:
        permissions = wire.permissions_message(declared.permissions)
        yield users_api.UpdatePermissionsRequest(user=user, permissions=permissions)


def _delete_stream(change: PlannedChange) -> Iterator[Message]:
    yield streams_api.DeleteStreamRequest(stream=identifier(change.path[0]))


def _delete_topic(change: PlannedChange) -> Iterator[Message]:
    stream, topic = change.path
    yield streams_api.DeleteTopicRequest(**topic_name(stream, topic))


def _delete_group(change: PlannedChange) -> Iterator[Message]:
    stream, topic, group = change.path
    yield groups_api.DeleteConsumerGroupRequest(**group_name(stream, topic, group))


def _delete_user(change: PlannedChange) -> Iterator[Message]:
    yield users_api.DeleteUserRequest(user=identifier(change.path[0]))


def _partitions(change: PlannedChange, request: Any, count: int) -> Iterator[Message]:
    """Yield requests for so many partitions, none if there are none."""
    while count > 0:
        some = min(count, limits.PARTITIONS_PER_REQUEST_MAX)
        yield request(**topic_name(*change.path), partitions_count=some)
        count -= some


_BUILDERS: Final[Mapping[tuple[ChangeVerb, DeclaredKind], _Build]] = MappingProxyType(
    {
        (ChangeVerb.CREATE, DeclaredKind.STREAM): _create_stream,
        (ChangeVerb.CREATE, DeclaredKind.TOPIC): _create_topic,
        (ChangeVerb.CREATE, DeclaredKind.GROUP): _create_group,
        (ChangeVerb.CREATE, DeclaredKind.USER): _create_user,
        (ChangeVerb.UPDATE, DeclaredKind.TOPIC): _update_topic,
        (ChangeVerb.UPDATE, DeclaredKind.GROUP): _update_group,
        (ChangeVerb.UPDATE, DeclaredKind.USER): _update_user,
        (ChangeVerb.DELETE, DeclaredKind.STREAM): _delete_stream,
        (ChangeVerb.DELETE, DeclaredKind.TOPIC): _delete_topic,
        (ChangeVerb.DELETE, DeclaredKind.GROUP): _delete_group,
        (ChangeVerb.DELETE, DeclaredKind.USER): _delete_user,
    }
)
