"""Changes of the projection of users, with the index from streams to users with scoped grants."""

from __future__ import annotations

from bisect import bisect_left

from services.streams.access import Access
from services.streams.model import State


def put(state: State, access: Access) -> None:
    """Insert or replace what is known of a user."""
    before = state.access.rows.get(access.user_id)
    state.access.put(access.user_id, access)
    old = before.streams.keys() if before is not None else set()
    for stream_id in sorted(old - access.streams.keys()):
        _remove_grantee(state, stream_id, access.user_id)
    for stream_id in sorted(access.streams.keys() - old):
        _add_grantee(state, stream_id, access.user_id)


def delete(state: State, user_id: int) -> None:
    """Forget a user."""
    access = state.access.delete(user_id)
    for stream_id in sorted(access.streams):
        _remove_grantee(state, stream_id, user_id)


def drop_stream(state: State, stream_id: int) -> None:
    """Take back every grant in a stream that is gone."""
    for user_id in state.grantees.rows.get(stream_id, ()):
        put(state, state.access.rows[user_id].without_stream(stream_id))


def drop_topic(state: State, stream_id: int, topic_id: int) -> None:
    """Take back every grant in a topic that is gone."""
    for user_id in state.grantees.rows.get(stream_id, ()):
        access = state.access.rows[user_id]
        if topic_id in access.streams[stream_id].topics:
            put(state, access.without_topic(stream_id, topic_id))


def _add_grantee(state: State, stream_id: int, user_id: int) -> None:
    users = state.grantees.rows.get(stream_id, ())
    place = bisect_left(users, user_id)
    state.grantees.put(stream_id, (*users[:place], user_id, *users[place:]))


def _remove_grantee(state: State, stream_id: int, user_id: int) -> None:
    users = state.grantees.rows[stream_id]
    place = bisect_left(users, user_id)
    left = users[:place] + users[place + 1 :]
    if left:
        state.grantees.put(stream_id, left)
    else:
        state.grantees.delete(stream_id)
