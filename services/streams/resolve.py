"""Resolving the streams and topics in other stages' requests.

Every request has `stream` in field 1 and `topic` in field 2, and permissions in field 8, so one
private message type of each kind reads them all, whatever else they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.message import DecodeError, Message

from services.runtime.domain import Call
from services.streams import access as gates
from services.streams import refusals
from services.streams.access import Access, Gate
from services.streams.lookup import authenticate, demand_everywhere, find_stream, find_topic
from services.streams.model import StreamsState, Topic
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.users.v1 import users_pb2

# Field 5 of TopicContext, a bool that is left out if false.
_CALLER_MANAGES: Final = (b"", b"\x28\x01")
# Encoded contexts kept; beyond, the cache is emptied and begins anew.
CONTEXTS_CACHED_MAX: Final = 1 << 16
# The cost, in rows, of finding the stream or topic of a grant.
_ROWS_PER_RESOLVED_GRANT: Final = 12

TOPIC_GATES: Final[Mapping[int, Gate]] = {
    routing_pb2.GATE_READ_TOPIC: gates.READ_TOPIC,
    routing_pb2.GATE_MANAGE_TOPIC: gates.CHANGE_TOPIC,
    routing_pb2.GATE_POLL_MESSAGES: gates.POLL_TOPIC,
}
SERVER_GATES: Final[Mapping[int, Gate]] = {
    routing_pb2.GATE_READ_SERVERS: gates.READ_SERVER,
    routing_pb2.GATE_MANAGE_SERVERS: gates.MANAGE_SERVER,
    routing_pb2.GATE_READ_USERS: gates.CHECK_OTHERS,
}


def resolve(state: StreamsState, item: bytes, call: Call, gate: int) -> bytes:
    """Return the encoded TopicContext of what a request names: a topic, or a stream for a list of
    all in it. It is empty for all streams, and for servers.

    Raises Refusal if the caller does not pass the gate, and ValueError for a gate unknown here.
    """
    caller = authenticate(state, call)
    demanded = TOPIC_GATES.get(gate)
    if demanded is not None:
        named = _parsed(_NamesTopic, item)
        topic = find_topic(state, caller, demanded, named.stream, named.topic)
        if gate == routing_pb2.GATE_POLL_MESSAGES:
            rights = caller.in_topic(topic.stream_id, topic.id)
            manages = bool(rights & gates.CHANGE_TOPIC.mask)
            return _context(state, topic) + _CALLER_MANAGES[manages]
        return _context(state, topic)
    if gate == routing_pb2.GATE_LIST_TOPICS:
        return _stream_context(state, caller, item)
    if gate in SERVER_GATES:
        demand_everywhere(caller, SERVER_GATES[gate])
        return b""
    if gate == routing_pb2.GATE_UNSPECIFIED:
        return b""  # authentication is all that is demanded
    raise ValueError(f"gate {gate} is unknown to this build")


def _stream_context(state: StreamsState, caller: Access, item: bytes) -> bytes:
    """Return the encoded TopicContext of the stream that a request names; empty for all streams."""
    named = _parsed(_NamesTopic, item)
    if not named.HasField("stream"):
        demand_everywhere(caller, gates.LIST_TOPICS)
        return b""
    stream = find_stream(state, caller, gates.LIST_TOPICS, named.stream)
    return effects_pb2.TopicContext(stream_id=stream.id).SerializeToString(deterministic=True)


def resolve_grants(state: StreamsState, item: bytes, call: Call) -> bytes:
    """Return the encoded GrantsContext of the permissions in a request.

    Authorizes nothing: users may have authorized the caller by a command that streams learns of
    later. So it is paid for here. Raises Refusal COST_EXCEEDED.
    """
    permissions = _parsed(_NamesGrants, item).permissions
    named = len(permissions.streams) + sum(len(entry.topics) for entry in permissions.streams)
    call.charge(_ROWS_PER_RESOLVED_GRANT * named)
    streams = [_resolved_stream(state, entry) for entry in permissions.streams]
    return effects_pb2.GrantsContext(streams=streams).SerializeToString(deterministic=True)


def _context(state: StreamsState, topic: Topic) -> bytes:
    cached = state.contexts.get(topic.id)
    if cached is not None and cached[0] is topic:
        return cached[1]
    context = effects_pb2.TopicContext(
        stream_id=topic.stream_id,
        topic_id=topic.id,
        partitions_count=topic.partitions_count,
        created_revision=topic.created_revision,
    ).SerializeToString(deterministic=True)
    if len(state.contexts) >= CONTEXTS_CACHED_MAX:
        state.contexts.clear()
    state.contexts[topic.id] = (topic, context)
    return context


def _resolved_stream(
    state: StreamsState, entry: users_pb2.StreamPermissions
) -> effects_pb2.ResolvedStream:
    key = _optional_key(entry.stream)
    stream = None if key is None else state.find_stream(key)
    if stream is None:
        return effects_pb2.ResolvedStream(
            topics=[effects_pb2.ResolvedTopic() for _ in entry.topics]
        )
    topics = []
    for named in entry.topics:
        topic_key = _optional_key(named.topic)
        topic = None if topic_key is None else state.topics.find(stream.id, topic_key)
        topics.append(effects_pb2.ResolvedTopic(topic_id=None if topic is None else topic.id))
    return effects_pb2.ResolvedStream(stream_id=stream.id, topics=topics)


def _optional_key(identifier: common_pb2.Identifier) -> int | str | None:
    kind = identifier.WhichOneof("kind")
    if kind is None:
        return None
    return identifier.id if kind == "id" else identifier.name


def _parsed(message: type[Any], item: bytes) -> Any:
    try:
        return message.FromString(item)
    except DecodeError as error:
        raise refusals.malformed("not_its_message") from error


def _private_messages() -> tuple[type[Any], type[Any]]:
    """Return message classes that hold only what resolving reads of a request."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="viewstamp/streams/resolve.proto", package="viewstamp.streams", syntax="proto3"
    )
    file.dependency.extend([common_pb2.DESCRIPTOR.name, users_pb2.DESCRIPTOR.name])
    fields: dict[str, list[tuple[str, int, type[Message]]]] = {
        "NamesTopic": [("stream", 1, common_pb2.Identifier), ("topic", 2, common_pb2.Identifier)],
        "NamesGrants": [("permissions", 8, users_pb2.Permissions)],
    }
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for member, number, kind in members:
            message.field.add(
                name=member,
                number=number,
                type=field.TYPE_MESSAGE,
                label=field.LABEL_OPTIONAL,
                type_name="." + kind.DESCRIPTOR.full_name,
            )
    added = common_pb2.DESCRIPTOR.pool.AddSerializedFile(file.SerializeToString())
    by_name = added.message_types_by_name
    return (
        message_factory.GetMessageClass(by_name["NamesTopic"]),
        message_factory.GetMessageClass(by_name["NamesGrants"]),
    )


_NamesTopic, _NamesGrants = _private_messages()
