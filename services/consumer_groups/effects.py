"""The effects of other domains' commands on groups, by field name of EffectPayload.

Each may reach far, and leave work for later: see `services.consumer_groups.chores`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.consumer_groups import chores, marks
from services.consumer_groups.model import GroupsState
from services.runtime import offset_rows, watermarks
from services.runtime.domain import Call, EffectHandler
from viewstamp.api.domain.v1 import effects_pb2


def stream_deleted(state: GroupsState, effect: effects_pb2.StreamDeleted, call: Call) -> None:
    """Drop the groups and watermarks of all topics of the stream."""
    for topic_id, row_count in zip(effect.topic_ids, effect.watermark_rows, strict=False):
        _forget_topic(state, topic_id, row_count)
    for topic_id in effect.topic_ids:
        chores.topic_gone(state, effect.stream_id, topic_id, call)


def topic_deleted(state: GroupsState, effect: effects_pb2.TopicDeleted, call: Call) -> None:
    """Drop the groups and watermarks of the topic."""
    _forget_topic(state, effect.topic_id, effect.watermark_rows)
    chores.topic_gone(state, effect.stream_id, effect.topic_id, call)


def partitions_changed(
    state: GroupsState, effect: effects_pb2.PartitionsChanged, call: Call
) -> None:
    """Let the topic's groups lose deleted partitions; their new targets follow by Assign.

    Their watermarks go at once, as those of streams.
    """
    if call.keeps_offsets:
        watermarks.cut(state.watermarks, effect.topic_id, effect.partitions_count)
        marks.cut(state.marks, effect.topic_id, effect.partitions_count)
    chores.partitions_changed(
        state, effect.stream_id, effect.topic_id, effect.partitions_count, call
    )


def offsets_reported(state: GroupsState, effect: effects_pb2.OffsetsReported, call: Call) -> None:
    """Move watermarks as streams has moved them, and remember by when data was written."""
    changes = offset_rows.by_row((each.partition, each.offset) for each in effect.offsets)
    topic = (effect.stream_id, effect.topic_id)
    if effect.are_starts:
        watermarks.raise_starts(state.watermarks, *topic, changes)
        return
    watermarks.raise_ends(state.watermarks, *topic, changes)
    if call.keeps_times:
        marks.note(state.marks, *topic, changes, effect.written_by)


def user_deleted(state: GroupsState, effect: effects_pb2.UserDeleted, call: Call) -> None:
    """Let the user's members leave."""
    chores.user_gone(state, effect.user_id, call)


def user_deactivated(state: GroupsState, effect: effects_pb2.UserDeactivated, call: Call) -> None:
    """Let the user's members leave."""
    chores.user_gone(state, effect.user_id, call)


def user_sessions_ended(
    state: GroupsState, effect: effects_pb2.UserSessionsEnded, call: Call
) -> None:
    """Let the user's members leave: those of one session, or all."""
    for session_id in state.sessions_of_user(effect.user_id):
        is_meant = not effect.HasField("session_id") or session_id == effect.session_id
        if is_meant and session_id != effect.kept_session_id:
            chores.user_gone_from(state, session_id, effect.user_id, call)


def session_ended(state: GroupsState, effect: effects_pb2.SessionEnded, call: Call) -> None:
    """Let the session's members leave."""
    chores.session_over(state, effect.session_id, call)


def _forget_topic(state: GroupsState, topic_id: int, row_count: int) -> None:
    watermarks.drop(state.watermarks, topic_id, row_count)
    marks.drop(state.marks, topic_id, row_count)


EFFECTS: Final[Mapping[str, EffectHandler[GroupsState]]] = {
    "stream_deleted": stream_deleted,
    "topic_deleted": topic_deleted,
    "partitions_changed": partitions_changed,
    "user_deleted": user_deleted,
    "user_deactivated": user_deactivated,
    "user_sessions_ended": user_sessions_ended,
    "session_ended": session_ended,
    "offsets_reported": offsets_reported,
}
