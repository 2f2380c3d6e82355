"""The effects of the streams domain: grants go with their stream or topic.

Streams drops them from its own projection, so nothing is emitted. It knows their holders, and its
command has paid for the work here (`services.streams.grants`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from services.runtime.domain import Call, EffectHandler
from services.users.model import UsersState
from services.users.permissions import Permissions, without_stream, without_topic
from viewstamp.api.domain.v1 import effects_pb2


def stream_deleted(state: UsersState, effect: effects_pb2.StreamDeleted, call: Call) -> None:
    """Drop all grants in a stream."""
    _change_grantees(state, effect.stream_id, call, lambda p: without_stream(p, effect.stream_id))


def topic_deleted(state: UsersState, effect: effects_pb2.TopicDeleted, call: Call) -> None:
    """Drop all grants for a topic."""
    stream_id, topic_id = effect.stream_id, effect.topic_id
    _change_grantees(state, stream_id, call, lambda p: without_topic(p, stream_id, topic_id))


EFFECTS: Final[Mapping[str, EffectHandler[UsersState]]] = {
    "stream_deleted": stream_deleted,
    "topic_deleted": topic_deleted,
}


def _change_grantees(
    state: UsersState, stream_id: int, call: Call, change: Callable[[Permissions], Permissions]
) -> None:
    for user_id in state.grantees_of(stream_id):
        user = state.users.rows[user_id]
        permissions = change(user.permissions)
        if permissions is not user.permissions:
            changed = replace(user, permissions=permissions, modified_revision=call.revision)
            state.replace_grants(changed, stream_id)
