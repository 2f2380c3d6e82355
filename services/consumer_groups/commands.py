"""Commands of the domain, by RPC name. Streams has resolved and authorized the topic before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import Message

from services.consumer_groups import membership
from services.consumer_groups.assignment import assign, assignment_number
from services.consumer_groups.chores import below, sweep
from services.consumer_groups.lookup import (
    find_group,
    find_member,
    kept_partitions,
    require_session,
    topic_of,
)
from services.consumer_groups.model import (
    FIRST_GROUP_EPOCH,
    NEXT_GROUP_ID,
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
    )
    state.counters.put(NEXT_GROUP_ID, group.id + 1)
    state.insert_group(group)
    return api.CreateConsumerGroupResponse(group_id=group.id)


def delete_consumer_group(
    state: GroupsState, request: api.DeleteConsumerGroupRequest, call: Call
) -> bytes:
    """Delete a group with its members."""
    group = find_group(state, request, call)
    if request.HasField("expected_revision"):
        _check_revision(group, request.expected_revision)
    call.charge(_ROWS_PER_GROUP + _ROWS_PER_REMOVED_MEMBER * state.members_count(group.id))
    state.remove_group(group)
    return b""


def join_consumer_group(
    state: GroupsState, request: api.JoinConsumerGroupRequest, call: Call
) -> bytes:
    """Make the calling session a member, or let it take over a static member's place."""
    session_id = require_session(call)
    group = find_group(state, request, call)
    member = state.member(group.id, session_id)
    if member is None:
        member = _admit(state, group, session_id, request, call)
    elif (member.instance_id, member.rack) != (request.instance_id, request.rack):
        raise _joined_differently(member)
    return _MEMBER_EPOCH_TAG + encode_varint(member.member_epoch)


def leave_consumer_group(
    state: GroupsState, request: api.LeaveConsumerGroupRequest, call: Call
) -> bytes:
    """End the calling session's membership, a static one too."""
    session_id = require_session(call)
    group = find_group(state, request, call)
    member = find_member(state, group, session_id)
    held = len(member.owned) + len(member.revoking)
    call.charge(_ROWS_PER_MEMBERSHIP + held // _PARTITIONS_PER_ROW + _release_rows(group))
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
    if epoch not in (member.member_epoch, member.previous_member_epoch):
        raise _fenced(member, epoch)
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
            member = membership.give_up(state, member, released)
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
    if not call.is_bounded or not request.known_assignment:
        return True  # it names all that it holds
    kept = kept_partitions(state, topic_of(call))
    number = assignment_number(below(member.owned, kept), below(member.revoking, kept))
    return number == request.known_assignment


def _heartbeat_answer(
    state: GroupsState, request: api.HeartbeatConsumerGroupRequest, member: Member, call: Call
) -> api.HeartbeatConsumerGroupResponse:
    """Answer a member's epoch, and its partitions unless it knows them or they are too many."""
    kept = kept_partitions(state, topic_of(call))
    owned, revoking = below(member.owned, kept), below(member.revoking, kept)
    answer = api.HeartbeatConsumerGroupResponse(member_epoch=member.member_epoch)
    if call.is_bounded:
        answer.assignment = assignment_number(owned, revoking)
        is_known = request.known_assignment == answer.assignment
        if is_known or len(owned) + len(revoking) > limits.HEARTBEAT_PARTITIONS_MAX:
            answer.partitions_omitted = True
            return answer
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
    """Take overdue partitions from a member; a no-op if the deadline changed."""
    member = state.member(request.group_id, request.session_id)
    deadline = request.revocation_deadline
    if member is None or not member.revoking or member.revocation_deadline != deadline:
        return b""
    if call.timestamp < deadline:
        membership.propose_revocation(member, call)
        return b""
    group = state.groups.rows[member.group_id]
    if call.afford(len(member.revoking) // _PARTITIONS_PER_ROW + _release_rows(group)):
        membership.give_up(state, member, member.revoking)
    else:
        membership.propose_revocation(member, call, put_off_revision=call.revision)
    return b""


COMMANDS: Final[Mapping[str, CommandHandler[GroupsState]]] = {
    "CreateConsumerGroup": create_consumer_group,
    "DeleteConsumerGroup": delete_consumer_group,
    "JoinConsumerGroup": join_consumer_group,
    "LeaveConsumerGroup": leave_consumer_group,
    "HeartbeatConsumerGroup": heartbeat_consumer_group,
    "Assign": assign_target,
    "CompleteRevocation": complete_revocation,
    "Sweep": sweep,
}


def _admit(
    state: GroupsState,
    group: Group,
    session_id: int,
    request: api.JoinConsumerGroupRequest,
    call: Call,
) -> Member:
    """Add a member, or give an instance's place to the new session; return the member.

    Everybody who may join may also take over a place: an instance id is a name, not a secret.
    """
    if request.instance_id:
        _check_name("instance_id", request.instance_id, Reason.REASON_INVALID_OPTION)
    if request.rack:
        _check_name("rack", request.rack, Reason.REASON_INVALID_OPTION)
    assert call.user_id is not None, "a command always has a principal"
    if request.instance_id:
        former_id = state.instances.rows.get((group.id, request.instance_id))
        if former_id is not None:
            former = state.members.rows[group.id, former_id]
            successor = former._replace(
                session_id=session_id, user_id=call.user_id, rack=request.rack
            )
            # Not by the waiting members: a replica's knowledge of them, and their number, may be
            # outdated.
            call.charge(group.partitions_count // _PARTITIONS_PER_ROW)
            membership.take_over(state, former, successor, call)
            return successor
    member = _newcomer(group, session_id, call.user_id, request, call.revision)
    state.insert_member(member)
    membership.raise_group_epoch(state, group, call)
    return member


def _newcomer(
    group: Group,
    session_id: int,
    user_id: int,
    request: api.JoinConsumerGroupRequest,
    revision: int,
) -> Member:
    """Return a member that has reached the present assignment, which gives it nothing."""
    epoch = group.assignment_epoch
    # By position, since names would double the time, and whole crowds join at once.
    return Member(
        group.id, session_id, user_id, request.instance_id, request.rack, epoch, epoch,
        (), (), (), 0, revision,
    )  # fmt: skip


def _release_rows(group: Group) -> int:
    """Return the highest cost of giving released partitions to those who wait for them."""
    return group.partitions_count // _GIVEN_PER_ROW


def _stored_assignor(requested: int) -> int:
    assignor = _ASSIGNORS.get(requested)
    if assignor is not None:
        return assignor
    raise Refusal.of(Reason.REASON_INVALID_OPTION, "assignor", assignor=requested)


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


def _fenced(member: Member, epoch: int) -> Refusal:
    return Refusal.of(
        Reason.REASON_FENCED_MEMBER_EPOCH,
        session_id=member.session_id,
        epoch=epoch,
        group_id=member.group_id,
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
    )
