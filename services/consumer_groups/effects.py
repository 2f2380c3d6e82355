"""What commands of other domains mean for groups, by field name of EffectPayload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from services.consumer_groups.membership import end_membership, raise_group_epoch
from services.consumer_groups.model import Group, Member, State
from services.runtime.domain import Call, EffectHandler
from viewstamp.api.domain.v1 import effects_pb2


def stream_deleted(state: State, effect: effects_pb2.StreamDeleted, call: Call) -> None:
    """Drop the groups of all topics of the stream."""
    for topic_id in effect.topic_ids:
        _drop_groups(state, effect.stream_id, topic_id)


def topic_deleted(state: State, effect: effects_pb2.TopicDeleted, call: Call) -> None:
    """Drop the groups of the topic."""
    _drop_groups(state, effect.stream_id, effect.topic_id)


def partitions_changed(state: State, effect: effects_pb2.PartitionsChanged, call: Call) -> None:
    """Let the topic's groups lose what is gone; their new targets follow by Assign."""
    for group in state.groups_of(effect.stream_id, effect.topic_id):
        if group.partitions_count != effect.partitions_count:
            _change_partitions(state, group, effect.partitions_count, call)


def user_deleted(state: State, effect: effects_pb2.UserDeleted, call: Call) -> None:
    """Let the user's members leave."""
    _end_memberships(state, state.members_of_user(effect.user_id), call)


def user_deactivated(state: State, effect: effects_pb2.UserDeactivated, call: Call) -> None:
    """Let the user's members leave."""
    _end_memberships(state, state.members_of_user(effect.user_id), call)


def session_ended(state: State, effect: effects_pb2.SessionEnded, call: Call) -> None:
    """Let the session's members leave."""
    _end_memberships(state, state.members_of_session(effect.session_id), call)


EFFECTS: Final[Mapping[str, EffectHandler[State]]] = {
    "stream_deleted": stream_deleted,
    "topic_deleted": topic_deleted,
    "partitions_changed": partitions_changed,
    "user_deleted": user_deleted,
    "user_deactivated": user_deactivated,
    "session_ended": session_ended,
}


def _drop_groups(state: State, stream_id: int, topic_id: int) -> None:
    for group in state.groups_of(stream_id, topic_id):
        state.remove_group(group)


def _change_partitions(state: State, group: Group, partitions_count: int, call: Call) -> None:
    if partitions_count < group.partitions_count:
        for member in state.members_of(group.id):
            _truncate(state, member, partitions_count)
    changed = group._replace(partitions_count=partitions_count, modified_revision=call.revision)
    raise_group_epoch(state, changed, call)


def _truncate(state: State, member: Member, partitions_count: int) -> None:
    """Take partitions from the count on from a member; others keep their places."""
    revoking = _below(member.revoking, partitions_count)
    state.put_member(
        member._replace(
            owned=_below(member.owned, partitions_count),
            revoking=revoking,
            target=_below(member.target, partitions_count),
            revocation_deadline=member.revocation_deadline if revoking else 0,
        )
    )


def _below(ascending: tuple[int, ...], bound: int) -> tuple[int, ...]:
    return tuple(partition for partition in ascending if partition < bound)


def _end_memberships(state: State, members: Iterable[Member], call: Call) -> None:
    for member in members:
        # Who left before may have released partitions to this one.
        current = state.members.rows[member.group_id, member.session_id]
        end_membership(state, current, call)
