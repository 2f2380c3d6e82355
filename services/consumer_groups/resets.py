"""Where a group is to read on: where data begins or ends, or what was written from a time on.

An offset for a time is never higher than the first that was written then, as far as reports are
true; it may be lower: see `services.consumer_groups.marks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import Message

from services.consumer_groups.lookup import topic_of
from services.consumer_groups.model import GroupsState
from services.runtime import offset_rows
from services.runtime.domain import Call
from services.runtime.offset_rows import EMPTY
from services.runtime.watermarks import Watermarks, invalid_offsets_count
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as entities
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1.effects_pb2 import TopicContext
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.paging import PagedList, offsets_page_size

NOTHING_REPORTED: Final = Watermarks(0, 0, 0, EMPTY, EMPTY)
_RESETS: Final = (api.OFFSET_RESET_EARLIEST, api.OFFSET_RESET_LATEST, api.OFFSET_RESET_TIME)


class Target(NamedTuple):
    """Where to set offsets."""

    to: int  # an api.OffsetReset, not UNSPECIFIED
    time_us: int  # of OFFSET_RESET_TIME


def target_of(request: api.ResetOffsetsRequest, call: Call) -> Target | None:
    """Return where a request sets offsets, None for its own. Raises INVALID_OPTION.

    Below the level nobody knows the field of the time, so a reset to a time has none.
    """
    to, time_us = request.to, request.time_us if call.keeps_times else 0
    if to == api.OFFSET_RESET_UNSPECIFIED and not request.partitions and not time_us:
        return None
    is_timed = to == api.OFFSET_RESET_TIME
    has_offsets = request.offsets or request.allow_out_of_range
    if to not in _RESETS or is_timed != bool(time_us) or has_offsets:
        raise Refusal.of(Reason.REASON_INVALID_OPTION, "reset_to", to=to)
    return Target(to, time_us)


def offset_of(state: GroupsState, topic_id: int, partition: int, target: Target) -> int:
    """Return where one partition is to be read on. Raises OFFSET_OUT_OF_RANGE."""
    number, index = offset_rows.place(partition)
    row = state.watermarks.rows.get((topic_id, number), NOTHING_REPORTED)
    if target.to == api.OFFSET_RESET_LATEST:
        end_plus_one = offset_rows.at(row.ends, index)
        if not end_plus_one:
            raise _not_reported(partition)
        return end_plus_one - 1
    start = offset_rows.at(row.starts, index)
    if target.to == api.OFFSET_RESET_EARLIEST:
        return start
    _, ends = _written_before(state, topic_id, number, target.time_us)
    return max(start, offset_rows.at(ends, index) - 1)


def plus_one_of_row(
    state: GroupsState, topic_id: int, number: int, size: int, target: Target
) -> Sequence[int]:
    """Return the same of the first `size` partitions of a row, each plus one.

    Raises OFFSET_OUT_OF_RANGE.
    """
    row = state.watermarks.rows.get((topic_id, number), NOTHING_REPORTED)
    if target.to == api.OFFSET_RESET_LATEST:
        ends_plus_one = _filled(row.ends, size)
        if 0 in ends_plus_one:
            raise _not_reported(offset_rows.first_partition(number) + ends_plus_one.index(0))
        return ends_plus_one
    starts_plus_one = [start + 1 for start in _filled(row.starts, size)]
    if target.to == api.OFFSET_RESET_EARLIEST:
        return starts_plus_one
    _, ends = _written_before(state, topic_id, number, target.time_us)
    return list(map(max, starts_plus_one, _filled(ends, size)))


def find_offsets(state: GroupsState, request: api.FindOffsetsRequest, call: Call) -> Message:
    """Return a page of where a reader begins who wants what was written from a time on."""
    topic = topic_of(call)
    size = offsets_page_size(request.page_size)
    pages = PagedList("FindOffsets", topic.topic_id)
    start = pages.begin(request.page_token)
    rows = _named_by_row(topic, request.partitions, start)
    response = api.FindOffsetsResponse()
    for each in _found(state, topic.topic_id, rows, request.time_us):
        if len(response.offsets) == size:
            response.next_page_token = pages.id_token(each.partition)
            break
        response.offsets.append(each)
    return response


def _named_by_row(
    topic: TopicContext, partitions: Sequence[int], start: int
) -> Iterator[tuple[int, Sequence[int]]]:
    """Return rows and indexes of the partitions from `start` on, or of all. Raises Refusal."""
    if not partitions:
        return _all_by_row(start, topic.partitions_count)
    if len(partitions) > limits.OFFSETS_PER_REQUEST_MAX:
        raise invalid_offsets_count(len(partitions))
    if max(partitions) >= topic.partitions_count:
        raise Refusal.of(
            Reason.REASON_PARTITION_NOT_FOUND,
            "beyond",
            topic=topic.topic_id,
            partition=max(partitions),
            existing=topic.partitions_count,
        )
    if len(set(partitions)) != len(partitions):
        raise Refusal.of(Reason.REASON_MALFORMED_REQUEST, "partition_twice")
    by_row = offset_rows.by_row((each, 0) for each in sorted(partitions) if each >= start)
    return ((number, list(indexes)) for number, indexes in by_row.items())


def _all_by_row(start: int, end: int) -> Iterator[tuple[int, Sequence[int]]]:
    number, index = offset_rows.place(start)
    while offset_rows.first_partition(number) < end:
        size = min(end - offset_rows.first_partition(number), limits.PARTITIONS_PER_OFFSETS_ROW)
        yield number, range(index, size)
        number, index = number + 1, 0


def _found(
    state: GroupsState, topic_id: int, rows: Iterator[tuple[int, Sequence[int]]], time_us: int
) -> Iterator[entities.FoundOffset]:
    """Yield where reported partitions are to be read on, in the order of the rows."""
    for number, indexes in rows:
        row = state.watermarks.rows.get((topic_id, number))
        if row is None:
            continue
        written_by, written_row = _written_before(state, topic_id, number, time_us)
        first, ends = offset_rows.first_partition(number), offset_rows.unpack(row.ends)
        starts, written = _filled(row.starts, len(ends)), _filled(written_row, len(ends))
        for index in indexes:
            if index < len(ends) and ends[index]:
                reported = starts[index], ends[index], written[index]
                yield _view(first + index, *reported, written_by)


def _view(
    partition: int, start: int, end_plus_one: int, written_plus_one: int, written_by: int
) -> entities.FoundOffset:
    is_remembered = written_plus_one - 1 > start
    return entities.FoundOffset(
        partition=partition,
        offset=written_plus_one - 1 if is_remembered else start,
        written_by=written_by if is_remembered else 0,
        start_offset=start,
        end_offset=end_plus_one - 1,
    )


def _written_before(
    state: GroupsState, topic_id: int, number: int, time_us: int
) -> tuple[int, bytes]:
    """Return below which ends of a row all was written before a time, and by when it was."""
    row = state.marks.rows.get((topic_id, number))
    return (0, EMPTY) if row is None else row.before(time_us)


def _filled(row: bytes, size: int) -> list[int]:
    """Return so many offsets of a row; 0 where it has none."""
    offsets = offset_rows.unpack(row)[:size]
    return [*offsets, *[0] * (size - len(offsets))]


def _not_reported(partition: int) -> Refusal:
    return Refusal.of(Reason.REASON_OFFSET_OUT_OF_RANGE, "not_reported", partition=partition)
