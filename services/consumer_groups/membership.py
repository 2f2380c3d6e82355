"""What commands and effects share: joining, leaving, releasing, and the resulting epochs."""

from __future__ import annotations

from collections.abc import Iterable

from services.consumer_groups import retention
from services.consumer_groups.model import US_PER_MS, Group, GroupsState, Member, contains
from services.runtime.domain import Call
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.routing import methods_of_file

_CODES = {method.name: method.code for method in methods_of_file(api.DESCRIPTOR)}
ASSIGN_CODE = _CODES["Assign"]
COMPLETE_REVOCATION_CODE = _CODES["CompleteRevocation"]
EXPIRE_MEMBER_CODE = _CODES["ExpireMember"]


def is_assign_pending(group: Group) -> bool:
    """Return whether the target is to be computed, which means that Assign was proposed.

    A group without members never needs one: its assignment epoch follows at once.
    """
    return group.group_epoch != group.assignment_epoch


def propose_assign(group: Group, call: Call, put_off_revision: int = 0) -> None:
    """Ask for the target of the group's present epoch; again if it was put off."""
    request = api.AssignRequest(
        group_id=group.id, group_epoch=group.group_epoch, put_off_revision=put_off_revision
    )
    call.propose(ASSIGN_CODE, request)


def propose_revocation(member: Member, call: Call, put_off_revision: int = 0) -> None:
    """Ask that the member's revocation is completed when its deadline has passed."""
    deadline = member.revocation_deadline
    request = api.CompleteRevocationRequest(
        group_id=member.group_id,
        session_id=member.session_id,
        revocation_deadline=deadline,
        put_off_revision=put_off_revision,
    )
    call.propose(COMPLETE_REVOCATION_CODE, request, due=deadline)


def propose_expiry(member: Member, call: Call, put_off_revision: int = 0) -> None:
    """Ask that a member is removed: when its absence is over, or now if it shows no life."""
    request = api.ExpireMemberRequest(
        group_id=member.group_id,
        session_id=member.session_id,
        joined_revision=member.joined_revision,
        absence_deadline=member.absence_deadline,
        put_off_revision=put_off_revision,
    )
    call.propose(EXPIRE_MEMBER_CODE, request, due=member.absence_deadline)


def raise_group_epoch(state: GroupsState, group: Group, call: Call, by: int = 1) -> None:
    """Raise the group's epoch by `by` changes; ask for a target unless one was asked for already.

    `group` is as it was before, except for fields that the change itself has replaced.
    """
    epoch = group.group_epoch + by
    if not state.members_count(group.id):
        idle = group if group.idle_since else retention.idle_now(group, call)
        state.groups.put(group.id, idle._replace(group_epoch=epoch, assignment_epoch=epoch))
        return
    raised = retention.in_use(group)._replace(group_epoch=epoch)
    state.groups.put(group.id, raised)
    if not is_assign_pending(group):
        propose_assign(raised, call)


def end_membership(state: GroupsState, member: Member, call: Call) -> None:
    """Remove a member; give its partitions to those who wait for them, or free them."""
    state.remove_member(member)
    release(state, member.group_id, (*member.owned, *member.revoking), call)
    raise_group_epoch(state, state.groups.rows[member.group_id], call)


def go_away(state: GroupsState, member: Member, call: Call) -> None:
    """Let a static member leave its place for a while: it reads nothing any more.

    What it had to give up goes to those who wait, and the rest waits for its return.
    """
    if member.revoking:
        member = give_up(state, member, member.revoking, call)
    deadline = call.timestamp + member.timeout_ms * US_PER_MS
    member = member._replace(absence_deadline=deadline)
    state.leave_place(member)
    propose_expiry(member, call)


def with_partitions(
    member: Member, call: Call, owned: tuple[int, ...], revoking: tuple[int, ...]
) -> Member:
    """Return a member with other partitions, and with a number that stands for these alone."""
    if (owned, revoking) == (member.owned, member.revoking):
        return member
    revision = call.revision if call.removes_members else 0
    return member._replace(owned=owned, revoking=revoking, assignment_revision=revision)


def give_up(state: GroupsState, member: Member, partitions: Iterable[int], call: Call) -> Member:
    """Take revoking partitions from a member, give them to those who wait; return the new row."""
    lost = set(partitions)
    revoking = tuple(partition for partition in member.revoking if partition not in lost)
    member = with_partitions(member, call, member.owned, revoking)._replace(
        revocation_deadline=member.revocation_deadline if revoking else 0
    )
    state.put_member(member)
    release(state, member.group_id, sorted(lost), call)
    return member


def release(state: GroupsState, group_id: int, partitions: Iterable[int], call: Call) -> None:
    """Give partitions without a holder to the members whose targets name them."""
    waiting = state.waiting.rows.get(group_id)
    if waiting is None:
        return
    gains: dict[int, list[int]] = {}
    for partition in partitions:
        session_id = waiting.get(partition)
        if session_id is not None:
            gains.setdefault(session_id, []).append(partition)
    for session_id in sorted(gains):
        _give(state, state.member(group_id, session_id), gains[session_id], call)


def take_over(state: GroupsState, member: Member, successor: Member, call: Call) -> None:
    """Replace a static member's session: the place keeps partitions, epochs and age."""
    state.remove_member(member)
    state.insert_member(successor)
    waiting = state.waiting.rows.get(member.group_id, {})
    moved = {
        partition: successor.session_id if session_id == member.session_id else session_id
        for partition, session_id in waiting.items()
    }
    state.set_waiting(member.group_id, moved)
    if successor.revocation_deadline:
        propose_revocation(successor, call)


def _give(state: GroupsState, member: Member | None, partitions: Iterable[int], call: Call) -> None:
    """Let a member own those of the partitions that its target names."""
    if member is None:
        return
    given = [partition for partition in partitions if contains(member.target, partition)]
    if given:
        owned = tuple(sorted((*member.owned, *given)))
        state.put_member(with_partitions(member, call, owned, member.revoking))
