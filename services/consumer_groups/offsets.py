"""How far groups have read: offsets that their members commit, and what administrators do to them.

An offset is judged against the watermarks that the data plane has reported: one that lies outside
is refused unless the caller allows it, and nothing is corrected silently. Of a partition of which
nothing was reported every offset is accepted.

Offsets belong to partitions that a group knows and that were never deleted: an offset of a deleted
partition goes before another partition gets its number (`services.consumer_groups.chores`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from google.protobuf.message import Message

from services.consumer_groups import resets
from services.consumer_groups.lookup import (
    check_present_epoch,
    find_group,
    find_member,
    kept_partitions,
    require_session,
    topic_of,
)
from services.consumer_groups.model import Group, GroupsState, Member, contains
from services.consumer_groups.resets import NOTHING_REPORTED, Target
from services.consumer_groups.retention import note_commit, note_offsets
from services.runtime import offset_rows
from services.runtime.cost import RETRY_DELAY_MS
from services.runtime.domain import Call, CommandHandler
from services.runtime.offset_rows import ByRow
from services.runtime.watermarks import (
    OFFSETS_PER_ROW_OF_WORK,
    ROWS_PER_REPLACED,
    impossible_offset,
    invalid_offsets_count,
)
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import PartitionOffset
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as entities
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.paging import PagedList, offsets_page_size

# The cost, in rows, of setting all offsets of one row of them, and of finding them by time before.
_ROWS_PER_WHOLE_ROW: Final = 8
_ROWS_PER_FOUND_ROW: Final = 4


def commit_offsets(state: GroupsState, request: api.CommitOffsetsRequest, call: Call) -> bytes:
    """Store the offsets of a member, or of a group without members."""
    group = find_group(state, request, call)
    _check_unchanged(group, request, call)
    changes = _offsets_of(state, group, request.offsets, call)
    member = _committer(state, group, request, call)
    if member is not None:
        check_present_epoch(member, request.member_epoch)
        _check_owned(member, request.offsets, call)
    if not request.allow_out_of_range:
        _check_range(state, group, changes)
    has_changed = _store(state, group, changes)
    if member is None:
        note_commit(state, group, call)
    if has_changed:
        note_offsets(state, group, call)
    return b""


def reset_offsets(state: GroupsState, request: api.ResetOffsetsRequest, call: Call) -> bytes:
    """Set offsets of a group without members."""
    group = _find_empty_group(state, request, call)
    target, has_changed = resets.target_of(request, call), False
    if target is None:
        changes = _offsets_of(state, group, request.offsets, call)
        if not request.allow_out_of_range:
            _check_range(state, group, changes)
    elif request.partitions:
        changes = _reported_of(state, group, target, request.partitions, call)
    else:
        changes, has_changed = {}, _reset_all(state, group, target, call)
    has_changed |= _store(state, group, changes)
    note_commit(state, group, call)
    if has_changed:
        note_offsets(state, group, call)
    return b""


def delete_offsets(state: GroupsState, request: api.DeleteOffsetsRequest, call: Call) -> bytes:
    """Forget offsets of a group without members."""
    group = _find_empty_group(state, request, call)
    if request.partitions:
        has_changed = _forget(state, group, request.partitions, call)
    else:
        call.charge(ROWS_PER_REPLACED * state.offset_rows_max(group))
        has_changed = state.drop_offsets(group)
    if has_changed:
        note_offsets(state, group, call)
    return b""


def fetch_offsets(state: GroupsState, request: api.FetchOffsetsRequest, call: Call) -> Message:
    """Return a page of a group's offsets, with what the data plane has reported."""
    group = find_group(state, request, call)
    size = offsets_page_size(request.page_size)
    pages = PagedList("FetchOffsets", group.id)
    start = pages.begin(request.page_token)
    partitions: Iterable[int] | None = None
    if request.partitions:
        named = _named(state, group, request.partitions, call)
        partitions = sorted(partition for partition in named if partition >= start)
    response = api.FetchOffsetsResponse(offsets_revision=group.offsets_revision)
    for each in _committed(state, group, start, _known_partitions(state, group, call), partitions):
        if len(response.offsets) == size:
            response.next_page_token = pages.id_token(each.partition)
            break
        response.offsets.append(each)
    return response


COMMANDS: Final[Mapping[str, CommandHandler[GroupsState]]] = {
    "CommitOffsets": commit_offsets,
    "ResetOffsets": reset_offsets,
    "DeleteOffsets": delete_offsets,
}


# --- Who may do it ---


def _committer(
    state: GroupsState, group: Group, request: api.CommitOffsetsRequest, call: Call
) -> Member | None:
    """Return the member that commits, None for a group without members. Raises Refusal."""
    if not (request.member_epoch or request.session_id or state.members_count(group.id)):
        return None
    if request.session_id in (0, call.session_id):
        return find_member(state, group, require_session(call))
    member = find_member(state, group, request.session_id)
    if member.user_id != call.user_id and not topic_of(call).caller_manages:
        raise Refusal.of(
            Reason.REASON_PERMISSION_DENIED,
            "here",
            user_id=call.user_id,
            permission="manage_topic",
        )
    return member


def _check_owned(member: Member, offsets: Sequence[PartitionOffset], call: Call) -> None:
    """Raise PARTITION_NOT_OWNED unless the member holds each partition. It costs a search each."""
    call.charge(len(offsets) // OFFSETS_PER_ROW_OF_WORK)
    for each in offsets:
        partition = each.partition
        if not (contains(member.owned, partition) or contains(member.revoking, partition)):
            raise Refusal.of(
                Reason.REASON_PARTITION_NOT_OWNED,
                partition=partition,
                session_id=member.session_id,
                group_id=member.group_id,
            )


def _find_empty_group(state: GroupsState, request: Any, call: Call) -> Group:
    group = find_group(state, request, call)
    members_count = state.members_count(group.id)
    if members_count:
        raise Refusal.of(
            Reason.REASON_GROUP_NOT_EMPTY, group_id=group.id, members_count=members_count
        )
    _check_unchanged(group, request, call)
    return group


def _check_unchanged(group: Group, request: Any, call: Call) -> None:
    """Raise REVISION_MISMATCH if the offsets changed since the revision that a request names."""
    if not (call.has_guards and request.HasField("expected_revision")):
        return
    if request.expected_revision != group.offsets_revision:
        raise Refusal.of(
            Reason.REASON_REVISION_MISMATCH,
            "offsets",
            group_id=group.id,
            modified_revision=group.offsets_revision,
            expected_revision=request.expected_revision,
        )


# --- What requests name ---


def _offsets_of(
    state: GroupsState, group: Group, offsets: Sequence[PartitionOffset], call: Call
) -> ByRow:
    """Return the offsets of a request by row, checked and paid for. Raises Refusal."""
    if not offsets:
        raise invalid_offsets_count(0)
    told = [(each.partition, each.offset) for each in _bounded(offsets, call)]
    _check_partitions(state, group, max(told)[0], call)
    highest = max(offset for _, offset in told)
    if highest > limits.OFFSET_MAX:
        raise impossible_offset(highest)
    changes = offset_rows.by_row(told)
    _check_each_once(changes, len(told))
    call.charge(ROWS_PER_REPLACED * len(changes))
    return changes


def _named(
    state: GroupsState, group: Group, partitions: Sequence[int], call: Call
) -> Sequence[int]:
    """Return the partitions that a request names, each once. Raises Refusal."""
    named = _bounded(partitions, call)
    _check_partitions(state, group, max(named), call)
    if len(set(named)) != len(named):
        raise Refusal.of(Reason.REASON_MALFORMED_REQUEST, "partition_twice")
    return named


def _bounded(named: Sequence[Any], call: Call) -> Sequence[Any]:
    if len(named) > limits.OFFSETS_PER_REQUEST_MAX:
        raise invalid_offsets_count(len(named))
    call.charge(len(named) // OFFSETS_PER_ROW_OF_WORK)
    return named


def _check_partitions(state: GroupsState, group: Group, highest: int, call: Call) -> None:
    """Raise PARTITION_NOT_FOUND, or OVERLOADED for one that the group has not heard of yet."""
    if highest < _known_partitions(state, group, call):
        return
    existing = topic_of(call).partitions_count
    if highest < existing:
        raise Refusal.of(
            Reason.REASON_OVERLOADED,
            "partitions_change",
            group_id=group.id,
            partition=highest,
            retry_delay_ms=RETRY_DELAY_MS,
        )
    raise Refusal.of(
        Reason.REASON_PARTITION_NOT_FOUND,
        "beyond",
        topic=group.topic_id,
        partition=highest,
        existing=existing,
    )


def _known_partitions(state: GroupsState, group: Group, call: Call) -> int:
    return min(kept_partitions(state, topic_of(call)), group.partitions_count)


def _check_each_once(changes: ByRow, count: int) -> None:
    if sum(map(len, changes.values())) != count:
        raise Refusal.of(Reason.REASON_MALFORMED_REQUEST, "partition_twice")


# --- What the data plane has reported ---


def _check_range(state: GroupsState, group: Group, changes: ByRow) -> None:
    """Raise OFFSET_OUT_OF_RANGE for an offset that its partition is known not to hold."""
    for number in sorted(changes):
        known = state.watermarks.rows.get((group.topic_id, number))
        if known is None:
            continue
        for index, offset in changes[number].items():
            start, end = offset_rows.at(known.starts, index), offset_rows.at(known.ends, index) - 1
            if end >= 0 and not start <= offset <= end:
                raise Refusal.of(
                    Reason.REASON_OFFSET_OUT_OF_RANGE,
                    "reported",
                    partition=offset_rows.first_partition(number) + index,
                    offset=offset,
                    start_offset=start,
                    end_offset=end,
                )


def _reported_of(
    state: GroupsState, group: Group, target: Target, partitions: Sequence[int], call: Call
) -> ByRow:
    """Return where some partitions are to be read on. Raises OFFSET_OUT_OF_RANGE."""
    named = _named(state, group, partitions, call)
    changes = offset_rows.by_row(
        (each, resets.offset_of(state, group.topic_id, each, target)) for each in named
    )
    call.charge(ROWS_PER_REPLACED * len(changes))
    return changes


def _reset_all(state: GroupsState, group: Group, target: Target, call: Call) -> bool:
    """Set all offsets of a group, row by row; return whether one differed.

    Raises OFFSET_OUT_OF_RANGE.
    """
    has_changed = False
    count = _known_partitions(state, group, call)
    found = _ROWS_PER_FOUND_ROW if target.time_us else 0
    call.charge((_ROWS_PER_WHOLE_ROW + found) * offset_rows.row_count(count))
    for number in range(offset_rows.row_count(count)):
        size = min(count - offset_rows.first_partition(number), limits.PARTITIONS_PER_OFFSETS_ROW)
        plus_one = resets.plus_one_of_row(state, group.topic_id, number, size, target)
        has_changed |= state.set_offsets(group.id, number, offset_rows.pack(plus_one))
    return has_changed


# --- What is kept ---


def _store(state: GroupsState, group: Group, changes: ByRow) -> bool:
    """Replace offsets, and return whether one differed. A row has each plus one: 0 means none."""
    has_changed = False
    for number in sorted(changes):
        kept = {index: offset + 1 for index, offset in changes[number].items()}
        has_changed |= state.replace_offsets(group.id, number, kept)
    return has_changed


def _forget(state: GroupsState, group: Group, partitions: Sequence[int], call: Call) -> bool:
    """Forget offsets of some partitions, and return whether there was one."""
    named = _named(state, group, partitions, call)
    changes = offset_rows.by_row((partition, 0) for partition in named)
    call.charge(ROWS_PER_REPLACED * len(changes))
    has_changed = False
    for number in sorted(changes):
        if (group.id, number) in state.offsets:
            has_changed |= state.replace_offsets(group.id, number, changes[number])
    return has_changed


def _committed(
    state: GroupsState, group: Group, start: int, end: int, partitions: Iterable[int] | None
) -> Iterator[entities.CommittedOffset]:
    """Yield the offsets of the partitions, or of all from `start` to `end`, ascending."""
    if partitions is None:
        yield from _committed_from(state, group, start, end)
        return
    for partition in partitions:
        number, index = offset_rows.place(partition)
        row = state.offsets.rows.get((group.id, number))
        kept = 0 if row is None else offset_rows.at(row.offsets, index)
        if kept:
            reported = state.watermarks.rows.get((group.topic_id, number), NOTHING_REPORTED)
            known = offset_rows.at(reported.starts, index), offset_rows.at(reported.ends, index)
            yield _view(partition, kept - 1, *known)


def _committed_from(
    state: GroupsState, group: Group, start: int, end: int
) -> Iterator[entities.CommittedOffset]:
    """Yield all offsets of partitions from `start` to `end`: each row is unpacked once."""
    first_number, _ = offset_rows.place(start)
    for number in range(first_number, offset_rows.row_count(end)):
        row = state.offsets.rows.get((group.id, number))
        if row is None:
            continue
        reported = state.watermarks.rows.get((group.topic_id, number), NOTHING_REPORTED)
        kept = offset_rows.unpack(row.offsets)
        starts = offset_rows.unpack(reported.starts)
        ends = offset_rows.unpack(reported.ends)
        first = offset_rows.first_partition(number)
        told = zip_longest(kept, starts[: len(kept)], ends[: len(kept)], fillvalue=0)
        for partition, (offset, start_offset, end_offset) in enumerate(told, first):
            if offset and start <= partition < end:
                yield _view(partition, offset - 1, start_offset, end_offset)


def _view(partition: int, offset: int, start: int, end_plus_one: int) -> entities.CommittedOffset:
    view = entities.CommittedOffset(partition=partition, offset=offset)
    if end_plus_one:
        end = end_plus_one - 1
        view.start_offset, view.end_offset = start, end
        view.lag = max(0, end - max(offset, start))
    return view
