"""The state of the real machines and of the model, in one form that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from coordinator.mux.types import Stage
from testkit.composite.model import Model
from testkit.composite.model_brokers import broker_entity
from testkit.composite.model_groups import ROW
from testkit.composite.model_placements import placement_rows
from testkit.composite.model_streams import ranges
from testkit.composite.world import (
    GLOBAL_FLAGS,
    STREAM_FLAGS,
    TOPIC_FLAGS,
    CompositeMark,
    Grants,
    Group,
    Stream,
    Topic,
)
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2

Entity = tuple[int, bytes, bytes]
# (stage name, entity's name, ids) -> its facts.
Facts = dict[tuple[Any, ...], Any]

ENTITIES: Final[dict[tuple[Stage, int], type[Message]]] = {
    (Stage.USERS, 1): users_pb2.UserEntity,
    (Stage.USERS, 2): users_pb2.PersonalAccessTokenEntity,
    (Stage.USERS, 3): users_pb2.UsersCountersEntity,
    (Stage.STREAMS, 1): streams_pb2.StreamEntity,
    (Stage.STREAMS, 2): streams_pb2.TopicEntity,
    (Stage.STREAMS, 3): streams_pb2.AccessEntity,
    (Stage.STREAMS, 4): streams_pb2.StreamsCountersEntity,
    (Stage.STREAMS, 5): streams_pb2.WatermarksEntity,
    (Stage.STREAMS, 6): brokers_pb2.BrokerEntity,
    (Stage.STREAMS, 7): brokers_pb2.PlacementsEntity,
    (Stage.CONSUMER_GROUPS, 1): consumer_groups_pb2.ConsumerGroupEntity,
    (Stage.CONSUMER_GROUPS, 2): consumer_groups_pb2.MemberEntity,
    (Stage.CONSUMER_GROUPS, 3): consumer_groups_pb2.ConsumerGroupsCountersEntity,
    (Stage.CONSUMER_GROUPS, 5): streams_pb2.WatermarksEntity,
    (Stage.CONSUMER_GROUPS, 6): consumer_groups_pb2.CommittedOffsetsEntity,
    (Stage.CONSUMER_GROUPS, 7): consumer_groups_pb2.MarksEntity,
}


def facts_of_sections(stage: Stage, entities: Iterable[Entity]) -> Facts:
    """Return what the section of one stage says, decoded."""
    facts: Facts = {}
    for kind, key, canonical in entities:
        message = ENTITIES[stage, kind].FromString(canonical)
        assert (stage, kind, key) not in facts, f"{stage.name} yields {kind} {key.hex()} twice"
        facts[stage, kind, key] = facts_of(message)
    return facts


def facts_of(message: Message) -> Any:
    """Return a message as plain values; permissions as grants by scope."""
    if isinstance(message, users_pb2.Permissions):
        return grants_of(message)
    facts: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name == "header" or (field.has_presence and not message.HasField(field.name)):
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            value = [facts_of(v) if isinstance(v, Message) else v for v in value]
        elif isinstance(value, Message):
            value = facts_of(value)
        elif isinstance(message, streams_pb2.AccessEntity) and field.name == "permissions":
            value = grants_of(users_pb2.Permissions.FromString(value))
        facts[field.name] = value
    return facts


def grants_of(message: users_pb2.Permissions) -> Grants:
    """Return grants by scope; an entry without any flag would not be canonical."""
    grants: Grants = {}
    everywhere = _flags(getattr(message, "global"), GLOBAL_FLAGS)
    if everywhere:
        grants[()] = everywhere
    for entry in message.streams:
        flags = _flags(entry, STREAM_FLAGS)
        assert flags or entry.topics, f"an empty grant of stream {entry.stream.id} is kept"
        if flags:
            grants[entry.stream.id,] = flags
        for part in entry.topics:
            grants[entry.stream.id, part.topic.id] = _flags(part, TOPIC_FLAGS)
    return grants


def facts_of_model(model: Model) -> Facts:
    """Return what the model says about all sections."""
    return {
        **dict(_users(model)),
        **dict(_streams(model)),
        **dict(_brokers(model)),
        **dict(_groups(model)),
    }


def _flags(message: Any, names: tuple[str, ...]) -> set[str]:
    return {name for name in names if getattr(message, name)}


def _key(*ids: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in ids)


def _users(model: Model) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for user in model.world.users.values():
        entity = {
            "id": user.id,
            "username": user.name,
            "status": 1 if user.active else 2,
            "password_hash": user.password_hash,
            "created_at": user.created_at,
            "created_revision": user.created,
            "modified_revision": user.modified,
            "credential_revision": user.credential,
            "minimum_token_revision": user.token_floor,
        }
        if user.grants:
            entity["permissions"] = user.grants
        yield (Stage.USERS, 1, _key(user.id)), entity
        access = {
            "user_id": user.id,
            "minimum_credential_revision": user.credential,
            "permissions": user.grants,
            "active": user.active,
            "minimum_token_revision": user.token_floor,
        }
        yield (Stage.STREAMS, 3, _key(user.id)), access
        for name, token in user.tokens.items():
            entity = {
                "user_id": user.id,
                "name": name,
                "token_hash": token.hash,
                "expires_at": token.expires_at,
                "created_at": token.created_at,
                "created_revision": token.created,
            }
            yield (Stage.USERS, 2, _key(user.id) + name.encode()), entity
    yield (Stage.USERS, 3, b""), {"next_user_id": model.world.next_user_id}


def _streams(model: Model) -> Iterator[tuple[tuple[Any, ...], Any]]:
    world = model.world
    for stream in world.streams.values():
        common = {"created_at": stream.created_at, "created_revision": stream.created}
        common |= {"modified_revision": stream.modified, "purge_generation": stream.purges}
        yield (
            (Stage.STREAMS, 1, _key(stream.id)),
            {"id": stream.id, "name": stream.name, **common},
        )
        for topic in stream.topics.values():
            entity = {
                "id": topic.id,
                "stream_id": stream.id,
                "name": topic.name,
                "options": topic.options,
                "partitions": ranges(topic),
                "created_at": topic.created_at,
                "created_revision": topic.created,
                "modified_revision": topic.modified,
                "purge_generation": topic.purges,
            }
            yield (Stage.STREAMS, 2, _key(stream.id, topic.id)), entity
            yield from _watermarks(stream, topic)
    if world.next_stream_id > 1 or world.next_broker_id > 1:
        counters = {"next_stream_id": world.next_stream_id, "next_topic_id": world.next_topic_id}
        # A counter that has never counted is not there.
        counters["next_broker_id"] = world.next_broker_id if world.next_broker_id > 1 else 0
        yield (Stage.STREAMS, 4, b""), counters


def _brokers(model: Model) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield brokers, and the placements of partitions in rows."""
    for broker in model.world.brokers.values():
        yield (Stage.STREAMS, 6, _key(broker.id)), broker_entity(broker)
    for stream in model.world.streams.values():
        for topic in stream.topics.values():
            for first, row in placement_rows(topic).items():
                entity = {
                    "stream_id": stream.id,
                    "topic_id": topic.id,
                    "first_partition": first,
                    "partitions": row,
                }
                yield (Stage.STREAMS, 7, _key(topic.id, first)), entity


def _watermarks(stream: Stream, topic: Topic) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the watermarks of which anything is known, which two stages keep alike."""
    starts = _rows(topic.starts)
    plus_one = {partition: end + 1 for partition, end in topic.ends.items()}
    for first, ends in _rows(plus_one).items():
        entity = {
            "stream_id": stream.id,
            "topic_id": topic.id,
            "first_partition": first,
            "start_offsets": starts.get(first, []),
            "end_offsets_plus_one": ends,
        }
        for stage in (Stage.STREAMS, Stage.CONSUMER_GROUPS):
            yield (stage, 5, _key(topic.id, first)), entity
    for first, marks in topic.marks.items():
        yield (Stage.CONSUMER_GROUPS, 7, _key(topic.id, first)), _marks(stream, topic, first, marks)


def _marks(stream: Stream, topic: Topic, first: int, marks: list[CompositeMark]) -> dict[str, Any]:
    """Return by when the data of a row of partitions was written."""
    entity: dict[str, Any] = {
        "stream_id": stream.id,
        "topic_id": topic.id,
        "first_partition": first,
        "marks": [],
    }
    for mark in marks:
        plus_one = {partition: end + 1 for partition, end in mark.ends.items()}
        ends = _rows(plus_one)[first]
        entity["marks"].append({"written_by": mark.time, "end_offsets_plus_one": ends})
    return entity


def _rows(offsets: Mapping[int, int]) -> dict[int, list[int]]:
    """Return numbers of consecutive partitions by the first, without zeros at the end."""
    rows: dict[int, list[int]] = {}
    for partition in sorted(each for each, offset in offsets.items() if offset):
        row = rows.setdefault(partition - partition % ROW, [])
        row += [0] * (partition % ROW - len(row))
        row.append(offsets[partition])
    return rows


def _offsets(group: Group) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the offsets of a group, each plus one, since 0 stands for none."""
    plus_one = {partition: offset + 1 for partition, offset in group.offsets.items()}
    for first, row in _rows(plus_one).items():
        entity = {"group_id": group.id, "first_partition": first, "offsets_plus_one": row}
        yield (Stage.CONSUMER_GROUPS, 6, _key(group.id, first)), entity


def _groups(model: Model) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for stream, topic, group in model.world.groups():
        entity = {
            "id": group.id,
            "stream_id": stream.id,
            "topic_id": topic.id,
            "name": group.name,
            "assignor": group.assignor,
            "group_epoch": group.epoch,
            "assignment_epoch": group.assigned_epoch,
            "partitions_count": group.partitions_count,
            "created_at": group.created_at,
            "created_revision": group.created,
            "modified_revision": group.modified,
            "member_timeout_ms": group.timeout_ms,
            "offsets_retention_ms": group.retention_ms,
            "idle_since": group.idle_since,
            "expiry_due": group.expiry_due,
            "offsets_revision": group.offsets_revision,
        }
        yield (Stage.CONSUMER_GROUPS, 1, _key(stream.id, topic.id, group.id)), entity
        for member in group.members.values():
            entity = {
                "group_id": group.id,
                "session_id": member.session_id,
                "user_id": member.user_id,
                "instance_id": member.instance,
                "rack": member.rack,
                "member_epoch": member.epoch,
                "previous_member_epoch": member.previous_epoch,
                "owned_partitions": sorted(member.owned),
                "revoking_partitions": sorted(member.revoking),
                "target_partitions": sorted(member.target),
                "revocation_deadline": member.deadline,
                "joined_revision": member.joined,
                "absence_deadline": member.absent_until,
                "assignment_revision": member.changed,
                "member_timeout_ms": member.timeout_ms,
            }
            yield (Stage.CONSUMER_GROUPS, 2, _key(group.id, member.session_id)), entity
        yield from _offsets(group)
    if model.world.next_group_id > 1:
        yield (Stage.CONSUMER_GROUPS, 3, b""), {"next_group_id": model.world.next_group_id}
