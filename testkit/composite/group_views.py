"""What callers are told of consumer groups and their members."""

from __future__ import annotations

import hashlib
from typing import Any

from testkit.composite.world import CompositeModelState, Group, Member, Topic

# How long a member may be silent, unless the group says otherwise.
TIMEOUT_MS = 45_000
# Group states, then member states, as in the protos.
EMPTY, ASSIGNING, RECONCILING, STABLE = 1, 2, 3, 4
MEMBER_STABLE, UNREVOKED, UNRELEASED, AWAY = 1, 2, 3, 4


def duties(member: Member) -> dict[str, Any]:
    """Return what a member may read, and what it must give up."""
    return {
        "member_epoch": member.epoch,
        "owned_partitions": sorted(member.owned),
        "revoking_partitions": sorted(member.revoking),
        "assignment": assignment(member),
    }


def news(member: Member, request: Any) -> dict[str, Any]:
    """Return a member's duties, without the partitions if it knows them."""
    told = duties(member)
    if request.known_assignment != told["assignment"]:
        return told
    known = {"owned_partitions": [], "revoking_partitions": [], "partitions_omitted": True}
    return told | known


def assignment(member: Member) -> int:
    """Return the number that stands for the partitions that a member has.

    From level 4 on it is made of its last change, and of how many there are.
    """
    if member.changed:
        numbers, size = [member.changed, len(member.owned), len(member.revoking)], 8
    else:
        numbers = [len(member.owned), *sorted(member.owned), *sorted(member.revoking)]
        size = 4
    encoded = b"".join(number.to_bytes(size, "little") for number in numbers)
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")


def member_view(member: Member) -> dict[str, Any]:
    """Return a member as it is listed."""
    return {
        "session_id": member.session_id,
        "user_id": member.user_id,
        "instance_id": member.instance,
        "rack": member.rack,
        "member_epoch": member.epoch,
        "previous_member_epoch": member.previous_epoch,
        "state": _member_state(member),
        "owned_partitions": sorted(member.owned),
        "revoking_partitions": sorted(member.revoking),
        "target_partitions": sorted(member.target),
        "joined_revision": member.joined,
        "partitions_omitted": False,
        "member_timeout_ms": member.timeout_ms or TIMEOUT_MS,
    }


def group_view(world: CompositeModelState, topic: Topic, group: Group) -> dict[str, Any]:
    """Return a group as it is listed, without its members."""
    stream_id = next(key for key, stream in world.streams.items() if topic.id in stream.topics)
    return {
        "id": group.id,
        "stream_id": stream_id,
        "topic_id": topic.id,
        "name": group.name,
        "assignor": group.assignor,
        "state": _group_state(group),
        "group_epoch": group.epoch,
        "assignment_epoch": group.assigned_epoch,
        "partitions_count": group.partitions_count,
        "members_count": len(group.members),
        "members": [],
        "created_at": group.created_at,
        "created_revision": group.created,
        "modified_revision": group.modified,
        "member_timeout_ms": group.timeout_ms or TIMEOUT_MS,
        "offsets_retention_ms": group.retention_ms,
        "idle_since": group.idle_since,
        "offsets_revision": group.offsets_revision,
    }


def _member_state(member: Member) -> int:
    if member.absent_until:
        return AWAY
    if member.revoking:
        return UNREVOKED
    return MEMBER_STABLE if member.owned == member.target else UNRELEASED


def _group_state(group: Group) -> int:
    if not group.members:
        return EMPTY
    if group.epoch != group.assigned_epoch:
        return ASSIGNING
    is_stable = all(
        member.epoch == group.assigned_epoch and _member_state(member) == MEMBER_STABLE
        for member in group.members.values()
        if not member.absent_until
    )
    return STABLE if is_stable else RECONCILING
