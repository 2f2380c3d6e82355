"""Commands of the domain, by RPC name. Streams has resolved and authorized the topic before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import Message

from services.consumer_groups import membership, offsets, retention
from services.consumer_groups.assignment import assign, assignment_number, tell_partitions
from services.consumer_groups.chores import below, sweep
from services.consumer_groups.lookup import (
    check_epoch,
    find_group,
    find_member,
    kept_partitions,
    require_session,
    topic_of,
)
from services.consumer_groups.model import (
    FIRST_GROUP_EPOCH,
    NEXT_GROUP_ID,
    US_PER_MS,
    Group,
    GroupsState,
    Member,
)
from services.runtime.domain import Call, CommandHandler
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as entities
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.framing import encode_varint
from viewstamp.names import check_name

# Assignors a request may name, and what they are stored as.
_ASSIGNORS: Final[Mapping[int, int]] = {
    entities.ASSIGNOR_UNSPECIFIED: entities.ASSIGNOR_UNIFORM,
    entities.ASSIGNOR_UNIFORM: entities.ASSIGNOR_UNIFORM,
    entities.ASSIGNOR_RANGE: entities.ASSIGNOR_RANGE,
}
# Costs in rows: to remove a group, to remove a member with it, to end a membership, to find a
# target for one; then partitions listed, given, and assigned for one row.
_ROWS_PER_GROUP: Final = 8
_ROWS_PER_REMOVED_MEMBER: Final = 4
_ROWS_PER_MEMBERSHIP: Final = 12
_ROWS_PER_ASSIGNED_MEMBER: Final = 4
_PARTITIONS_PER_ROW: Final = 16
_GIVEN_PER_ROW: Final = 64
_ASSIGNED_PER_ROW: Final = 4
# Field 2, a varint: the whole of JoinConsumerGroupResponse, written by hand for speed.
_MEMBER_EPOCH_TAG: Final = b"\x10"


def create_consumer_group(
    state: GroupsState, request: api.CreateConsumerGroupRequest, call: Call
) -> Message:
    """Create a group without members."""
    _check_name("", request.name, Reason.REASON_INVALID_GROUP_NAME)
    assignor = _stored_assignor(request.assignor)
    topic = topic_of(call)
    if (topic.stream_id, topic.topic_id, request.name) in state.names:
        raise _group_exists(request.name, topic.topic_id)
    group = Group(
        id=state.next_group_id(),
        stream_id=topic.stream_id,
        topic_id=topic.topic_id,
        name=request.name,
        assignor=assignor,
        group_epoch=FIRST_GROUP_EPOCH,
        assignment_epoch=FIRST_GROUP_EPOCH,
        partitions_count=topic.partitions_count,
        created_at=call.timestamp,
        created_revision=call.revision,
        modified_revision=call.revision,
        member_timeout_ms=_member_timeout_ms(request.member_timeout_ms, call),
        offsets_retention_ms=_retention_ms(request.offsets_retention_ms, call),
    )
    state.counters.put(NEXT_GROUP_ID, group.id + 1)
    state.insert_group(group)
    return api.CreateConsumerGroupResponse(group_id=group.id)


def update_consumer_group(
    state: GroupsState, request: api.UpdateConsumerGroupRequest, call: Call
) -> bytes:
    """Change how a group divides partitions, and how long its members may be silent."""
    group = find_group(state, request, call)
    if request.HasField("expected_revision"):
        _check_revision(group, request.expected_revision)
    changed = group
    if request.HasField("member_timeout_ms"):
        timeout_ms = _member_timeout_ms(request.member_timeout_ms, call)
        changed = changed._replace(member_timeout_ms=timeout_ms)
    if request.HasField("offsets_retention_ms"):
        changed = _with_retention(state, changed, request.offsets_retention_ms, call)
    if request.assignor:
        changed = changed._replace(assignor=_stored_assignor(request.assignor))
    if changed != group:
        changed = changed._replace(modified_revision=call.revision)
        state.groups.put(group.id, changed)
    if changed.assignor != group.assignor:
        membership.raise_group_epoch(state, changed, call)
    return b""


def delete_consumer_group(
    state: GroupsState, request: api.DeleteConsumerGroupRequest, call: Call
) -> bytes:
    """Delete a group with its members."""
    group = find_group(state, request, call)
    if request.HasField("expected_revision"):
        _check_revision(group, request.expected_revision)
    rows = _ROWS_PER_GROUP + _ROWS_PER_REMOVED_MEMBER * state.members_count(group.id)
    call.charge(rows + (state.offset_rows_max(group) if call.keeps_offsets else 0))
    state.remove_group(group)
    return b""


def join_consumer_group(
    state: GroupsState, request: api.JoinConsumerGroupRequest, call: Call
) -> bytes:
    """Make the calling session a member, or let it take over a static member's place."""
    session_id = require_session(call)
    group = find_group(state, request, call)
    member = state.member(group.id, session_id)
    if member is None or (member.is_away and member.instance_id == request.instance_id):
        member = _admit(state, group, session_id, request, call)
    elif (member.instance_id, member.rack) != (request.instance_id, request.rack):
        raise _joined_differently(member)
    return _MEMBER_EPOCH_TAG + encode_varint(member.member_epoch)


def leave_consumer_group(
    state: GroupsState, request: api.LeaveConsumerGroupRequest, call: Call
) -> bytes:
    """End the calling session's membership, or let a static member leave its place for a while."""
    session_id = require_session(call)
    group = find_group(state, request, call)
    member = find_member(state, group, session_id)
    call.charge(_end_rows(group, member))
    if call.removes_members and request.keep_place:
        if not member.instance_id:
            raise Refusal.of(Reason.REASON_INVALID_OPTION, "keep_place", group_id=group.id)
        membership.go_away(state, member, call)
    else:
        membership.end_membership(state, member, call)
    return b""


def heartbeat_consumer_group(
    state: GroupsState, request: api.HeartbeatConsumerGroupRequest, call: Call
) -> Message:
    """Record which partitions a member still holds, and answer which it should hold.

    A partition that it was told to give up and no longer names is released, provided that the
    member knows its present epoch and, if it says what it knows, its present partitions. Other
    differences mean nothing: it may not know its newest partitions yet. Order and repetitions in
    the request do not matter.
    """
    session_id = require_session(call)
    group = find_group(state, request, call)
    member = find_member(state, group, session_id)
    epoch = request.member_epoch
    check_epoch(member, epoch)
    state.liveness.heard(member)
    told = len(member.owned) + len(member.revoking) + len(request.owned_partitions)
    if told >= _PARTITIONS_PER_ROW:
        call.charge(told // _PARTITIONS_PER_ROW)
    if (
        member.revoking
        and epoch == member.member_epoch
        and _has_heard(state, request, member, call)
    ):
        still_held = set(request.owned_partitions)
        released = [partition for partition in member.revoking if partition not in still_held]
        if released:
            call.charge(_release_rows(group))
            member = membership.give_up(state, member, released, call)
    if not member.revoking and member.member_epoch != group.assignment_epoch:
        # The epoch that the member names stays valid until it names a newer one, so that no number
        # of lost replies can fence it.
        member = member._replace(member_epoch=group.assignment_epoch, previous_member_epoch=epoch)
        state.put_member(member)
    return _heartbeat_answer(state, request, member, call)


def _has_heard(
    state: GroupsState, request: api.HeartbeatConsumerGroupRequest, member: Member, call: Call
) -> bool:
    """Return whether unnamed partitions were given up, and not merely never heard of."""
    if not call.is_bounded:
        return True  # it names all that it holds
    if not request.known_assignment:
        # Later levels want to know: whoever lost the last answer still reads what it told before.
        return not call.removes_members
    kept = kept_partitions(state, topic_of(call))
    owned, revoking = below(member.owned, kept), below(member.revoking, kept)
    return assignment_number(member, owned, revoking) == request.known_assignment


def _heartbeat_answer(
    state: GroupsState, request: api.HeartbeatConsumerGroupRequest, member: Member, call: Call
) -> api.HeartbeatConsumerGroupResponse:
    """Answer a member's epoch and partitions; below FEATURE_LEVEL_BOUNDED all, unnumbered."""
    kept = kept_partitions(state, topic_of(call))
    owned, revoking = below(member.owned, kept), below(member.revoking, kept)
    answer = api.HeartbeatConsumerGroupResponse(member_epoch=member.member_epoch)
    if call.is_bounded:
        tell_partitions(answer, member, owned, revoking, request.known_assignment)
    else:
        answer.owned_partitions.extend(owned)
        answer.revoking_partitions.extend(revoking)
    return answer


def assign_target(state: GroupsState, request: api.AssignRequest, call: Call) -> bytes:
    """Compute a group's target; a no-op if it is up to date, or if its epoch has moved on."""
    group = state.groups.rows.get(request.group_id)
    if group is None or not membership.is_assign_pending(group):
        return b""
    if request.group_epoch != group.group_epoch:
        membership.propose_assign(group, call)
        return b""
    rows = group.partitions_count // _ASSIGNED_PER_ROW
    if call.afford(rows + _ROWS_PER_ASSIGNED_MEMBER * state.members_count(group.id)):
        assign(state, group, call)
    else:
        membership.propose_assign(group, call, put_off_revision=call.revision)
    return b""


def complete_revocation(
    state: GroupsState, request: api.CompleteRevocationRequest, call: Call
) -> bytes:
    """End the membership of who gives partitions up too late; a no-op if the deadline changed.

    Below FEATURE_LEVEL_MEMBERS it loses the partitions alone, and may still read them.
    """
    member = state.member(request.group_id, request.session_id)
    deadline = request.revocation_deadline
    if member is None or not member.revoking or member.revocation_deadline != deadline:
        return b""
    if call.timestamp < deadline:
        membership.propose_revocation(member, call)
        return b""
    group = state.groups.rows[member.group_id]
    rows = len(member.revoking) // _PARTITIONS_PER_ROW + _release_rows(group)
    if not call.afford(_end_rows(group, member) if call.removes_members else rows):
        membership.propose_revocation(member, call, put_off_revision=call.revision)
    elif call.removes_members:
        membership.end_membership(state, member, call)
    else:
        membership.give_up(state, member, member.revoking, call)
    return b""


def expire_member(state: GroupsState, request: api.ExpireMemberRequest, call: Call) -> bytes:
    """Remove a member that shows no life or was away for too long; a no-op if it is another one."""
    member = state.member(request.group_id, request.session_id)
    if member is None or member.joined_revision != request.joined_revision:
        return b""
    if member.absence_deadline != request.absence_deadline:
        return b""
    if call.timestamp < member.absence_deadline:
        membership.propose_expiry(member, call)
        return b""
    if call.afford(_end_rows(state.groups.rows[member.group_id], member)):
        membership.end_membership(state, member, call)
    else:
        membership.propose_expiry(member, call, put_off_revision=call.revision)
    return b""


COMMANDS: Final[Mapping[str, CommandHandler[GroupsState]]] = {
    "CreateConsumerGroup": create_consumer_group,
    "UpdateConsumerGroup": update_consumer_group,
    "DeleteConsumerGroup": delete_consumer_group,
    "JoinConsumerGroup": join_consumer_group,
    "LeaveConsumerGroup": leave_consumer_group,
    "HeartbeatConsumerGroup": heartbeat_consumer_group,
    "Assign": assign_target,
    "CompleteRevocation": complete_revocation,
    "ExpireMember": expire_member,
    "ExpireOffsets": retention.expire_offsets,
    "Sweep": sweep,
    **offsets.COMMANDS,
}


def _admit(
    state: GroupsState,
    group: Group,
    session_id: int,
    request: api.JoinConsumerGroupRequest,
    call: Call,
) -> Member:
    """Add a member, or give an instance's place to the new session; return the member.

    A place can be taken over once its member has left it for a while, and by the same user. Below
    FEATURE_LEVEL_MEMBERS it can be taken over by everybody who may join, at any time.
    """
    if request.instance_id:
        _check_name("instance_id", request.instance_id, Reason.REASON_INVALID_OPTION)
    if request.rack:
        _check_name("rack", request.rack, Reason.REASON_INVALID_OPTION)
    if request.instance_id:
        former_id = state.instances.rows.get((group.id, request.instance_id))
        if former_id is not None:
            former = state.members.rows[group.id, former_id]
            if call.removes_members and not (former.is_away and former.user_id == call.user_id):
                raise _unreleased(former)
            successor = former._replace(
                session_id=session_id,
                user_id=_principal(call),
                rack=request.rack,
                absence_deadline=0,
                member_timeout_ms=group.member_timeout_ms,
            )
            # Not by the waiting members: a replica's knowledge of them, and their number, may be
            # outdated.
            call.charge(group.partitions_count // _PARTITIONS_PER_ROW)
            membership.take_over(state, former, successor, call)
            return successor
    member = _newcomer(group, session_id, request, call)
    state.insert_member(member)
    membership.raise_group_epoch(state, group, call)
    return member


def _newcomer(
    group: Group, session_id: int, request: api.JoinConsumerGroupRequest, call: Call
) -> Member:
    """Return a member that has reached the present assignment, which gives it nothing."""
    epoch, revision = group.assignment_epoch, call.revision
    # By position, since names would double the time, and whole crowds join at once.
    return Member(
        group.id, session_id, _principal(call), request.instance_id, request.rack, epoch, epoch,
        (), (), (), 0, revision, 0, revision if call.removes_members else 0,
        group.member_timeout_ms,
    )  # fmt: skip


def _principal(call: Call) -> int:
    assert call.user_id is not None, "a command always has a principal"
    return call.user_id


def _end_rows(group: Group, member: Member) -> int:
    """Return the highest cost of the end of a membership."""
    held = len(member.owned) + len(member.revoking)
    return _ROWS_PER_MEMBERSHIP + held // _PARTITIONS_PER_ROW + _release_rows(group)


def _release_rows(group: Group) -> int:
    """Return the highest cost of giving released partitions to those who wait for them."""
    return group.partitions_count // _GIVEN_PER_ROW


def _stored_assignor(requested: int) -> int:
    assignor = _ASSIGNORS.get(requested)
    if assignor is not None:
        return assignor
    raise Refusal.of(Reason.REASON_INVALID_OPTION, "assignor", assignor=requested)


def _member_timeout_ms(requested: int, call: Call) -> int:
    """Return what to store; 0 for the default. Raises Refusal INVALID_OPTION."""
    if not call.removes_members:
        return 0
    low_us, high_us = limits.MEMBER_TIMEOUT_MIN_US, limits.MEMBER_TIMEOUT_MAX_US
    return _duration_ms("member_timeout_ms", requested, low_us, high_us)


def _with_retention(state: GroupsState, group: Group, requested: int, call: Call) -> Group:
    retention_ms = _retention_ms(requested, call)
    if retention_ms == group.offsets_retention_ms:
        return group
    has_members = state.members_count(group.id) > 0
    return retention.with_retention(group, retention_ms, has_members, call)


def _retention_ms(requested: int, call: Call) -> int:
    """Return what to store; 0 for ever. Raises Refusal INVALID_OPTION."""
    if not call.retains_offsets:
        return 0
    low_us, high_us = limits.OFFSETS_RETENTION_MIN_US, limits.OFFSETS_RETENTION_MAX_US
    return _duration_ms("offsets_retention_ms", requested, low_us, high_us)


def _duration_ms(option: str, requested: int, low_us: int, high_us: int) -> int:
    """Return a duration that a request may name, or 0. Raises Refusal INVALID_OPTION."""
    low, high = low_us // US_PER_MS, high_us // US_PER_MS
    if not requested or low <= requested <= high:
        return requested
    raise Refusal.of(Reason.REASON_INVALID_OPTION, option, requested=requested, low=low, high=high)


def _check_name(field: str, name: str, reason: Reason.ValueType) -> None:
    check_name(
        name,
        reason=reason,
        field=field,
        bytes_min=limits.NAME_BYTES_MIN,
        bytes_max=limits.NAME_BYTES_MAX,
    )


def _check_revision(group: Group, expected: int) -> None:
    if expected == group.modified_revision:
        return
    raise Refusal.of(
        Reason.REASON_REVISION_MISMATCH,
        "group",
        group_id=group.id,
        modified_revision=group.modified_revision,
        expected_revision=expected,
    )


def _group_exists(name: str, topic_id: int) -> Refusal:
    return Refusal.of(Reason.REASON_GROUP_EXISTS, name=name, topic_id=topic_id)


def _joined_differently(member: Member) -> Refusal:
    return Refusal.of(
        Reason.REASON_INVALID_OPTION,
        "joined_differently",
        session_id=member.session_id,
        group_id=member.group_id,
        instance_id=member.instance_id,
        rack=member.rack,
    )


def _unreleased(member: Member) -> Refusal:
    return Refusal.of(
        Reason.REASON_UNRELEASED_INSTANCE_ID,
        instance_id=member.instance_id,
        session_id=member.session_id,
        group_id=member.group_id,
    )
