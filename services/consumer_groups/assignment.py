"""Targets: computing one, and moving ownership towards it without a partition having two owners."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from services.consumer_groups.assignors import ASSIGNORS
from services.consumer_groups.membership import propose_revocation, with_partitions
from services.consumer_groups.model import US_PER_MS, Group, GroupsState, Member
from services.runtime.domain import Call
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api

# A field of type fixed64.
ASSIGNMENT_NUMBER_BYTES: Final = 8


def assign(state: GroupsState, group: Group, call: Call) -> None:
    """Compute the target for the group's epoch; revoke what moves, give what is free.

    The group has members.
    """
    members = sorted(state.members_of(group.id), key=_seniority)
    # A member told to stop may keep a partition after all, but one that it still reads comes first.
    held = [(*member.owned, *member.revoking) for member in members]
    targets = ASSIGNORS[group.assignor](held, group.partitions_count)
    holders = _holders(members, held, group.partitions_count)
    waiting: dict[int, int] = {}
    for member, target in zip(members, targets, strict=True):
        owned = []
        for partition in target:
            holder = holders[partition]
            if holder is None or holder == member.session_id:
                owned.append(partition)
            else:
                waiting[partition] = member.session_id
        _move(state, member, tuple(owned), target, call)
        if not member.is_away:
            state.notices[member.key] = None  # of its epoch, whatever it owns
    state.set_waiting(group.id, waiting)
    state.groups.put(group.id, group._replace(assignment_epoch=group.group_epoch))


def assignment_number(member: Member, owned: Sequence[int], revoking: Sequence[int]) -> int:
    """Return a number that stands for those of a member's partitions that it is told, never 0.

    From FEATURE_LEVEL_MEMBERS on no number comes back after a change, not even with the partitions:
    a late answer must not look like the newest one. The counts differ where deleted partitions are
    not told any more, although the member has not lost them yet.
    """
    if member.assignment_revision:
        encoded = struct.pack("<3Q", member.assignment_revision, len(owned), len(revoking))
    else:
        numbers = (len(owned), *owned, *revoking)
        encoded = struct.pack(f"<{len(numbers)}I", *numbers)
    digest = hashlib.blake2b(encoded, digest_size=ASSIGNMENT_NUMBER_BYTES).digest()
    return int.from_bytes(digest, "little") or 1


def tell_partitions(
    answer: api.HeartbeatConsumerGroupResponse | api.KeepAliveConsumerGroupResponse,
    member: Member,
    owned: Sequence[int],
    revoking: Sequence[int],
    known_assignment: int,
) -> None:
    """Number what a member is told of its partitions; name them unless it knows, or too many."""
    answer.assignment = assignment_number(member, owned, revoking)
    is_known = known_assignment == answer.assignment
    if is_known or len(owned) + len(revoking) > limits.HEARTBEAT_PARTITIONS_MAX:
        answer.partitions_omitted = True
        return
    answer.owned_partitions.extend(owned)
    answer.revoking_partitions.extend(revoking)


def revocation_timeout_us(member: Member, call: Call) -> int:
    """Return how long a member has to give partitions up, in microseconds of log time.

    It may not have heard of it. By then it was not answered for its own timeout and has stopped by
    itself, unless its clock runs slower by more than a tenth.
    """
    if not call.removes_members:
        return limits.REVOCATION_TIMEOUT_US
    return max(limits.REVOCATION_TIMEOUT_US, member.timeout_ms * US_PER_MS * 11 // 10)


def waiting_of(members: Sequence[Member]) -> dict[int, int]:
    """Return who waits for each partition that a target names but another member holds."""
    waiting = {}
    for member in members:
        owned = set(member.owned)
        for partition in member.target:
            if partition not in owned:
                waiting[partition] = member.session_id
    return waiting


def _seniority(member: Member) -> tuple[int, int]:
    # A place keeps its age when another session takes it over, so ranges stay where they are.
    return member.joined_revision, member.session_id


def _holders(
    members: Sequence[Member], held: Sequence[Sequence[int]], partitions_count: int
) -> list[int | None]:
    """Return the session that holds each partition, or None."""
    holders: list[int | None] = [None] * partitions_count
    for member, partitions in zip(members, held, strict=True):
        # Who is away reads nothing, so nobody has to wait for it.
        for partition in () if member.is_away else partitions:
            holders[partition] = member.session_id
    return holders


def _move(
    state: GroupsState, member: Member, owned: tuple[int, ...], target: tuple[int, ...], call: Call
) -> None:
    """Give a member its target and the part of it that it owns; revoke everything else it holds."""
    if target == member.target and owned == member.owned and not member.revoking:
        return
    aimed = set(target)
    held = () if member.is_away else sorted((*member.owned, *member.revoking))
    revoking = tuple(partition for partition in held if partition not in aimed)
    deadline = member.revocation_deadline
    is_news = not set(revoking) <= set(member.revoking)
    if is_news:  # Each partition is left its full time, so the deadline begins anew.
        deadline = call.timestamp + revocation_timeout_us(member, call)
    elif not revoking:
        deadline = 0
    member = with_partitions(member, call, owned, revoking)._replace(
        target=target, revocation_deadline=deadline
    )
    state.put_member(member)
    if is_news:
        propose_revocation(member, call)
