"""Reads of the domain, by RPC name, and the views that they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from google.protobuf.message import Message

from services.consumer_groups.lookup import find_group, find_member, require_session, topic_of
from services.consumer_groups.membership import is_assign_pending
from services.consumer_groups.model import Group, Member, State
from services.runtime import paging
from services.runtime.domain import Call, QueryHandler
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as entities
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api


def get_consumer_group(state: State, request: api.GetConsumerGroupRequest, call: Call) -> Message:
    """Return one group with its members."""
    group = find_group(state, request, call)
    members = state.members_of(group.id)
    view = group_view(group, members)
    view.members.extend(map(member_view, members))
    return api.GetConsumerGroupResponse(group=view)


def list_consumer_groups(
    state: State, request: api.ListConsumerGroupsRequest, call: Call
) -> Message:
    """Return a page of the topic's groups, without members."""
    size = paging.page_size(request.page_size)
    topic = topic_of(call)
    after = paging.id_after(request.page_token)
    ids = state.topic_groups.rows.get((topic.stream_id, topic.topic_id))
    found = [] if ids is None else ids.keys_after(after, size + 1)
    page = found[:size]
    return api.ListConsumerGroupsResponse(
        groups=[group_view(state.groups.rows[id_], state.members_of(id_)) for id_ in page],
        next_page_token=paging.next_id_token(found, size),
    )


def sync_consumer_group(state: State, request: api.SyncConsumerGroupRequest, call: Call) -> Message:
    """Return what the calling session owns in the group."""
    session_id = require_session(call)
    member = find_member(state, find_group(state, request, call), session_id)
    return api.SyncConsumerGroupResponse(
        member_epoch=member.member_epoch,
        owned_partitions=member.owned,
        revoking_partitions=member.revoking,
    )


QUERIES: Final[Mapping[str, QueryHandler[State]]] = {
    "GetConsumerGroup": get_consumer_group,
    "ListConsumerGroups": list_consumer_groups,
    "SyncConsumerGroup": sync_consumer_group,
}


def group_state(group: Group, members: Sequence[Member]) -> entities.GroupState.ValueType:
    """Return where a group stands. It is stable once every member knows that it is."""
    if not members:
        return entities.GROUP_STATE_EMPTY
    if is_assign_pending(group):
        return entities.GROUP_STATE_ASSIGNING
    for member in members:
        if member.member_epoch != group.assignment_epoch:
            return entities.GROUP_STATE_RECONCILING
        if member_state(member) != entities.MEMBER_STATE_STABLE:
            return entities.GROUP_STATE_RECONCILING
    return entities.GROUP_STATE_STABLE


def member_state(member: Member) -> entities.MemberState.ValueType:
    """Return where a member stands."""
    if member.revoking:
        return entities.MEMBER_STATE_UNREVOKED_PARTITIONS
    if member.owned != member.target:
        return entities.MEMBER_STATE_UNRELEASED_PARTITIONS
    return entities.MEMBER_STATE_STABLE


def group_view(group: Group, members: Sequence[Member]) -> entities.ConsumerGroup:
    """Return a group as callers see it, without members."""
    return entities.ConsumerGroup(
        id=group.id,
        stream_id=group.stream_id,
        topic_id=group.topic_id,
        name=group.name,
        assignor=entities.Assignor.ValueType(group.assignor),
        state=group_state(group, members),
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        partitions_count=group.partitions_count,
        members_count=len(members),
        created_at=group.created_at,
        created_revision=group.created_revision,
        modified_revision=group.modified_revision,
    )


def member_view(member: Member) -> entities.Member:
    """Return a member as callers see it."""
    return entities.Member(
        session_id=member.session_id,
        user_id=member.user_id,
        instance_id=member.instance_id,
        rack=member.rack,
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member_state(member),
        owned_partitions=member.owned,
        revoking_partitions=member.revoking,
        target_partitions=member.target,
        joined_revision=member.joined_revision,
    )
