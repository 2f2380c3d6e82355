"""The consumer groups domain in plain words: each function decides one command, or one read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from testkit.composite.group_views import (
    TIMEOUT_MS,
    assignment,
    duties,
    group_view,
    member_view,
    news,
)
from testkit.composite.model_pages import place_after, place_token
from testkit.composite.model_retention import (
    change_offsets,
    change_retention,
    expire_offsets,
    note_members,
    retention_ms,
)
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
# Partitions whose offsets are one entity.
ROW: Final = 128
REVOCATION_TIMEOUT_US = 30_000_000
# What a group may say of how long its members may be silent.
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 6_000, 3_600_000
# How soon a member should show life again: while nothing is to come, and while something is.
CALM_MS, BUSY_MS, RARE_MS = 5_000, 500, 15_000


def create_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Create a group."""
    check_name(request.name, "INVALID_GROUP_NAME", 1, 255)
    _check_assignor(request)
    if find(topic.groups, request.name) is not None:
        raise CompositeRefused("GROUP_EXISTS", name=request.name, topic_id=topic.id)
    timeout_ms = _timeout_ms(world, request)
    group = Group(
        id=world.next_group_id,
        name=request.name,
        assignor=request.assignor or UNIFORM,
        partitions_count=len(topic.partitions),
        created_at=call.timestamp,
        created=call.revision,
        modified=call.revision,
        timeout_ms=timeout_ms,
        retention_ms=retention_ms(world, request),
    )
    world.next_group_id += 1
    topic.groups[group.id] = group
    return {"group_id": group.id}


def update_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Change what is named of a group; another assignor means other targets."""
    group = named_group(topic, request)
    check_expected(request, group)
    _check_assignor(request)
    timeout_ms, wanted_ms = _timeout_ms(world, request), retention_ms(world, request)
    if request.HasField("member_timeout_ms") and timeout_ms != group.timeout_ms:
        group.timeout_ms, group.modified = timeout_ms, call.revision
    if request.HasField("offsets_retention_ms") and wanted_ms != group.retention_ms:
        change_retention(group, wanted_ms, call)
        group.modified = call.revision
    if request.assignor and request.assignor != group.assignor:
        group.assignor, group.modified = request.assignor, call.revision
        _raise_epoch(group, call)
    return {}


def delete_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Delete a group with its members."""
    group = named_group(topic, request)
    check_expected(request, group)
    del topic.groups[group.id]
    return {}


def join_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Make the session a member, or let it take the place of its instance over."""
    check_session(call)
    group = named_group(topic, request)
    member = group.members.get(call.session_id)
    is_back = member is not None and member.absent_until and member.instance == request.instance_id
    if member is None or is_back:
        member = _admit(world, group, request, call)
    elif (member.instance, member.rack) != (request.instance_id, request.rack):
        raise CompositeRefused("INVALID_OPTION")
    return {"member_epoch": member.epoch}


def leave_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """End the session's membership, or keep its place for a while."""
    check_session(call)
    group = named_group(topic, request)
    member = present_member(group, call.session_id)
    if not (world.removes_members and request.keep_place):
        _end(world, group, member, call)
        return {}
    if not member.instance:
        raise CompositeRefused("INVALID_OPTION")
    world.turns |= {"kept"} | ({"kept while revoking"} if member.revoking else set())
    _give_up(world, group, member, member.revoking, call)
    member.absent_until = call.timestamp + 1_000 * (member.timeout_ms or TIMEOUT_MS)
    return {}


def heartbeat(world: CompositeModelState, topic: Topic, request: Any, call: Call) -> dict[str, Any]:
    """Release what the member gave up, and let it reach the group's assignment."""
    check_session(call)
    group = named_group(topic, request)
    member = present_member(group, call.session_id)
    _check_epoch(member, request)
    if request.member_epoch == member.epoch and _knows(world, member, request):
        _give_up(world, group, member, member.revoking - set(request.owned_partitions), call)
    if not member.revoking and member.epoch != group.assigned_epoch:
        member.epoch, member.previous_epoch = group.assigned_epoch, request.member_epoch
    return news(member, request) if world.is_bounded else duties(member) | {"assignment": 0}


def assign(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Compute the target of a group, if it is for the epoch in force."""
    group = _by_id(world, request.group_id)
    if group is None or group.epoch != request.group_epoch:
        return {}
    if group.members and group.assigned_epoch != group.epoch:
        _set_targets(world, group, call)
        group.assigned_epoch = group.epoch
    return {}


def complete_revocation(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Remove a member that has not given up in time; below level 4 it loses these partitions."""
    group = _by_id(world, request.group_id)
    member = group.members.get(request.session_id) if group is not None else None
    if group is None or member is None or not member.revoking:
        return {}
    if member.deadline != request.revocation_deadline or call.timestamp < member.deadline:
        return {}
    if world.removes_members:
        world.turns.add("removed for revocation")
        _end(world, group, member, call)
    else:
        world.turns.add("revoked")
        _give_up(world, group, member, member.revoking, call)
    return {}


def expire_member(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Remove a member of which the primary heard nothing, or that was away for too long."""
    group = _by_id(world, request.group_id)
    member = group.members.get(request.session_id) if group is not None else None
    if group is None or member is None or member.joined != request.joined_revision:
        return {}
    if member.absent_until == request.absence_deadline and call.timestamp >= member.absent_until:
        world.turns.add("expired away" if member.absent_until else "expired silent")
        _end(world, group, member, call)
    return {}


def get_group(world: CompositeModelState, topic: Topic, request: Any, call: Call) -> dict[str, Any]:
    """Read a group with members."""
    group = named_group(topic, request)
    members = [member_view(group.members[key]) for key in sorted(group.members)]
    return {"group": {**group_view(world, topic, group), "members": members}}


def list_groups(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Read all groups of a topic, without members."""
    groups = [topic.groups[key] for key in sorted(topic.groups)]
    return {"groups": [group_view(world, topic, group) for group in groups]}


def list_all_groups(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read the groups of a stream, or of all streams, a page of them, without members."""
    caller, wanted = world.caller(call), None
    if request.HasField("stream"):
        wanted = world.stream(caller, request.stream, *READ).id
    else:
        world.demand(caller, *READ)
    places = sorted((stream.id, topic.id, group.id) for stream, topic, group in world.groups())
    places = [each for each in places if wanted in (None, each[0])]
    size = request.page_size or 100
    if size > 1_000:
        raise CompositeRefused("MALFORMED_REQUEST", page_size=request.page_size)
    start = place_after("ListAllConsumerGroups", wanted or 0, request.page_token)
    left = [place for place in places if place > start]
    views = []
    for stream_id, topic_id, group_id in left[:size]:
        topic = world.streams[stream_id].topics[topic_id]
        views.append(group_view(world, topic, topic.groups[group_id]))
    is_last = len(left) <= size
    world.turns |= set() if is_last else {"groups in pages"}
    token = "" if is_last else place_token("ListAllConsumerGroups", wanted or 0, left[size - 1])
    return {"groups": views, "next_page_token": token}


def sync_group(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Read what the session owns."""
    check_session(call)
    return duties(present_member(named_group(topic, request), call.session_id))


def keep_alive(
    world: CompositeModelState, topic: Topic, request: Any, call: Call
) -> dict[str, Any]:
    """Read what a heartbeat would tell, and whether the member has to send one."""
    check_session(call)
    group = named_group(topic, request)
    member = present_member(group, call.session_id)
    _check_epoch(member, request)
    if (group.id, member.session_id, member.joined) in world.leaving:
        raise CompositeRefused("OVERLOADED")
    must_heartbeat = bool(member.revoking) or member.epoch != group.assigned_epoch
    is_busy = must_heartbeat or group.epoch != group.assigned_epoch
    timeout_ms = member.timeout_ms or TIMEOUT_MS
    calm_ms = max(CALM_MS, min(timeout_ms // 3, RARE_MS)) if request.takes_notices else CALM_MS
    return {
        **news(member, request),
        "must_heartbeat": must_heartbeat,
        "interval_ms": BUSY_MS if is_busy or member.owned != member.target else calm_ms,
        "timeout_ms": timeout_ms,
        "group_id": group.id,
    }


# What streams demands of the caller before the domain sees the request.
READ, MANAGE = tuple(sorted(SEEING)), ("manage_streams", "manage_topics")
Handler = Callable[[CompositeModelState, Topic, Any, Call], dict[str, Any]]
ON_TOPICS: Final[dict[str, tuple[tuple[str, ...], Handler]]] = {
    "CreateConsumerGroup": (MANAGE, create_group),
    "UpdateConsumerGroup": (MANAGE, update_group),
    "DeleteConsumerGroup": (MANAGE, delete_group),
    "JoinConsumerGroup": (READ, join_group),
    "LeaveConsumerGroup": (READ, leave_group),
    "HeartbeatConsumerGroup": (READ, heartbeat),
    "GetConsumerGroup": (READ, get_group),
    "ListConsumerGroups": (READ, list_groups),
    "SyncConsumerGroup": (READ, sync_group),
    "KeepAliveConsumerGroup": (READ, keep_alive),
}
PLAIN_QUERIES: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "ListAllConsumerGroups": list_all_groups,
}
INTERNAL: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "Assign": assign,
    "CompleteRevocation": complete_revocation,
    "ExpireMember": expire_member,
    "ExpireOffsets": expire_offsets,
}


# --- What commands of other domains mean ---


def drop_members(
    world: CompositeModelState, is_leaving: Callable[[Member], bool], call: Call
) -> None:
    """Let members leave all their groups. Who is away is in no session, and stays so."""
    for _, _, group in world.groups():
        present = [member for member in group.members.values() if not member.absent_until]
        for member in [m for m in present if is_leaving(m)]:
            _end(world, group, member, call)


def repartition(world: CompositeModelState, group: Group, count: int, call: Call) -> None:
    """Let a group lose partitions that are gone, and note the new number."""
    group.partitions_count, group.modified = count, call.revision
    kept = {each: offset for each, offset in group.offsets.items() if each < count}
    world.turns |= _turns_of_cut(group.offsets.keys() - kept.keys(), count)
    change_offsets(world, group, kept, call)
    _raise_epoch(group, call)
    for member in group.members.values():
        left = set(range(count))
        member.target &= left
        _hold(world, member, member.owned & left, member.revoking & left, call)
        if not member.revoking:
            member.deadline = 0


def _turns_of_cut(lost: set[int], count: int) -> set[str]:
    """Return which offsets were lost with partitions: those of the last row that stays, or more."""
    first_of_next_row = (count + ROW - 1) // ROW * ROW
    return {"row cut" if each < first_of_next_row else "row dropped" for each in lost}


# --- Membership ---


def _check_assignor(request: Any) -> None:
    if request.assignor not in (0, UNIFORM, RANGE):
        raise CompositeRefused("INVALID_OPTION")


def _timeout_ms(world: CompositeModelState, request: Any) -> int:
    """Return the timeout to keep; 0 for the default."""
    timeout_ms: int = request.member_timeout_ms if world.removes_members else 0
    if timeout_ms and not TIMEOUT_MS_MIN <= timeout_ms <= TIMEOUT_MS_MAX:
        raise CompositeRefused("INVALID_OPTION")
    return timeout_ms


def _knows(world: CompositeModelState, member: Member, request: Any) -> bool:
    """Return whether what a heartbeat leaves out was given up, and not merely unheard of."""
    if not world.is_bounded:
        return True
    if not request.known_assignment:
        return not world.removes_members
    is_told = bool(request.known_assignment == assignment(member))
    if member.revoking:
        world.turns.add("told" if is_told else "outdated")
    return is_told


def _admit(world: CompositeModelState, group: Group, request: Any, call: Call) -> Member:
    if request.instance_id:
        check_name(request.instance_id, "INVALID_OPTION", 1, 255)
    if request.rack:
        check_name(request.rack, "INVALID_OPTION", 1, 255)
    for former in list(group.members.values()):
        if request.instance_id and former.instance == request.instance_id:
            return _taken_over(world, group, former, request, call)
    epoch = group.assigned_epoch
    instance, rack = request.instance_id, request.rack
    member = Member(call.session_id, call.user_id, instance, rack, epoch, epoch, call.revision)
    member.changed = call.revision if world.removes_members else 0
    member.timeout_ms = group.timeout_ms
    group.members[call.session_id] = member
    _raise_epoch(group, call)
    return member


def _taken_over(
    world: CompositeModelState, group: Group, former: Member, request: Any, call: Call
) -> Member:
    """Give a place to another session; from level 4 on only one that waits for its user."""
    is_waiting = former.absent_until > 0 and former.user_id == call.user_id
    if world.removes_members and not is_waiting:
        world.turns.add("refused to others" if former.absent_until else "refused while present")
        raise CompositeRefused("UNRELEASED_INSTANCE_ID", session_id=former.session_id)
    world.turns.add(
        "back"
        if former.session_id == call.session_id
        else "resumed"
        if world.removes_members
        else "taken over"
    )
    del group.members[former.session_id]
    former.session_id, former.user_id = call.session_id, call.user_id
    former.rack, former.timeout_ms, former.absent_until = request.rack, group.timeout_ms, 0
    group.members[call.session_id] = former
    return former


def _end(world: CompositeModelState, group: Group, member: Member, call: Call) -> None:
    del group.members[member.session_id]
    _give(world, group, member.owned | member.revoking, call)
    _raise_epoch(group, call)


def _raise_epoch(group: Group, call: Call) -> None:
    """Let a change be known; a group without members has nothing to assign."""
    group.epoch += 1
    note_members(group, call)
    if not group.members:
        group.assigned_epoch = group.epoch


def _hold(
    world: CompositeModelState, member: Member, owned: set[int], revoking: set[int], call: Call
) -> None:
    """Let a member hold these partitions; from level 4 on, note when it held others before."""
    if (member.owned, member.revoking) != (owned, revoking):
        member.owned, member.revoking = owned, revoking
        member.changed = call.revision if world.removes_members else 0


def _give_up(
    world: CompositeModelState, group: Group, member: Member, lost: set[int], call: Call
) -> None:
    _hold(world, member, member.owned, member.revoking - lost, call)
    if not member.revoking:
        member.deadline = 0
    _give(world, group, lost, call)


def _give(world: CompositeModelState, group: Group, free: set[int], call: Call) -> None:
    """Give free partitions to the members for which they are meant."""
    for member in group.members.values():
        _hold(world, member, member.owned | (free & member.target), member.revoking, call)


def _set_targets(world: CompositeModelState, group: Group, call: Call) -> None:
    """Share the partitions anew; what another still reads must be given up first."""
    members = sorted(group.members.values(), key=lambda m: (m.joined, m.session_id))
    everything = range(group.partitions_count)
    targets = _uniform(members, everything) if group.assignor == UNIFORM else None
    if targets is None:
        size, longer = divmod(len(everything), len(members))
        ends = [size * (i + 1) + min(i + 1, longer) for i in range(len(members))]
        targets = [set(range(start, end)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    # Who is away reads nothing, and so gives up at once what is not meant for it any more.
    reading = {m.session_id: set() if m.absent_until else m.owned | m.revoking for m in members}
    for member, target in zip(members, targets, strict=True):
        others = [reading[m.session_id] for m in members if m is not member]
        revoking = reading[member.session_id] - target
        if revoking - member.revoking:
            member.deadline = call.timestamp + _revocation_us(world, member)
        elif not revoking:
            member.deadline = 0
        _hold(world, member, target.difference(*others), revoking, call)
        member.target = target


def _revocation_us(world: CompositeModelState, member: Member) -> int:
    """Return how long a member may take to give up: from level 4 on till it has stopped anyway."""
    silent_us = 1_000 * (member.timeout_ms or TIMEOUT_MS) if world.removes_members else 0
    return max(REVOCATION_TIMEOUT_US, silent_us + silent_us // 10)


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


def check_session(call: Call) -> None:
    """Refuse a caller without a session."""
    if not call.session_id:
        raise CompositeRefused("SESSION_REQUIRED")


def named_group(topic: Topic, request: Any) -> Group:
    """Return the group that a request names."""
    group = find(topic.groups, key_of(request.group))
    if group is None:
        raise CompositeRefused("GROUP_NOT_FOUND", topic_id=topic.id)
    return group  # type: ignore[no-any-return]


def present_member(group: Group, session_id: int) -> Member:
    """Return the member that a session is, unless it is away."""
    member = group.members.get(session_id)
    if member is None or member.absent_until:
        raise CompositeRefused("NOT_A_MEMBER", session_id=session_id, group_id=group.id)
    return member


def _check_epoch(member: Member, request: Any) -> None:
    if request.member_epoch not in (member.epoch, member.previous_epoch):
        raise CompositeRefused("FENCED_MEMBER_EPOCH", member_epoch=member.epoch)


def _by_id(world: CompositeModelState, group_id: int) -> Group | None:
    return next((group for _, _, group in world.groups() if group.id == group_id), None)
