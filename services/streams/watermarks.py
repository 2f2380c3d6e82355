"""What the data plane reports: where the data of partitions begins and ends.

A watermark never moves back. It is a fact about data and no part of its topic, so no report
modifies the topic, and a purge leaves the watermarks as they are: whoever carries it out reports up
to where data was dropped.

Consumer groups are told of each report that moves anything; and of lower ends, too, where they
remember by when data was written: data was lost, or the report is late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from services.runtime import offset_rows, watermarks
from services.runtime.domain import Call, CommandHandler
from services.runtime.offset_rows import ByRow
from services.runtime.watermarks import OFFSETS_PER_ROW_OF_WORK, ROWS_PER_REPLACED
from services.streams import access as gates
from services.streams import refusals
from services.streams.access import Gate
from services.streams.broker_commands import acting_broker
from services.streams.lookup import authenticate, find_topic
from services.streams.model import StreamsState, Topic
from services.streams.placement_commands import check_leads
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.paging import PagedList, offsets_page_size

# What a row of marks costs consumer groups beside its watermarks: with a new mark; if some of its
# ends are lower, so that LOWERED_MARKS_MAX marks are copied; for each of these ends, which is
# looked up in some marks and changed in the copies; and what both rows cost to forget.
_ROWS_PER_MARKED: Final = 12
_ROWS_PER_LOWERED: Final = 7
_ROWS_PER_LOWER_END: Final = 1
_ROWS_PER_FORGOTTEN: Final = 3


def truncate_partitions(
    state: StreamsState, request: api.TruncatePartitionsRequest, call: Call
) -> bytes:
    """Move the first offsets that remain, and ends that turn out to lie before them."""
    offsets = request.start_offsets
    topic, changes, rows = _reported(state, request, offsets, gates.CHANGE_TOPIC, call)
    if call.knows_brokers and request.HasField("broker"):
        _check_broker(state, topic, request, offsets, call)
    if watermarks.raise_starts(state.watermarks, topic.stream_id, topic.id, changes):
        told = effects_pb2.OffsetsReported(offsets=offsets, are_starts=True)
        _tell(topic, told, rows, call)
    return b""


def report_partition_ends(
    state: StreamsState, request: api.ReportPartitionEndsRequest, call: Call
) -> bytes:
    """Move the next offsets to be written."""
    offsets = request.end_offsets
    topic, changes, rows = _reported(state, request, offsets, gates.SEND_TOPIC, call)
    if call.knows_brokers and (request.HasField("broker") or state.placements.rows):
        _check_broker(state, topic, request, offsets, call)
    told = effects_pb2.OffsetsReported(offsets=offsets)
    lower: list[int] = []  # how many ends, of each row with such
    if call.keeps_times:
        call.charge(len(offsets) // OFFSETS_PER_ROW_OF_WORK)
        lower = watermarks.lower_counts(state.watermarks, topic.id, changes)
        rows += _ROWS_PER_MARKED * len(changes)
        rows += _ROWS_PER_LOWERED * len(lower) + _ROWS_PER_LOWER_END * sum(lower)
        told.written_by = _written_by(request.reported_at_us, call)
    if watermarks.raise_ends(state.watermarks, topic.stream_id, topic.id, changes) or lower:
        _tell(topic, told, rows, call)
    return b""


def list_watermarks(
    state: StreamsState, request: api.ListWatermarksRequest, call: Call
) -> api.ListWatermarksResponse:
    """Return a page of a topic's watermarks."""
    caller = authenticate(state, call)
    topic = find_topic(state, caller, gates.READ_TOPIC, request.stream, request.topic)
    size = offsets_page_size(request.page_size)
    pages = PagedList("ListWatermarks", topic.id)
    start = pages.begin(request.page_token)
    response = api.ListWatermarksResponse()
    for each in _known(state, topic, start):
        if len(response.watermarks) == size:
            response.next_page_token = pages.id_token(each.partition)
            break
        response.watermarks.append(each)
    return response


COMMANDS: Final[Mapping[str, CommandHandler[StreamsState]]] = {
    "TruncatePartitions": truncate_partitions,
    "ReportPartitionEnds": report_partition_ends,
}


def rows_of(topic: Topic, call: Call) -> int:
    """Return how many rows of watermarks a topic may have; none below the level."""
    return offset_rows.row_count(topic.partitions_count) if call.keeps_offsets else 0


def forgetting_rows(watermark_rows: int, call: Call) -> int:
    """Return what it costs consumer groups to forget so many rows, with what they remember."""
    return watermark_rows * (_ROWS_PER_FORGOTTEN if call.keeps_times else 1)


def _reported(
    state: StreamsState, request: Any, offsets: Sequence[PartitionOffset], gate: Gate, call: Call
) -> tuple[Topic, ByRow, int]:
    """Return the topic, the offsets by row, and the cost of both. Raises Refusal."""
    topic = find_topic(state, authenticate(state, call), gate, request.stream, request.topic)
    if not 1 <= len(offsets) <= limits.OFFSETS_PER_REQUEST_MAX:
        raise watermarks.invalid_offsets_count(len(offsets))
    looked_at = len(offsets) // OFFSETS_PER_ROW_OF_WORK
    call.charge(looked_at)
    told = [(each.partition, each.offset) for each in offsets]
    partition, highest = max(told)[0], max(offset for _, offset in told)
    if partition >= topic.partitions_count:
        raise refusals.partition_not_found(topic.name, partition, topic.partitions_count)
    if highest > limits.OFFSET_MAX:
        raise watermarks.impossible_offset(highest)
    changes = offset_rows.by_row(told)
    replaced = ROWS_PER_REPLACED * len(changes)
    call.charge(replaced)
    return topic, changes, looked_at + replaced


def _check_broker(
    state: StreamsState,
    topic: Topic,
    request: api.TruncatePartitionsRequest | api.ReportPartitionEndsRequest,
    offsets: Sequence[PartitionOffset],
    call: Call,
) -> None:
    """Raise Refusal unless the broker of a report leads those of its partitions that are placed."""
    stamp = request.broker
    if request.HasField("broker"):
        acting_broker(state, authenticate(state, call), stamp, call)
    call.charge(len(offsets))
    placed = (
        each.partition for each in offsets if state.placements.of(topic.id, each.partition).replicas
    )
    check_leads(state, topic, placed, stamp, call)


def _written_by(reported_at_us: int, call: Call) -> int:
    """Return by when everything below the ends of a report was written; 0 if nobody knows.

    The reporter's clock may be behind; and so may log time, if a primary has not heard enough
    clocks yet. What both have reached is late enough. A clock that is far ahead says nothing.
    """
    if reported_at_us > call.timestamp + limits.REPORT_AHEAD_US_MAX:
        return 0
    return max(reported_at_us, call.timestamp)


def _tell(topic: Topic, told: effects_pb2.OffsetsReported, rows: int, call: Call) -> None:
    """Tell consumer groups of a report that costs so many rows there."""
    told.stream_id, told.topic_id = topic.stream_id, topic.id
    payload = effects_pb2.EffectPayload(offsets_reported=told)
    call.emit((routing_pb2.STAGE_CONSUMER_GROUPS,), payload, limits.EFFECT_ROWS + rows)


def _known(state: StreamsState, topic: Topic, start: int) -> Iterator[streams_pb2.Watermarks]:
    """Yield what was reported of partitions from `start` on, ascending."""
    first_number, first_index = offset_rows.place(start)
    for number in range(first_number, offset_rows.row_count(topic.partitions_count)):
        row = state.watermarks.rows.get((topic.id, number))
        if row is None:
            continue
        ends, first = offset_rows.unpack(row.ends), offset_rows.first_partition(number)
        for index in range(first_index if number == first_number else 0, len(ends)):
            if ends[index]:
                yield streams_pb2.Watermarks(
                    partition=first + index,
                    start_offset=offset_rows.at(row.starts, index),
                    end_offset=ends[index] - 1,
                )
