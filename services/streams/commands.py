"""What each command changes. Handlers raise Refusal; the runtime takes back what they changed.

Checks come in this order: caller, entity and permission, expected revision, arguments, conflicts
with what exists, limits. A command that leaves everything as it was succeeds and modifies nothing,
so `modified_revision` stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from services.runtime import watermarks
from services.runtime.domain import Call, CommandHandler
from services.streams import access as gates
from services.streams import broker_commands, grants, partitions, placement_commands, refusals
from services.streams import watermarks as reports
from services.streams.lookup import authenticate, demand_everywhere, find_stream, find_topic
from services.streams.model import (
    NEXT_STREAM_ID,
    NEXT_TOPIC_ID,
    Children,
    Stream,
    StreamsState,
    Topic,
)
from services.streams.options import DEFAULT_OPTIONS
from viewstamp import limits
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.errors import Refusal
from viewstamp.framing import encode_varint
from viewstamp.names import check_name

CASCADE: Final = (routing_pb2.STAGE_CONSUMER_GROUPS, routing_pb2.STAGE_USERS)
# Every response without fields of its own; also the tag of field 2, a varint, where there is one.
_EMPTY: Final = b""
_FIELD_2: Final = b"\x10"
# The cost of deleting a topic in rows; runs of partitions that are copied for one row.
_ROWS_PER_TOPIC: Final = 4
_RUNS_PER_ROW: Final = 64
# The same as Topic(...), at half the price.
_new_row: Final = tuple.__new__


_ChangesStream: TypeAlias = (
    api.UpdateStreamRequest | api.DeleteStreamRequest | api.PurgeStreamRequest
)
_ChangesTopic: TypeAlias = (
    api.UpdateTopicRequest
    | api.DeleteTopicRequest
    | api.PurgeTopicRequest
    | api.CreatePartitionsRequest
    | api.DeletePartitionsRequest
)


def create_stream(state: StreamsState, request: api.CreateStreamRequest, call: Call) -> bytes:
    """Create a stream."""
    demand_everywhere(authenticate(state, call), gates.CREATE_STREAM)
    name = request.name
    _check_stream_name(state, name)
    if len(state.streams) >= limits.STREAMS_MAX:
        raise refusals.stream_limit()
    stream_id = state.take_id(NEXT_STREAM_ID)
    state.stream_ids.put(name, stream_id)
    revision = call.revision
    state.streams.put(stream_id, Stream(stream_id, name, call.timestamp, revision, revision, 0))
    return _FIELD_2 + encode_varint(stream_id)


def update_stream(state: StreamsState, request: api.UpdateStreamRequest, call: Call) -> bytes:
    """Rename a stream."""
    stream = find_stream(state, authenticate(state, call), gates.CHANGE_STREAM, request.stream)
    _check_revision(request, stream, refusals.stream_revision_mismatch)
    name = request.name
    if name != stream.name:
        _check_stream_name(state, name)
        state.stream_ids.delete(stream.name)
        state.stream_ids.put(name, stream.id)
        state.streams.put(stream.id, stream._replace(name=name, modified_revision=call.revision))
    return _EMPTY


def delete_stream(state: StreamsState, request: api.DeleteStreamRequest, call: Call) -> bytes:
    """Delete a stream with its topics and the grants on them; tell groups and users."""
    stream = find_stream(state, authenticate(state, call), gates.CHANGE_STREAM, request.stream)
    _check_revision(request, stream, refusals.stream_revision_mismatch)
    # Searching grants is work too: it is paid for before it is done.
    topic_ids = state.topics.ids(stream.id)
    call.charge(_ROWS_PER_TOPIC * len(topic_ids) + grants.look_rows(state, stream.id))
    topics = [state.topics.rows[stream.id, topic_id] for topic_id in topic_ids]
    watermark_rows = [reports.rows_of(topic, call) for topic in topics]
    call.charge(sum(watermark_rows))
    grant_rows = grants.stream_rows(state, stream.id)
    call.charge(grant_rows)
    _charge_for_placements(state, [(each.id, 0, each.partitions_count) for each in topics], call)
    for topic, row_count in zip(topics, watermark_rows, strict=True):
        watermarks.drop(state.watermarks, topic.id, row_count)
        state.placements.drop(topic.id, topic.partitions_count)
        state.topics.delete((stream.id, topic.id))
    state.stream_ids.delete(stream.name)
    state.streams.delete(stream.id)
    grants.drop_stream(state, stream.id)
    deleted = effects_pb2.StreamDeleted(
        stream_id=stream.id,
        topic_ids=topic_ids,
        watermark_rows=watermark_rows if call.keeps_offsets else (),
    )
    told_rows = reports.forgetting_rows(sum(watermark_rows), call)
    rows = limits.EFFECT_ROWS + len(topic_ids) + told_rows + grant_rows
    call.emit(CASCADE, effects_pb2.EffectPayload(stream_deleted=deleted), rows)
    return _EMPTY


def purge_stream(state: StreamsState, request: api.PurgeStreamRequest, call: Call) -> bytes:
    """Count one more purge of a stream."""
    stream = find_stream(state, authenticate(state, call), gates.CHANGE_STREAM, request.stream)
    _check_revision(request, stream, refusals.stream_revision_mismatch)
    purged = stream._replace(
        modified_revision=call.revision, purge_generation=stream.purge_generation + 1
    )
    state.streams.put(stream.id, purged)
    return _EMPTY


def create_topic(state: StreamsState, request: api.CreateTopicRequest, call: Call) -> bytes:
    """Create a topic with its partitions. Many at once are made by `services.streams.bulk`."""
    stream = find_stream(state, authenticate(state, call), gates.CREATE_TOPIC, request.stream)
    stream_id = stream.id
    name = request.name
    topics = state.topics.of_stream(stream_id)
    _check_topic_name(stream, topics, name)
    count = request.partitions_count
    if count > limits.PARTITIONS_PER_REQUEST_MAX:
        raise refusals.invalid_partitions_count(count, 0, limits.PARTITIONS_PER_REQUEST_MAX)
    options = DEFAULT_OPTIONS
    if request.HasField("options"):
        options = state.options_pool.created(request.options)
    if len(topics.ids) >= limits.TOPICS_PER_STREAM_MAX:
        raise refusals.topic_limit(stream.name)
    id_ = state.take_id(NEXT_TOPIC_ID)
    now, revision = call.timestamp, call.revision
    row = (id_, stream_id, name, count, (), options, now, revision, revision, 0)
    topic = _new_row(Topic, row)
    state.topics.add(topics, topic)
    placement_commands.place_new(state, topic, 0, count, call)
    return _FIELD_2 + encode_varint(id_)


def update_topic(state: StreamsState, request: api.UpdateTopicRequest, call: Call) -> bytes:
    """Rename a topic or change its options."""
    topic = _changing_topic(state, request, call)
    changed = topic
    if request.HasField("options"):
        options = state.options_pool.updated(topic.options, request.options)
        changed = changed._replace(options=options)
    if request.HasField("name") and request.name != topic.name:
        stream = state.streams.rows[topic.stream_id]
        _check_topic_name(stream, state.topics.of_stream(stream.id), request.name)
        changed = changed._replace(name=request.name)
    if changed != topic:
        _put(state, changed._replace(modified_revision=call.revision))
    return _EMPTY


def delete_topic(state: StreamsState, request: api.DeleteTopicRequest, call: Call) -> bytes:
    """Delete a topic and the grants on it; tell groups and users."""
    topic = _changing_topic(state, request, call)
    look_rows = grants.look_rows(state, topic.stream_id)
    call.charge(look_rows)
    rows = grants.topic_rows(state, topic.stream_id, topic.id)
    watermark_rows = reports.rows_of(topic, call)
    call.charge(_ROWS_PER_TOPIC + rows + watermark_rows)
    _charge_for_placements(state, [(topic.id, 0, topic.partitions_count)], call)
    watermarks.drop(state.watermarks, topic.id, watermark_rows)
    state.placements.drop(topic.id, topic.partitions_count)
    state.topics.delete((topic.stream_id, topic.id))
    grants.drop_topic(state, topic.stream_id, topic.id)
    deleted = effects_pb2.TopicDeleted(
        stream_id=topic.stream_id, topic_id=topic.id, watermark_rows=watermark_rows
    )
    rows += limits.EFFECT_ROWS + look_rows + reports.forgetting_rows(watermark_rows, call)
    call.emit(CASCADE, effects_pb2.EffectPayload(topic_deleted=deleted), rows)
    return _EMPTY


def purge_topic(state: StreamsState, request: api.PurgeTopicRequest, call: Call) -> bytes:
    """Count one more purge of a topic."""
    topic = _changing_topic(state, request, call)
    generation = topic.purge_generation + 1
    _put(state, topic._replace(modified_revision=call.revision, purge_generation=generation))
    return _EMPTY


def create_partitions(
    state: StreamsState, request: api.CreatePartitionsRequest, call: Call
) -> bytes:
    """Add partitions at the end of a topic; tell its groups."""
    topic = _changing_topic(state, request, call)
    count = _requested_partitions(request.partitions_count)
    existing = topic.partitions_count
    if existing + count > limits.PARTITIONS_PER_TOPIC_MAX:
        raise refusals.partition_limit(topic.name, existing, count)
    if call.is_bounded and len(topic.runs) >= limits.PARTITION_RUNS_PER_TOPIC_MAX:
        raise refusals.partition_run_limit(topic.name)
    call.charge(len(topic.runs) // _RUNS_PER_ROW)
    runs = partitions.expanded(topic.runs, existing, topic.created_revision)
    runs = partitions.extended(runs, count, call.revision)
    placement_commands.place_new(state, topic, existing, count, call)
    return _repartition(state, topic, runs, existing + count, call)


def delete_partitions(
    state: StreamsState, request: api.DeletePartitionsRequest, call: Call
) -> bytes:
    """Remove partitions from the end of a topic; tell its groups."""
    topic = _changing_topic(state, request, call)
    count = _requested_partitions(request.partitions_count)
    existing = topic.partitions_count
    if count > existing:
        raise refusals.more_than_exist(topic.name, count, existing)
    call.charge(len(topic.runs) // _RUNS_PER_ROW)
    runs = partitions.expanded(topic.runs, existing, topic.created_revision)
    runs = partitions.shortened(runs, count)
    _charge_for_placements(state, [(topic.id, existing - count, existing)], call)
    watermarks.cut(state.watermarks, topic.id, existing - count)
    state.placements.cut(topic.id, existing, existing - count)
    return _repartition(state, topic, runs, existing - count, call)


COMMANDS: Final[Mapping[str, CommandHandler[StreamsState]]] = {
    "CreateStream": create_stream,
    "UpdateStream": update_stream,
    "DeleteStream": delete_stream,
    "PurgeStream": purge_stream,
    "CreateTopic": create_topic,
    "UpdateTopic": update_topic,
    "DeleteTopic": delete_topic,
    "PurgeTopic": purge_topic,
    "CreatePartitions": create_partitions,
    "DeletePartitions": delete_partitions,
    **reports.COMMANDS,
    **broker_commands.COMMANDS,
    **placement_commands.COMMANDS,
}


def _changing_topic(state: StreamsState, request: _ChangesTopic, call: Call) -> Topic:
    caller = authenticate(state, call)
    topic = find_topic(state, caller, gates.CHANGE_TOPIC, request.stream, request.topic)
    _check_revision(request, topic, refusals.topic_revision_mismatch)
    return topic


def _check_revision(
    request: _ChangesStream | _ChangesTopic,
    row: Stream | Topic,
    mismatch: Callable[[str, int, int], Refusal],
) -> None:
    if request.HasField("expected_revision"):
        expected = request.expected_revision
        if expected != row.modified_revision:
            raise mismatch(row.name, expected, row.modified_revision)


def _check_stream_name(state: StreamsState, name: str) -> None:
    if not _is_plain(name):
        _check_name(name, Reason.REASON_INVALID_STREAM_NAME)
    if name in state.stream_ids:
        raise refusals.stream_exists(name)


def _check_topic_name(stream: Stream, topics: Children, name: str) -> None:
    # `_is_plain`, inlined: on the hot path a call costs as much as the check.
    if not (0 < len(name) <= limits.NAME_BYTES_MAX and name.isascii() and name.isprintable()):
        _check_name(name, Reason.REASON_INVALID_TOPIC_NAME)
    if name in topics.by_name:
        raise refusals.topic_exists(stream.name, name)


def _is_plain(name: str) -> bool:
    """Return whether a name is valid at first glance, which is cheap and true for nearly all."""
    return 0 < len(name) <= limits.NAME_BYTES_MAX and name.isascii() and name.isprintable()


def _check_name(name: str, reason: Reason.ValueType) -> None:
    check_name(
        name,
        reason=reason,
        bytes_min=limits.NAME_BYTES_MIN,
        bytes_max=limits.NAME_BYTES_MAX,
    )


def _requested_partitions(count: int) -> int:
    if not 1 <= count <= limits.PARTITIONS_PER_REQUEST_MAX:
        raise refusals.invalid_partitions_count(count, 1, limits.PARTITIONS_PER_REQUEST_MAX)
    return count


def _repartition(
    state: StreamsState, topic: Topic, runs: partitions.Runs, count: int, call: Call
) -> bytes:
    changed = topic._replace(
        partitions_count=count,
        runs=partitions.compact(runs, topic.created_revision),
        modified_revision=call.revision,
    )
    _put(state, changed)
    effect = effects_pb2.PartitionsChanged(
        stream_id=topic.stream_id, topic_id=topic.id, partitions_count=count
    )
    payload = effects_pb2.EffectPayload(partitions_changed=effect)
    # Before the bounds any number was acknowledged: groups put off what is too much for them.
    rows = limits.PARTITIONS_CHANGED_ROWS if call.is_bounded else limits.EFFECT_ROWS
    call.emit((routing_pb2.STAGE_CONSUMER_GROUPS,), payload, rows)
    return _FIELD_2 + encode_varint(count)


def _charge_for_placements(
    state: StreamsState, forgotten: Sequence[tuple[int, int, int]], call: Call
) -> None:
    """Pay for forgetting who has partitions: first for the look at how much that is.

    `forgotten` has topics by id, each with its first partition to be forgotten, and their end.
    """
    placements = state.placements
    call.charge(sum(placements.rows_to_find(first, end) for _, first, end in forgotten))
    call.charge(sum(placements.rows_to_drop(*each) for each in forgotten))


def _put(state: StreamsState, topic: Topic) -> None:
    state.topics.put((topic.stream_id, topic.id), topic)
