"""The streams domain in plain words: each function decides one command, or one read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from testkit.composite.model_groups import repartition
from testkit.composite.model_pages import page_of
from testkit.composite.model_placements import check_reporter, place_new
from testkit.composite.model_times import forget_partitions, remember_ends
from testkit.composite.world import (
    SEEING,
    Call,
    CompositeModelState,
    CompositeRefused,
    Stream,
    Topic,
    check_expected,
    check_name,
    find,
)

KIB = 1024
GIB = KIB**3
DEFAULTS = {
    "message_expiry_us": 0,
    "max_topic_size_bytes": 0,
    "compression_algorithm": 1,
    "replication_factor": 1,
    "segment_size_bytes": GIB,
}
PER_REQUEST_MAX = 1000
CHANGE_TOPIC = ("manage_streams", "manage_topics")


def create_stream(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Create a stream."""
    world.demand(world.caller(call), "manage_streams")
    _check_stream_name(world, request.name)
    stream = Stream(
        world.next_stream_id, request.name, call.timestamp, call.revision, call.revision
    )
    world.next_stream_id += 1
    world.streams[stream.id] = stream
    return {"stream_id": stream.id}


def update_stream(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Rename a stream."""
    stream = _changing_stream(world, request, call)
    if request.name != stream.name:
        _check_stream_name(world, request.name)
        stream.name = request.name
        stream.modified = call.revision
    return {}


def delete_stream(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Delete a stream with topics, groups and grants."""
    stream = _changing_stream(world, request, call)
    del world.streams[stream.id]
    _drop_grants(world, (stream.id,), call)
    return {}


def purge_stream(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Count a purge."""
    stream = _changing_stream(world, request, call)
    stream.purges += 1
    stream.modified = call.revision
    return {}


def create_topic(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Create a topic."""
    stream = world.stream(world.caller(call), request.stream, *CHANGE_TOPIC)
    _check_topic_name(stream, request.name)
    count = request.partitions_count
    if count > PER_REQUEST_MAX:
        raise CompositeRefused("INVALID_PARTITIONS_COUNT")
    options = _options(DEFAULTS, request.options)
    revision = call.revision
    partitions = [revision] * count
    topic = Topic(
        world.next_topic_id, request.name, options, partitions, call.timestamp, revision, revision
    )
    place_new(world, topic, range(count), call)
    world.next_topic_id += 1
    stream.topics[topic.id] = topic
    return {"topic_id": topic.id}


def update_topic(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Rename a topic or change options."""
    stream, topic = _changing_topic(world, request, call)
    if request.options.HasField("segment_size_bytes"):
        raise CompositeRefused("UNSUPPORTED_OPTION")
    options = _options(topic.options, request.options)
    name = request.name if request.HasField("name") else topic.name
    if name != topic.name:
        _check_topic_name(stream, name)
    if (name, options) != (topic.name, topic.options):
        topic.name, topic.options, topic.modified = name, options, call.revision
    return {}


def delete_topic(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Delete a topic with groups and grants."""
    stream, topic = _changing_topic(world, request, call)
    del stream.topics[topic.id]
    _drop_grants(world, (stream.id, topic.id), call)
    return {}


def purge_topic(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Count a purge."""
    _, topic = _changing_topic(world, request, call)
    topic.purges += 1
    topic.modified = call.revision
    return {}


def create_partitions(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Add partitions at the end."""
    _, topic = _changing_topic(world, request, call)
    count = _requested(request.partitions_count)
    existing = len(topic.partitions)
    place_new(world, topic, range(existing, existing + count), call)
    topic.partitions += [call.revision] * count
    return _repartitioned(world, topic, call)


def delete_partitions(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Remove partitions from the end."""
    _, topic = _changing_topic(world, request, call)
    count = _requested(request.partitions_count)
    if count > len(topic.partitions):
        raise CompositeRefused("INVALID_PARTITIONS_COUNT")
    topic.partitions = topic.partitions[: len(topic.partitions) - count]
    left = len(topic.partitions)
    topic.starts = {each: offset for each, offset in topic.starts.items() if each < left}
    topic.ends = {each: offset for each, offset in topic.ends.items() if each < left}
    topic.placements = {each: kept for each, kept in topic.placements.items() if each < left}
    forget_partitions(topic, left)
    return _repartitioned(world, topic, call)


def truncate_partitions(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Move starts, and ends that lie before them."""
    caller = world.caller(call)
    _, topic = world.topic(caller, request.stream, request.topic, *CHANGE_TOPIC)
    told = _reported(topic, request.start_offsets)
    if request.HasField("broker"):
        check_reporter(world, caller, topic, request, [each for each, _ in told], call)
    for partition, offset in told:
        if offset > topic.starts.get(partition, 0):
            topic.starts[partition] = offset
            topic.ends[partition] = max(offset, topic.ends.get(partition, 0))
    return {}


def report_partition_ends(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Move ends."""
    caller = world.caller(call)
    _, topic = world.topic(caller, request.stream, request.topic, "send_messages")
    told = _reported(topic, request.end_offsets)
    check_reporter(world, caller, topic, request, [each for each, _ in told], call)
    remember_ends(world, topic, told, request.reported_at_us, call)
    for partition, offset in told:
        topic.ends[partition] = max(offset, topic.ends.get(partition, 0))
    return {}


def list_watermarks(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read where the data of partitions begins and ends."""
    _, topic = world.topic(world.caller(call), request.stream, request.topic, *SEEING)
    known = [
        {"partition": each, "start_offset": topic.starts.get(each, 0), "end_offset": end}
        for each, end in sorted(topic.ends.items())
    ]
    page, next_token = page_of("ListWatermarks", topic.id, request, known)
    if next_token:
        world.turns.add("watermarks in pages")
    return {"watermarks": page, "next_page_token": next_token}


def get_stream(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read a stream."""
    caller = world.caller(call)
    return {"stream": _stream_view(world.stream(caller, request.stream, *_READ_STREAM))}


def list_streams(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read all streams."""
    world.demand(world.caller(call), *_READ_STREAM)
    return {"streams": [_stream_view(world.streams[key]) for key in sorted(world.streams)]}


def get_topic(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read a topic."""
    stream, topic = world.topic(world.caller(call), request.stream, request.topic, *SEEING)
    return {"topic": _topic_view(stream, topic)}


def list_topics(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read all topics of a stream."""
    stream = world.stream(world.caller(call), request.stream, *SEEING)
    return {"topics": [_topic_view(stream, stream.topics[key]) for key in sorted(stream.topics)]}


def check_access(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Return whether a user may send and poll."""
    caller = world.caller(call)
    whose = caller
    flags = SEEING | {"poll_messages", "send_messages"}
    if request.HasField("user_id") and request.user_id != caller.id:
        flags = frozenset({"read_users", "manage_users"})
        world.demand(caller, *flags)
        whose = world.users.get(request.user_id)  # type: ignore[assignment]
    found = world.topic(caller, request.stream, request.topic, *flags, seeing=flags)
    is_able = whose is not None and whose.active
    rights = world.rights(whose, (found[0].id, found[1].id)) if is_able else set()
    return {flag: flag in rights for flag in ("send_messages", "poll_messages")}


_READ_STREAM = ("manage_streams", "read_streams")

COMMANDS: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
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
    "TruncatePartitions": truncate_partitions,
    "ReportPartitionEnds": report_partition_ends,
}
QUERIES: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "GetStream": get_stream,
    "ListStreams": list_streams,
    "GetTopic": get_topic,
    "ListTopics": list_topics,
    "ListWatermarks": list_watermarks,
    "CheckAccess": check_access,
}


def ranges(topic: Topic) -> list[dict[str, Any]]:
    """Return the partitions as runs of equal creating revision."""
    found: list[dict[str, Any]] = []
    for number, revision in enumerate(topic.partitions):
        if found and found[-1]["created_revision"] == revision:
            found[-1]["count"] += 1
        else:
            found.append({"first": number, "count": 1, "created_revision": revision})
    return found


def _changing_stream(world: CompositeModelState, request: Any, call: Call) -> Stream:
    stream = world.stream(world.caller(call), request.stream, "manage_streams")
    check_expected(request, stream)
    return stream


def _changing_topic(world: CompositeModelState, request: Any, call: Call) -> tuple[Stream, Topic]:
    caller = world.caller(call)
    stream, topic = world.topic(caller, request.stream, request.topic, *CHANGE_TOPIC)
    check_expected(request, topic)
    return stream, topic


def _reported(topic: Topic, offsets: Any) -> list[tuple[int, int]]:
    told = [(each.partition, each.offset) for each in offsets]
    if not told:
        raise CompositeRefused("MALFORMED_REQUEST", offsets_count=0)
    if any(partition >= len(topic.partitions) for partition, _ in told):
        raise CompositeRefused("PARTITION_NOT_FOUND")
    if any(offset >= 1 << 63 for _, offset in told):
        raise CompositeRefused("OFFSET_OUT_OF_RANGE")
    return told


def _requested(count: int) -> int:
    if not 1 <= count <= PER_REQUEST_MAX:
        raise CompositeRefused("INVALID_PARTITIONS_COUNT")
    return count


def _repartitioned(world: CompositeModelState, topic: Topic, call: Call) -> dict[str, Any]:
    topic.modified = call.revision
    for group in topic.groups.values():
        repartition(world, group, len(topic.partitions), call)
    return {"partitions_count": len(topic.partitions)}


def _drop_grants(world: CompositeModelState, scope: tuple[int, ...], call: Call) -> None:
    """Drop the grants in a scope and below; a user who loses one was changed."""
    for user in world.users.values():
        kept = {s: flags for s, flags in user.grants.items() if s[: len(scope)] != scope}
        if kept != user.grants:
            user.grants = kept
            user.modified = call.revision


def _check_stream_name(world: CompositeModelState, name: str) -> None:
    check_name(name, "INVALID_STREAM_NAME", 1, 255)
    if world.find_stream(name) is not None:
        raise CompositeRefused("STREAM_EXISTS", stream=name)


def _check_topic_name(stream: Stream, name: str) -> None:
    check_name(name, "INVALID_TOPIC_NAME", 1, 255)
    if find(stream.topics, name) is not None:
        raise CompositeRefused("TOPIC_EXISTS", stream=stream.name, topic=name)


def _options(before: dict[str, int], message: Any) -> dict[str, int]:
    options = dict(before)
    for name in DEFAULTS:
        if name == "compression_algorithm":
            options[name] = message.compression_algorithm or before[name]
        elif message.HasField(name):
            options[name] = getattr(message, name)
    if not 1 <= options["replication_factor"] <= 255 or options["compression_algorithm"] > 4:
        raise CompositeRefused("INVALID_OPTION")
    segment, size = options["segment_size_bytes"], options["max_topic_size_bytes"]
    if not KIB**2 <= segment <= GIB or segment % 512:
        raise CompositeRefused("INVALID_OPTION")
    if size and size < segment:
        raise CompositeRefused("INVALID_TOPIC_SIZE")
    return options


def _stream_view(stream: Stream) -> dict[str, Any]:
    return {
        "id": stream.id,
        "name": stream.name,
        "topics_count": len(stream.topics),
        "created_at": stream.created_at,
        "created_revision": stream.created,
        "modified_revision": stream.modified,
        "purge_generation": stream.purges,
    }


def _topic_view(stream: Stream, topic: Topic) -> dict[str, Any]:
    return {
        "id": topic.id,
        "stream_id": stream.id,
        "name": topic.name,
        "partitions_count": len(topic.partitions),
        "options": topic.options,
        "created_at": topic.created_at,
        "created_revision": topic.created,
        "modified_revision": topic.modified,
        "purge_generation": topic.purges,
    }
