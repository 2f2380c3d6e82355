"""What callers may read. Lists are paged by id, so that a page is consistent and pages never
repeat an entity; the page token has the last id seen, opaque to callers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from services.runtime.domain import Call, QueryHandler
from services.streams import access as gates
from services.streams import broker_queries
from services.streams.access import Access, Gate
from services.streams.lookup import authenticate, demand_everywhere, find_stream, find_topic
from services.streams.model import Stream, StreamsState, Topic
from services.streams.options import to_message as options_message
from services.streams.partitions import PartitionRun, expanded
from services.streams.watermarks import list_watermarks
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.paging import PagedList, offsets_page_size, page_size


def get_stream(
    state: StreamsState, request: api.GetStreamRequest, call: Call
) -> api.GetStreamResponse:
    """Return one stream."""
    stream = find_stream(state, authenticate(state, call), gates.READ_STREAM, request.stream)
    return api.GetStreamResponse(stream=_stream_message(state, stream))


def list_streams(
    state: StreamsState, request: api.ListStreamsRequest, call: Call
) -> api.ListStreamsResponse:
    """Return a page of the streams."""
    demand_everywhere(authenticate(state, call), gates.LIST_STREAMS)
    size, pages = page_size(request.page_size), PagedList("ListStreams")
    after = pages.id_after(request.page_token)
    ids = state.streams.keys_after(after, size + 1)
    streams = [_stream_message(state, state.streams.rows[id_]) for id_ in ids[:size]]
    return api.ListStreamsResponse(streams=streams, next_page_token=pages.next_id_token(ids, size))


def get_topic(
    state: StreamsState, request: api.GetTopicRequest, call: Call
) -> api.GetTopicResponse:
    """Return one topic."""
    caller = authenticate(state, call)
    topic = find_topic(state, caller, gates.READ_TOPIC, request.stream, request.topic)
    return api.GetTopicResponse(topic=topic_message(topic))


def list_topics(
    state: StreamsState, request: api.ListTopicsRequest, call: Call
) -> api.ListTopicsResponse:
    """Return a page of a stream's topics."""
    stream = find_stream(state, authenticate(state, call), gates.LIST_TOPICS, request.stream)
    size, pages = page_size(request.page_size), PagedList("ListTopics", stream.id)
    after = pages.id_after(request.page_token)
    ids = state.topics.ids_after(stream.id, after, size + 1)
    topics = [topic_message(state.topics.rows[stream.id, id_]) for id_ in ids[:size]]
    return api.ListTopicsResponse(topics=topics, next_page_token=pages.next_id_token(ids, size))


def list_partitions(
    state: StreamsState, request: api.ListPartitionsRequest, call: Call
) -> api.ListPartitionsResponse:
    """Return a page of the partitions of a topic, as runs; below the level, all of them."""
    caller = authenticate(state, call)
    topic = find_topic(state, caller, gates.READ_TOPIC, request.stream, request.topic)
    response = api.ListPartitionsResponse()
    if not call.pages_all_lists:
        add_ranges(response.partitions, topic)
        return response
    size = offsets_page_size(request.page_size)
    pages = PagedList("ListPartitions", topic.id)
    for first, run in _runs_from(topic, pages.begin(request.page_token)):
        if len(response.partitions) == size:
            response.next_page_token = pages.id_token(first)
            break
        _add_range(response.partitions, first, run)
    return response


def check_access(
    state: StreamsState, request: api.CheckAccessRequest, call: Call
) -> api.CheckAccessResponse:
    """Return whether a user may send to and poll from a topic.

    A caller with any right in the topic may ask about themselves. Asking about others takes
    read_users or manage_users and no right in the topic. An unknown or inactive user may do
    nothing.
    """
    caller = authenticate(state, call)
    whose: Access | None = caller
    gate = gates.CHECK_OWN
    if request.HasField("user_id") and request.user_id != caller.user_id:
        demand_everywhere(caller, gates.CHECK_OTHERS)
        whose = state.access.rows.get(request.user_id)
        gate = Gate(gate.permission, gates.CHECK_OTHERS.mask, gates.CHECK_OTHERS.mask)
    topic = find_topic(state, caller, gate, request.stream, request.topic)
    rights = 0
    if whose is not None and whose.active:
        rights = whose.in_topic(topic.stream_id, topic.id)
    return api.CheckAccessResponse(
        send_messages=bool(rights & gates.SEND_MESSAGES),
        poll_messages=bool(rights & gates.POLL_MESSAGES),
    )


QUERIES: Final[Mapping[str, QueryHandler[StreamsState]]] = {
    "GetStream": get_stream,
    "ListStreams": list_streams,
    "GetTopic": get_topic,
    "ListTopics": list_topics,
    "ListPartitions": list_partitions,
    "ListWatermarks": list_watermarks,
    "CheckAccess": check_access,
    **broker_queries.QUERIES,
}


def add_ranges(ranges: Any, topic: Topic) -> None:
    """Add a topic's partitions to a repeated PartitionRange, for callers and sections alike."""
    for first, run in _runs_from(topic, 0):
        _add_range(ranges, first, run)


def _add_range(ranges: Any, first: int, run: PartitionRun) -> None:
    ranges.add(first=first, count=run.length, created_revision=run.created_revision)


def _runs_from(topic: Topic, start: int) -> Iterator[tuple[int, PartitionRun]]:
    """Yield a topic's runs with their first partitions, from partition `start` on.

    Since the page before, a run may have been replaced by one that begins before `start`: only the
    rest of it is yielded, so that no page repeats a partition.
    """
    first = 0
    run: PartitionRun
    for run in expanded(topic.runs, topic.partitions_count, topic.created_revision):
        end = first + run.length
        if end > start:
            begin = max(first, start)
            yield begin, PartitionRun(end - begin, run.created_revision)
        first = end


def _stream_message(state: StreamsState, stream: Stream) -> streams_pb2.Stream:
    return streams_pb2.Stream(**stream._asdict(), topics_count=state.topics.count(stream.id))


def topic_message(topic: Topic) -> streams_pb2.Topic:
    """Return a topic as callers see it."""
    return streams_pb2.Topic(
        id=topic.id,
        stream_id=topic.stream_id,
        name=topic.name,
        partitions_count=topic.partitions_count,
        options=options_message(topic.options),
        created_at=topic.created_at,
        created_revision=topic.created_revision,
        modified_revision=topic.modified_revision,
        purge_generation=topic.purge_generation,
    )
