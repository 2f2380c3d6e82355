"""Targets: computing one, and moving ownership towards it without a partition having two owners."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from services.consumer_groups.assignors import ASSIGNORS
from services.consumer_groups.membership import propose_revocation
from services.consumer_groups.model import Group, GroupsState, Member
from services.runtime.domain import Call
from viewstamp import limits

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
    state.set_waiting(group.id, waiting)
    state.groups.put(group.id, group._replace(assignment_epoch=group.group_epoch))


def assignment_number(owned: Sequence[int], revoking: Sequence[int]) -> int:
    """Return a number that stands for a member's partitions, never 0."""
    numbers = (len(owned), *owned, *revoking)
    encoded = struct.pack(f"<{len(numbers)}I", *numbers)
    digest = hashlib.blake2b(encoded, digest_size=ASSIGNMENT_NUMBER_BYTES).digest()
    return int.from_bytes(digest, "little") or 1


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
        for partition in partitions:
            holders[partition] = member.session_id
    return holders


def _move(
    state: GroupsState, member: Member, owned: tuple[int, ...], target: tuple[int, ...], call: Call
) -> None:
    """Give a member its target and the part of it that it owns; revoke everything else it holds."""
    if target == member.target and owned == member.owned and not member.revoking:
        return
    aimed = set(target)
    held = sorted((*member.owned, *member.revoking))
    revoking = tuple(partition for partition in held if partition not in aimed)
    deadline = member.revocation_deadline
    is_news = not set(revoking) <= set(member.revoking)
    if is_news:  # Each partition is left its full time, so the deadline begins anew.
        deadline = call.timestamp + limits.REVOCATION_TIMEOUT_US
    elif not revoking:
        deadline = 0
    member = member._replace(
        owned=owned, revoking=revoking, target=target, revocation_deadline=deadline
    )
    state.put_member(member)
    if is_news:
        propose_revocation(member, call)
