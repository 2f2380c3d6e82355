"""What watchers see of consumer groups and their members."""

from __future__ import annotations

from typing import Final

from services.consumer_groups.model import Group, GroupsState, Member
from services.consumer_groups.queries import group_message, member_view
from services.runtime.domain import WatchedKind
from services.runtime.section import id_key
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.limits import PARTITIONS_PER_TOPIC_MAX

# Memory of a partition's number in a tuple.
_PARTITION_BYTES: Final = 40


def _describe_group(change: Change, group: Group, _: object) -> None:
    """Without its state and the count of members, which change with these."""
    _place(change, group)
    change.key = id_key(group.stream_id, group.topic_id, group.id)
    change.entity = group_message(group).SerializeToString(deterministic=True)


def _describe_member(change: Change, member: Member, group: Group) -> None:
    """With its partitions as the group knows them: deleted ones leave with a later change."""
    _place(change, group)
    change.user_id = member.user_id
    change.key = id_key(member.group_id, member.session_id)
    view = member_view(member, PARTITIONS_PER_TOPIC_MAX)
    change.entity = view.SerializeToString(deterministic=True)


def _place(change: Change, group: Group) -> None:
    change.stream_id, change.topic_id, change.group_id = group.stream_id, group.topic_id, group.id


def _member_bytes(old: Member, new: Member | None) -> int:
    held = (old.owned, old.revoking, old.target)
    kept = (None, None, None) if new is None else (new.owned, new.revoking, new.target)
    return _PARTITION_BYTES * sum(len(a) for a, b in zip(held, kept, strict=True) if a is not b)


WATCHED: Final[tuple[WatchedKind[GroupsState], ...]] = (
    WatchedKind(
        entity_type=consumer_groups_pb2.ConsumerGroup.DESCRIPTOR.full_name,
        table=lambda state: state.groups,
        describe=_describe_group,
        seen=lambda group: group._replace(expiry_due=0, offsets_revision=0),
        stream_id=lambda group, _: group.stream_id,
    ),
    WatchedKind(
        entity_type=consumer_groups_pb2.Member.DESCRIPTOR.full_name,
        table=lambda state: state.members,
        describe=_describe_member,
        weigh=_member_bytes,
        seen=tuple,
        parent=lambda state: state.groups,
        parent_key=lambda member: member.group_id,
        stream_id=lambda _, group: group.stream_id,
    ),
)
