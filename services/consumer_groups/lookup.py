"""How requests name things: the checks that commands and queries begin with."""

from __future__ import annotations

from typing import Protocol

from services.consumer_groups.model import Group, GroupsState, Member
from services.runtime.domain import Call
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.domain.v1.effects_pb2 import TopicContext
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal


class NamesGroup(Protocol):
    """A request about one group of the topic in its context."""

    @property
    def group(self) -> Identifier: ...


def topic_of(call: Call) -> TopicContext:
    """Return the topic that streams resolved and authorized."""
    return TopicContext.FromString(call.context)


def kept_partitions(state: GroupsState, topic: TopicContext) -> int:
    """Return how many partitions of the topic a group may show."""
    return state.kept_partitions(topic.stream_id, topic.topic_id, topic.partitions_count)


def require_session(call: Call) -> int:
    """Return the calling session. Raises SESSION_REQUIRED for callers without one."""
    if call.session_id:
        return call.session_id
    raise Refusal.of(Reason.REASON_SESSION_REQUIRED, "member")


def find_group(state: GroupsState, request: NamesGroup, call: Call) -> Group:
    """Return the group a request names. Raises GROUP_NOT_FOUND or MALFORMED_REQUEST."""
    topic, identifier = topic_of(call), request.group
    kind = identifier.WhichOneof("kind")
    if kind is None:
        raise Refusal.of(Reason.REASON_MALFORMED_REQUEST, "unnamed", field="group")
    if kind == "id":
        group = state.groups.rows.get(identifier.id)
    else:
        key = (topic.stream_id, topic.topic_id, identifier.name)
        group = state.groups.rows.get(state.names.rows.get(key, 0))
    if group and group.topic_id == topic.topic_id and group.stream_id == topic.stream_id:
        return group
    raise _group_not_found(identifier, kind, topic)


def find_member(state: GroupsState, group: Group, session_id: int) -> Member:
    """Return the session's place in the group, unless it is away. Raises NOT_A_MEMBER."""
    member = state.member(group.id, session_id)
    if member is not None and not member.is_away:
        return member
    raise Refusal.of(Reason.REASON_NOT_A_MEMBER, session_id=session_id, group_id=group.id)


def check_epoch(member: Member, epoch: int) -> None:
    """Raise FENCED_MEMBER_EPOCH unless a member may name an epoch: its own, or the one before."""
    if epoch in (member.member_epoch, member.previous_member_epoch):
        return
    raise _fenced(member, epoch)


def check_present_epoch(member: Member, epoch: int) -> None:
    """Raise FENCED_MEMBER_EPOCH unless an epoch is the one that the member has reached.

    A commit needs no other one, and a late one must not count in a later tenure of a partition.
    """
    if epoch != member.member_epoch:
        raise _fenced(member, epoch)


def _fenced(member: Member, epoch: int) -> Refusal:
    return Refusal.of(
        Reason.REASON_FENCED_MEMBER_EPOCH,
        session_id=member.session_id,
        epoch=epoch,
        group_id=member.group_id,
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
    )


def _group_not_found(identifier: Identifier, kind: str, topic: TopicContext) -> Refusal:
    group = repr(identifier.name) if kind == "name" else identifier.id
    return Refusal.of(
        Reason.REASON_GROUP_NOT_FOUND,
        group=group,
        topic_id=topic.topic_id,
        stream_id=topic.stream_id,
    )
