"""Reads of the domain, by RPC name, and the views that they return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from google.protobuf.message import Message

from services.consumer_groups.assignment import assignment_number, tell_partitions
from services.consumer_groups.chores import below
from services.consumer_groups.lookup import (
    check_epoch,
    find_group,
    find_member,
    kept_partitions,
    require_session,
    topic_of,
)
from services.consumer_groups.membership import is_assign_pending
from services.consumer_groups.model import Group, GroupsState, Member
from services.consumer_groups.offsets import fetch_offsets
from services.consumer_groups.resets import find_offsets
from services.runtime.domain import Call, QueryHandler
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as entities
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1.effects_pb2 import TopicContext
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.paging import PagedList, page_size

_MS_PER_S: Final = 1_000
# Where a group is among all groups.
_PLACE: Final = ("stream_id", "topic_id", "id")
_PLACE_OF: Final = attrgetter(*_PLACE)


def get_consumer_group(
    state: GroupsState, request: api.GetConsumerGroupRequest, call: Call
) -> Message:
    """Return one group with a page of its members."""
    group, topic = find_group(state, request, call), topic_of(call)
    kept = kept_partitions(state, topic)
    view = group_view(state, group, topic)
    size = page_size(request.page_size or limits.PAGE_SIZE_MAX)
    pages = PagedList("GetConsumerGroup", group.id)
    after = pages.id_after(request.page_token)
    sessions = state.group_members.rows.get(group.id)
    found = [] if sessions is None else sessions.keys_after(after, size + 1)
    room = limits.PARTITIONS_PAGE_MAX
    for position, session_id in enumerate(found):
        member = state.members.rows[group.id, session_id]
        room -= _told(member)
        if position == size or (position and room < 0):
            token = pages.id_token(found[position - 1])
            return api.GetConsumerGroupResponse(group=view, next_page_token=token)
        view.members.append(member_view(member, kept))
    return api.GetConsumerGroupResponse(group=view)


def list_consumer_groups(
    state: GroupsState, request: api.ListConsumerGroupsRequest, call: Call
) -> Message:
    """Return a page of the topic's groups, without members."""
    size = page_size(request.page_size)
    topic = topic_of(call)
    pages = PagedList("ListConsumerGroups", topic.stream_id, topic.topic_id)
    after = pages.id_after(request.page_token)
    ids = state.topic_groups.rows.get((topic.stream_id, topic.topic_id))
    found = [] if ids is None else ids.keys_after(after, size + 1)
    page = found[:size]
    return api.ListConsumerGroupsResponse(
        groups=[group_view(state, state.groups.rows[id_], topic) for id_ in page],
        next_page_token=pages.next_id_token(found, size),
    )


def list_all_consumer_groups(
    state: GroupsState, request: api.ListAllConsumerGroupsRequest, call: Call
) -> Message:
    """Return a page of the groups of a stream, or of all streams, without members."""
    size = page_size(request.page_size)
    stream_id = topic_of(call).stream_id  # 0 for all streams
    pages = PagedList("ListAllConsumerGroups", stream_id)
    after = pages.ids_after(request.page_token, len(_PLACE))
    # One more than asked for tells whether there is another page.
    found = list(islice(_groups_after(state, stream_id, after, size + 1), size + 1))
    page = found[:size]
    return api.ListAllConsumerGroupsResponse(
        groups=[_view_by_row(state, group) for group in page],
        next_page_token=pages.ids_token(_PLACE_OF(page[-1])) if len(found) > size else "",
    )


def _groups_after(
    state: GroupsState, stream_id: int, after: Sequence[int], count: int
) -> Iterator[Group]:
    """Yield groups behind a place, `count` at least if there are so many, by ascending place."""
    # A token that somebody made up must not lead into another stream.
    topic = (stream_id or after[0], after[1])
    begun = state.topic_groups.rows.get(topic)
    for group_id in () if begun is None else begun.keys_after(after[2], count):
        yield state.groups.rows[group_id]
    for key in state.topic_groups.keys_after(topic, count):
        if stream_id not in (0, key[0]):
            return
        for group_id in state.topic_groups.of(key):
            yield state.groups.rows[group_id]


def sync_consumer_group(
    state: GroupsState, request: api.SyncConsumerGroupRequest, call: Call
) -> Message:
    """Return a page of what the calling session owns in the group, and of what it must give up."""
    session_id = require_session(call)
    group = find_group(state, request, call)
    member = find_member(state, group, session_id)
    kept = kept_partitions(state, topic_of(call))
    owned, revoking = below(member.owned, kept), below(member.revoking, kept)
    size = min(request.page_size or limits.PARTITIONS_PAGE_MAX, limits.PARTITIONS_PAGE_MAX)
    # So many were told on the pages before.
    pages = PagedList("SyncConsumerGroup", group.id, session_id)
    start = pages.begin(request.page_token)
    stop, split = start + size, len(owned)
    return api.SyncConsumerGroupResponse(
        member_epoch=member.member_epoch,
        owned_partitions=owned[start:stop],
        revoking_partitions=revoking[max(0, start - split) : max(0, stop - split)],
        assignment=assignment_number(member, owned, revoking),
        next_page_token=pages.id_token(stop) if stop < split + len(revoking) else "",
    )


def keep_alive_consumer_group(
    state: GroupsState, request: api.KeepAliveConsumerGroupRequest, call: Call
) -> Message:
    """Note that a member shows life, and tell it what it should hold, unless it knows that.

    Once its removal is proposed it is refused until that is decided: what it was told to own could
    be another's before it shows life again.
    """
    session_id = require_session(call)
    group = find_group(state, request, call)
    member = find_member(state, group, session_id)
    check_epoch(member, request.member_epoch)
    if state.liveness.is_leaving(member):
        raise Refusal.of(Reason.REASON_OVERLOADED, "member_leaves", session_id=session_id)
    state.liveness.heard(member)
    kept = kept_partitions(state, topic_of(call))
    owned, revoking = below(member.owned, kept), below(member.revoking, kept)
    must_heartbeat = bool(member.revoking) or member.member_epoch != group.assignment_epoch
    is_settled = not (must_heartbeat or is_assign_pending(group)) and member.owned == member.target
    unsettled_ms = limits.MEMBER_UNSETTLED_HEARTBEAT_MS
    answer = api.KeepAliveConsumerGroupResponse(
        member_epoch=member.member_epoch,
        must_heartbeat=must_heartbeat,
        interval_ms=_settled_interval_ms(state, member, request) if is_settled else unsettled_ms,
        timeout_ms=member.timeout_ms,
        group_id=group.id,
    )
    tell_partitions(answer, member, owned, revoking, request.known_assignment)
    return answer


def _settled_interval_ms(
    state: GroupsState, member: Member, request: api.KeepAliveConsumerGroupRequest
) -> int:
    """Return how often a member with nothing to tell shows life.

    Many members do so less often, as does one that need not ask what has changed.
    """
    third_ms = member.timeout_ms // limits.MEMBER_SIGNS_PER_TIMEOUT
    longest_ms = max(limits.MEMBER_HEARTBEAT_MS, min(third_ms, limits.MEMBER_HEARTBEAT_MAX_MS))
    if request.takes_notices:
        return longest_ms
    spread_ms = len(state.members.rows) * _MS_PER_S // limits.MEMBER_SIGNS_PER_S
    return max(limits.MEMBER_HEARTBEAT_MS, min(spread_ms, longest_ms))


QUERIES: Final[Mapping[str, QueryHandler[GroupsState]]] = {
    "GetConsumerGroup": get_consumer_group,
    "ListConsumerGroups": list_consumer_groups,
    "ListAllConsumerGroups": list_all_consumer_groups,
    "SyncConsumerGroup": sync_consumer_group,
    "KeepAliveConsumerGroup": keep_alive_consumer_group,
    "FetchOffsets": fetch_offsets,
    "FindOffsets": find_offsets,
}


def group_state(group: Group, members: Sequence[Member]) -> entities.GroupState.ValueType:
    """Return the state of a group. It is stable once every member knows its present assignment.

    Members that are away have nothing to learn.
    """
    if not members:
        return entities.GROUP_STATE_EMPTY
    if is_assign_pending(group):
        return entities.GROUP_STATE_ASSIGNING
    for member in members:
        if member.is_away:
            continue
        if member.member_epoch != group.assignment_epoch:
            return entities.GROUP_STATE_RECONCILING
        if member_state(member) != entities.MEMBER_STATE_STABLE:
            return entities.GROUP_STATE_RECONCILING
    return entities.GROUP_STATE_STABLE


def member_state(member: Member) -> entities.MemberState.ValueType:
    """Return the state of a member."""
    if member.is_away:
        return entities.MEMBER_STATE_AWAY
    if member.revoking:
        return entities.MEMBER_STATE_UNREVOKED_PARTITIONS
    if member.owned != member.target:
        return entities.MEMBER_STATE_UNRELEASED_PARTITIONS
    return entities.MEMBER_STATE_STABLE


def group_view(state: GroupsState, group: Group, topic: TopicContext) -> entities.ConsumerGroup:
    """Return a group as callers see it, without members."""
    view = _view_by_row(state, group)
    view.partitions_count = topic.partitions_count
    return view


def _view_by_row(state: GroupsState, group: Group) -> entities.ConsumerGroup:
    """Return a group as callers see it, with as many partitions as it knows."""
    members = state.members_of(group.id)
    view = group_message(group)
    view.state = group_state(group, members)
    view.members_count = len(members)
    view.offsets_revision = group.offsets_revision
    return view


def group_message(group: Group) -> entities.ConsumerGroup:
    """Return what the row of a group alone says of it."""
    return entities.ConsumerGroup(
        id=group.id,
        stream_id=group.stream_id,
        topic_id=group.topic_id,
        name=group.name,
        assignor=entities.Assignor.ValueType(group.assignor),
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        partitions_count=group.partitions_count,
        created_at=group.created_at,
        created_revision=group.created_revision,
        modified_revision=group.modified_revision,
        member_timeout_ms=group.timeout_ms,
        offsets_retention_ms=group.offsets_retention_ms,
        idle_since=group.idle_since,
    )


def member_view(member: Member, kept: int) -> entities.Member:
    """Return a member as callers see it, with the first `kept` partitions of the topic alone."""
    view = entities.Member(
        session_id=member.session_id,
        user_id=member.user_id,
        instance_id=member.instance_id,
        rack=member.rack,
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member_state(member),
        joined_revision=member.joined_revision,
        member_timeout_ms=member.timeout_ms,
    )
    if _told(member) > limits.PARTITIONS_PAGE_MAX:
        view.partitions_omitted = True
        return view
    view.owned_partitions.extend(below(member.owned, kept))
    view.revoking_partitions.extend(below(member.revoking, kept))
    view.target_partitions.extend(below(member.target, kept))
    return view


def _told(member: Member) -> int:
    """Return how many partitions a view of the member names."""
    return len(member.owned) + len(member.revoking) + len(member.target)
