"""How far groups have read, in plain words: each function decides one command, or one read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from testkit.composite.model_groups import (
    MANAGE,
    READ,
    ROW,
    Handler,
    check_session,
    named_group,
    present_member,
)
from testkit.composite.model_pages import page_of
from testkit.composite.model_retention import change_offsets, note_commit
from testkit.composite.model_times import found_offsets, offset_for
from testkit.composite.world import (
    Call,
    CompositeModelState,
    CompositeRefused,
    Group,
    Member,
    Topic,
    check_revision,
)
from viewstamp.limits import FEATURE_LEVEL_TIMES

EARLIEST, LATEST, TIME = 1, 2, 3
TARGETS: Final = (EARLIEST, LATEST, TIME)
TARGET_NAMES: Final = {EARLIEST: "earliest", LATEST: "latest", TIME: "a time"}
# Offsets are below: what a signed number of 64 bits can say.
OFFSETS_END: Final = 1 << 63


def commit_offsets(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Store offsets of a member, or of a group without members."""
    group = named_group(topic, request)
    _check_unchanged(world, group, request)
    told = _told(topic, request.offsets)
    member = _committer(world, topic, group, request, call)
    if member is not None:
        _check_reached(world, member, request.member_epoch)
        _check_held(group, member, [partition for partition, _ in told])
    _store(world, topic, group, request, told, "committed", call)
    if member is None:
        note_commit(group, call)
    world.turns |= _turns_of_commit(world, topic, member, call, told)
    return {}


def reset_offsets(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Set offsets of a group without members."""
    group = _empty_group(world, topic, request)
    is_timed = world.level >= FEATURE_LEVEL_TIMES
    time_us = request.time_us if is_timed else 0
    if not request.to and not request.partitions and not time_us:
        _store(world, topic, group, request, _told(topic, request.offsets), "reset", call)
        note_commit(group, call)
        return {}
    if request.to not in TARGETS[: 3 if is_timed else 2] or request.offsets:
        raise CompositeRefused("INVALID_OPTION", to=request.to)
    if request.allow_out_of_range or (request.to == TIME) != bool(time_us):
        raise CompositeRefused("INVALID_OPTION", to=request.to)
    wanted = list(request.partitions) or range(len(topic.partitions))
    _check_partitions(topic, wanted)
    for partition in wanted:
        if request.to == LATEST and partition not in topic.ends:
            raise CompositeRefused("OFFSET_OUT_OF_RANGE", partition=partition)
    reset = {each: _target(topic, each, request.to, time_us) for each in wanted}
    change_offsets(world, group, group.offsets | reset, call)
    note_commit(group, call)
    which = "some" if request.partitions else "all" if len(wanted) <= ROW else "all of two rows"
    world.turns.add(f"{which} reset to {TARGET_NAMES[request.to]}")
    return {}


def delete_offsets(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Forget offsets of a group without members."""
    group = _empty_group(world, topic, request)
    _check_partitions(topic, request.partitions)
    gone = set(request.partitions or group.offsets) & group.offsets.keys()
    kept = {each: offset for each, offset in group.offsets.items() if each not in gone}
    change_offsets(world, group, kept, call)
    if gone:
        world.turns.add("some deleted" if request.partitions else "all deleted")
    return {}


def fetch_offsets(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Read how far a group has read, and how far it lags behind."""
    group = named_group(topic, request)
    known = sorted(set(request.partitions or group.offsets) & group.offsets.keys())
    views = [_view(topic, partition, group.offsets[partition]) for partition in known]
    page, next_token = page_of("FetchOffsets", group.id, request, views)
    _check_partitions(topic, request.partitions)
    if next_token:
        world.turns.add("offsets in pages")
    return {
        "offsets": page,
        "next_page_token": next_token,
        "offsets_revision": group.offsets_revision,
    }


def find_offsets(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Read where to read what was written from a time on."""
    wanted = request.partitions or range(len(topic.partitions))
    views = found_offsets(topic, wanted, request.time_us)
    page, next_token = page_of("FindOffsets", topic.id, request, views)
    _check_partitions(topic, request.partitions)
    if next_token:
        world.turns.add("found offsets in pages")
    if any(view["written_by"] for view in page):
        world.turns.add("found after a report")
    return {"offsets": page, "next_page_token": next_token}


POLL = ("poll_messages",)
ON_TOPICS: Final[dict[str, tuple[tuple[str, ...], Handler]]] = {
    "CommitOffsets": (POLL, commit_offsets),
    "ResetOffsets": (MANAGE, reset_offsets),
    "DeleteOffsets": (MANAGE, delete_offsets),
    "FetchOffsets": (POLL, fetch_offsets),
    "FindOffsets": (READ, find_offsets),
}


# --- Who may do it ---


def _committer(
    world: CompositeModelState, topic: Topic, group: Group, request: Any, call: Call
) -> Member | None:
    """Return whose offsets a commit stores: a member's, or None for those of the group alone."""
    if not group.members and not request.member_epoch and not request.session_id:
        return None
    if not request.session_id:
        check_session(call)
    member = present_member(group, request.session_id or call.session_id)
    if member.user_id != call.user_id and not _manages(world, topic, call):
        world.turns.add("broker refused")
        raise CompositeRefused("PERMISSION_DENIED", permission="manage_topic")
    return member


def _manages(world: CompositeModelState, topic: Topic, call: Call) -> bool:
    """Return whether the caller may change a topic."""
    stream = next(each for each in world.streams.values() if topic.id in each.topics)
    return bool(world.rights(world.users[call.user_id], (stream.id, topic.id)) & set(MANAGE))


def _check_reached(world: CompositeModelState, member: Member, epoch: int) -> None:
    """Refuse an epoch that a member has not reached, or has left."""
    if epoch != member.epoch:
        if epoch == member.previous_epoch:
            world.turns.add("epoch before refused")
        raise CompositeRefused("FENCED_MEMBER_EPOCH", member_epoch=member.epoch)


def _check_held(group: Group, member: Member, partitions: list[int]) -> None:
    """Refuse partitions that a member neither owns nor gives up."""
    if not set(partitions) <= member.owned | member.revoking:
        who = {"session_id": member.session_id, "group_id": group.id}
        raise CompositeRefused("PARTITION_NOT_OWNED", **who)


def _empty_group(world: CompositeModelState, topic: Topic, request: Any) -> Group:
    group = named_group(topic, request)
    if group.members:
        raise CompositeRefused("GROUP_NOT_EMPTY", members_count=len(group.members))
    _check_unchanged(world, group, request)
    return group


def _check_unchanged(world: CompositeModelState, group: Group, request: Any) -> None:
    if world.has_guards:
        check_revision(request, group.offsets_revision)


# --- Offsets ---


def _told(topic: Topic, offsets: Iterable[Any]) -> list[tuple[int, int]]:
    """Return the offsets of a request by partition, all of which make sense."""
    told = [(each.partition, each.offset) for each in offsets]
    if not told:
        raise CompositeRefused("MALFORMED_REQUEST", offsets_count=0)
    _check_exist(topic, [partition for partition, _ in told])
    if any(offset >= OFFSETS_END for _, offset in told):
        raise CompositeRefused("OFFSET_OUT_OF_RANGE", limit=OFFSETS_END - 1)
    _check_once([partition for partition, _ in told])
    return told


def _check_partitions(topic: Topic, partitions: Iterable[int]) -> None:
    named = list(partitions)
    _check_exist(topic, named)
    _check_once(named)


def _check_exist(topic: Topic, partitions: list[int]) -> None:
    if any(partition >= len(topic.partitions) for partition in partitions):
        raise CompositeRefused("PARTITION_NOT_FOUND", existing=len(topic.partitions))


def _check_once(partitions: list[int]) -> None:
    if len(set(partitions)) < len(partitions):
        raise CompositeRefused("MALFORMED_REQUEST")


def _store(
    world: CompositeModelState,
    topic: Topic,
    group: Group,
    request: Any,
    told: list[tuple[int, int]],
    what_happens: str,
    call: Call,
) -> None:
    """Replace offsets; those that partitions are known not to hold only if the caller says so."""
    outside = [each for each in told if _where(topic, *each) == "out of range"]
    if outside and not request.allow_out_of_range:
        details = {} if len(outside) > 1 else _bounds(topic, outside[0][0])  # of any of several
        raise CompositeRefused("OFFSET_OUT_OF_RANGE", **details)
    change_offsets(world, group, group.offsets | dict(told), call)
    world.turns |= {f"{what_happens} {_where(topic, *each)}" for each in told}


def _target(topic: Topic, partition: int, to: int, time_us: int) -> int:
    """Return where a partition is to be read on."""
    if to == TIME:
        return offset_for(topic, partition, time_us)[0]
    return (topic.starts if to == EARLIEST else topic.ends).get(partition, 0)


def _bounds(topic: Topic, partition: int) -> dict[str, int]:
    start, end = topic.starts.get(partition, 0), topic.ends.get(partition, 0)
    return {"partition": partition, "start_offset": start, "end_offset": end}


def _where(topic: Topic, partition: int, offset: int) -> str:
    """Return where an offset lies."""
    if partition not in topic.ends:
        return "where nothing was reported"
    start, end = topic.starts.get(partition, 0), topic.ends[partition]
    if not start <= offset <= end:
        return "out of range"
    if offset == start:
        return "at the first offset"
    return "at the end" if offset == end else "in between"


def _view(topic: Topic, partition: int, offset: int) -> dict[str, Any]:
    """Return an offset as it is read; what brokers say of the partition only if they do."""
    view = {"partition": partition, "offset": offset}
    if partition in topic.ends:
        start, end = topic.starts.get(partition, 0), topic.ends[partition]
        view |= {"start_offset": start, "end_offset": end, "lag": max(0, end - max(offset, start))}
    return view


def _turns_of_commit(
    world: CompositeModelState,
    topic: Topic,
    member: Member | None,
    call: Call,
    told: list[tuple[int, int]],
) -> set[str]:
    """Return what was special about a commit that succeeded."""
    if member is None:
        return {"committed without members"}
    turns = {"committed by a member"}
    if member.user_id != call.user_id:
        turns = {"committed for another user"}
    elif member.session_id != call.session_id:
        turns = set() if _manages(world, topic, call) else {"committed for the own user"}
    if any(partition in member.revoking for partition, _ in told):
        turns.add("committed while revoking")
    return turns
