"""The consumer groups domain in plain words: each function decides one command, or one read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

from testkit.composite.world import (
    SEEING,
    Call,
    CompositeModelState,
    CompositeRefused,
    Group,
    Member,
    Topic,
    check_expected,
    check_name,
    find,
    key_of,
)

UNIFORM, RANGE = 1, 2
REVOCATION_TIMEOUT_US = 30_000_000
# Group states, then member states, as in the protos.
EMPTY, ASSIGNING, RECONCILING, STABLE = 1, 2, 3, 4
MEMBER_STABLE, UNREVOKED, UNRELEASED = 1, 2, 3


def create_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Create a group."""
    check_name(request.name, "INVALID_GROUP_NAME", 1, 255)
    if request.assignor not in (0, UNIFORM, RANGE):
        raise CompositeRefused("INVALID_OPTION")
    if find(topic.groups, request.name) is not None:
        raise CompositeRefused("GROUP_EXISTS", name=request.name, topic_id=topic.id)
    group = Group(
        id=world.next_group_id,
        name=request.name,
        assignor=request.assignor or UNIFORM,
        partitions_count=len(topic.partitions),
        created_at=call.timestamp,
        created=call.revision,
        modified=call.revision,
    )
    world.next_group_id += 1
    topic.groups[group.id] = group
    return {"group_id": group.id}


def delete_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Delete a group with its members."""
    group = _group(topic, request)
    check_expected(request, group)
    del topic.groups[group.id]
    return {}


def join_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Make the session a member, or let it take the place of its instance over."""
    _check_session(call)
    group = _group(topic, request)
    member = group.members.get(call.session_id)
    if member is None:
        member = _admit(group, request, call)
    elif (member.instance, member.rack) != (request.instance_id, request.rack):
        raise CompositeRefused("INVALID_OPTION")
    return {"member_epoch": member.epoch}


def leave_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """End the session's membership."""
    _check_session(call)
    group = _group(topic, request)
    _end(group, _member(group, call))
    return {}


def heartbeat(world: CompositeModelState, topic: Topic, request: Any, call: Call) -> dict[str, Any]:
    """Release what the member gave up, and let it reach the group's assignment."""
    _check_session(call)
    group = _group(topic, request)
    member = _member(group, call)
    if request.member_epoch not in (member.epoch, member.previous_epoch):
        raise CompositeRefused("FENCED_MEMBER_EPOCH", member_epoch=member.epoch)
    if request.member_epoch == member.epoch:
        _give_up(group, member, member.revoking - set(request.owned_partitions))
    if not member.revoking and member.epoch != group.assigned_epoch:
        member.epoch, member.previous_epoch = group.assigned_epoch, request.member_epoch
    duties = _duties(member)
    return duties if world.is_bounded else duties | {"assignment": 0}


def assign(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Compute the target of a group, if it is for the epoch in force."""
    group = _by_id(world, request.group_id)
    if group is None or group.epoch != request.group_epoch:
        return {}
    if group.members and group.assigned_epoch != group.epoch:
        _set_targets(group, call)
        group.assigned_epoch = group.epoch
    return {}


def complete_revocation(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Take from a member what it has not given up in time."""
    group = _by_id(world, request.group_id)
    member = group.members.get(request.session_id) if group is not None else None
    if group is None or member is None or not member.revoking:
        return {}
    if member.deadline == request.revocation_deadline and call.timestamp >= member.deadline:
        _give_up(group, member, member.revoking)
    return {}


def get_group(world: CompositeModelState, topic: Topic, request: Any, call: Call) -> dict[str, Any]:
    """Read a group with members."""
    group = _group(topic, request)
    members = [_member_view(group.members[key]) for key in sorted(group.members)]
    return {"group": {**_group_view(world, topic, group), "members": members}}


def list_groups(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Read all groups of a topic, without members."""
    groups = [topic.groups[key] for key in sorted(topic.groups)]
    return {"groups": [_group_view(world, topic, group) for group in groups]}


def sync_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Read what the session owns."""
    _check_session(call)
    return _duties(_member(_group(topic, request), call))


# What streams demands of the caller before the domain sees the request.
READ, MANAGE = tuple(sorted(SEEING)), ("manage_streams", "manage_topics")
Handler = Callable[[CompositeModelState, Topic, Any, Call], dict[str, Any]]
ON_TOPICS: Final[dict[str, tuple[tuple[str, ...], Handler]]] = {
    "CreateConsumerGroup": (MANAGE, create_group),
    "DeleteConsumerGroup": (MANAGE, delete_group),
    "JoinConsumerGroup": (READ, join_group),
    "LeaveConsumerGroup": (READ, leave_group),
    "HeartbeatConsumerGroup": (READ, heartbeat),
    "GetConsumerGroup": (READ, get_group),
    "ListConsumerGroups": (READ, list_groups),
    "SyncConsumerGroup": (READ, sync_group),
}
INTERNAL: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "Assign": assign,
    "CompleteRevocation": complete_revocation,
}


# --- What commands of other domains mean ---


def drop_members(world: CompositeModelState, is_leaving: Callable[[Member], bool]) -> None:
    """Let members leave all their groups."""
    for _, _, group in world.groups():
        for member in [m for m in group.members.values() if is_leaving(m)]:
            _end(group, member)


def repartition(group: Group, count: int, call: Call) -> None:
    """Let a group lose partitions that are gone, and note the new number."""
    group.partitions_count, group.modified = count, call.revision
    _raise_epoch(group)
    for member in group.members.values():
        for partitions in (member.owned, member.revoking, member.target):
            partitions.intersection_update(range(count))
        if not member.revoking:
            member.deadline = 0


# --- Membership ---


def _admit(group: Group, request: Any, call: Call) -> Member:
    if request.instance_id:
        check_name(request.instance_id, "INVALID_OPTION", 1, 255)
    if request.rack:
        check_name(request.rack, "INVALID_OPTION", 1, 255)
    for former in list(group.members.values()):
        if request.instance_id and former.instance == request.instance_id:
            del group.members[former.session_id]
            former.session_id, former.user_id = call.session_id, call.user_id
            former.rack = request.rack
            group.members[call.session_id] = former
            return former
    epoch = group.assigned_epoch
    instance, rack = request.instance_id, request.rack
    member = Member(call.session_id, call.user_id, instance, rack, epoch, epoch, call.revision)
    group.members[call.session_id] = member
    _raise_epoch(group)
    return member


def _end(group: Group, member: Member) -> None:
    del group.members[member.session_id]
    _give(group, member.owned | member.revoking)
    _raise_epoch(group)


def _raise_epoch(group: Group) -> None:
    """Let a change be known; a group without members has nothing to assign."""
    group.epoch += 1
    if not group.members:
        group.assigned_epoch = group.epoch


def _give_up(group: Group, member: Member, partitions: set[int]) -> None:
    lost = set(partitions)
    member.revoking -= lost
    if not member.revoking:
        member.deadline = 0
    _give(group, lost)


def _give(group: Group, free: set[int]) -> None:
    """Give free partitions to the members for which they are meant."""
    for member in group.members.values():
        member.owned |= free & member.target


def _set_targets(group: Group, call: Call) -> None:
    """Share the partitions anew; what another still holds must be given up first."""
    members = sorted(group.members.values(), key=lambda m: (m.joined, m.session_id))
    everything = range(group.partitions_count)
    targets = _uniform(members, everything) if group.assignor == UNIFORM else None
    if targets is None:
        size, longer = divmod(len(everything), len(members))
        ends = [size * (i + 1) + min(i + 1, longer) for i in range(len(members))]
        targets = [set(range(start, end)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    holders = {p: m for m in members for p in m.owned | m.revoking}
    for member, target in zip(members, targets, strict=True):
        held = member.owned | member.revoking
        revoking = held - target
        if revoking - member.revoking:
            member.deadline = call.timestamp + REVOCATION_TIMEOUT_US
        elif not revoking:
            member.deadline = 0
        member.owned = {p for p in target if holders.get(p) in (None, member)}
        member.revoking, member.target = revoking, target


def _uniform(members: list[Member], everything: range) -> list[set[int]]:
    """Share evenly; members keep as much as they can of what they hold."""
    size, larger = divmod(len(everything), len(members))
    held = [[*sorted(m.owned), *sorted(m.revoking)] for m in members]
    holding_more = [i for i in range(len(members)) if len(held[i]) > size]
    others = [i for i in range(len(members)) if len(held[i]) <= size]
    lucky = (holding_more + others)[:larger]
    quotas = [size + (i in lucky) for i in range(len(members))]
    targets = [set(mine[:quota]) for mine, quota in zip(held, quotas, strict=True)]
    free = [p for p in everything if not any(p in target for target in targets)]
    for target, quota in zip(targets, quotas, strict=True):
        while len(target) < quota:
            target.add(free.pop(0))
    return targets


def _check_session(call: Call) -> None:
    if not call.session_id:
        raise CompositeRefused("SESSION_REQUIRED")


def _group(topic: Topic, request: Any) -> Group:
    group = find(topic.groups, key_of(request.group))
    if group is None:
        raise CompositeRefused("GROUP_NOT_FOUND", topic_id=topic.id)
    return group  # type: ignore[no-any-return]


def _member(group: Group, call: Call) -> Member:
    member = group.members.get(call.session_id)
    if member is None:
        raise CompositeRefused("NOT_A_MEMBER", session_id=call.session_id, group_id=group.id)
    return member


def _by_id(world: CompositeModelState, group_id: int) -> Group | None:
    return next((group for _, _, group in world.groups() if group.id == group_id), None)


# --- Views ---


def _duties(member: Member) -> dict[str, Any]:
    return {
        "member_epoch": member.epoch,
        "owned_partitions": sorted(member.owned),
        "revoking_partitions": sorted(member.revoking),
        "assignment": _assignment(member),
    }


def _assignment(member: Member) -> int:
    """Return the number that stands for a member's partitions."""
    numbers = [len(member.owned), *sorted(member.owned), *sorted(member.revoking)]
    encoded = b"".join(number.to_bytes(4, "little") for number in numbers)
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")


def _member_state(member: Member) -> int:
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
    )
    return STABLE if is_stable else RECONCILING


def _member_view(member: Member) -> dict[str, Any]:
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
    }


def _group_view(world: CompositeModelState, topic: Topic, group: Group) -> dict[str, Any]:
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
    }
