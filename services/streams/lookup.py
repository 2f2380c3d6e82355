"""From the names in a request to rows, checking the caller's rights on the way.

The order of refusals is the table in `services.streams.access`.
"""

from __future__ import annotations

from services.runtime.domain import Call
from services.streams import refusals
from services.streams.access import Access, Gate
from services.streams.model import Stream, StreamsState, Topic
from viewstamp.api.common.v1 import common_pb2


def authenticate(state: StreamsState, call: Call) -> Access:
    """Return the caller's access. Raises Refusal UNAUTHENTICATED."""
    access = None if call.user_id is None else state.access.rows.get(call.user_id)
    if access is None or not access.active or not access.is_current(call.credential_revision):
        raise refusals.unauthenticated()
    return access


def demand_everywhere(access: Access, gate: Gate) -> None:
    """Raise Refusal PERMISSION_DENIED unless global grants meet the gate's mask."""
    if not access.everywhere & gate.mask:
        raise refusals.permission_denied(access.user_id, gate)


def find_stream(
    state: StreamsState, access: Access, gate: Gate, identifier: common_pb2.Identifier
) -> Stream:
    """Return the named stream, if the gate lets the caller pass. Raises Refusal."""
    key = identifier.id or identifier.name or key_of(identifier, "stream")
    return find_stream_by_key(state, access, gate, key)


def find_stream_by_key(state: StreamsState, access: Access, gate: Gate, key: int | str) -> Stream:
    """Return the stream with this id or name, if the gate lets the caller pass. Raises Refusal."""
    stream = state.find_stream(key)
    if stream is not None and access.everywhere & gate.sees & gate.mask:
        return stream  # nearly always: a caller with global rights needs no closer look
    rights = 0 if stream is None else access.in_stream(stream.id)
    if stream is None or not rights & gate.sees:
        raise refusals.stream_not_found(key)
    if not rights & gate.mask:
        raise refusals.permission_denied(access.user_id, gate)
    return stream


def find_topic(
    state: StreamsState,
    access: Access,
    gate: Gate,
    stream_identifier: common_pb2.Identifier,
    topic_identifier: common_pb2.Identifier,
) -> Topic:
    """Return the named topic, if the gate lets the caller pass. Raises Refusal."""
    stream_key = (
        stream_identifier.id or stream_identifier.name or key_of(stream_identifier, "stream")
    )
    topic_key = topic_identifier.id or topic_identifier.name or key_of(topic_identifier, "topic")
    stream = state.find_stream(stream_key)
    if stream is None:
        raise refusals.stream_not_found(stream_key)
    topic = state.topics.find(stream.id, topic_key)
    if topic is None:
        rights = access.in_stream(stream.id)
    else:
        rights = access.in_topic(stream.id, topic.id)
    if not rights & gate.sees:
        raise refusals.stream_not_found(stream_key)
    if topic is None:
        raise refusals.topic_not_found(stream_key, topic_key)
    if not rights & gate.mask:
        raise refusals.permission_denied(access.user_id, gate)
    return topic


def key_of(identifier: common_pb2.Identifier, what: str) -> int | str:
    """Return the id or the name that is set. Raises Refusal MALFORMED_REQUEST if neither is."""
    kind = identifier.WhichOneof("kind")
    if kind is None:
        raise refusals.malformed("unnamed", field=what)
    return identifier.id if kind == "id" else identifier.name
