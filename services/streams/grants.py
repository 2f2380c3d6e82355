"""Changes of the projection of users, with the index from streams to users with scoped grants.

A grant goes with its stream or topic, at once: `*_rows` say what that costs here and in users,
which has the same grants, and the command pays for both before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.streams.access import Access
from services.streams.model import StreamsState

# Of one user who loses a grant: rows, and how many grants are copied for one more.
_ROWS_PER_USER = 8
_GRANTS_PER_ROW = 32
# Users who are looked at for one row.
_LOOKS_PER_ROW = 4


def put(state: StreamsState, access: Access) -> None:
    """Insert or replace what is known of a user."""
    before = state.access.rows.get(access.user_id)
    state.access.put(access.user_id, access)
    if before is not None and before.streams is access.streams:
        return
    old = before.streams.keys() if before is not None else set()
    for stream_id in sorted(old - access.streams.keys()):
        _remove_grantee(state, stream_id, access.user_id)
    for stream_id in sorted(access.streams.keys() - old):
        _add_grantee(state, stream_id, access.user_id)


def delete(state: StreamsState, user_id: int) -> None:
    """Forget a user."""
    access = state.access.delete(user_id)
    for stream_id in sorted(access.streams):
        _remove_grantee(state, stream_id, user_id)


def grantees_of(state: StreamsState, stream_id: int) -> Iterable[int]:
    """Return the users with a grant in a stream, ascending."""
    users = state.grantees.rows.get(stream_id)
    return () if users is None else users.sorted_keys()


def stream_rows(state: StreamsState, stream_id: int) -> int:
    """Return what it costs one of the two domains to drop all grants in a stream."""
    return sum(_rows(state.access.rows[user_id]) for user_id in grantees_of(state, stream_id))


def look_rows(state: StreamsState, stream_id: int) -> int:
    """Return what it costs to find out who has a grant in a topic of a stream."""
    users = state.grantees.rows.get(stream_id)
    return 0 if users is None else len(users) // _LOOKS_PER_ROW


def topic_rows(state: StreamsState, stream_id: int, topic_id: int) -> int:
    """Return what it costs one of the two domains to drop all grants in a topic."""
    return sum(
        _rows(access) + len(access.streams[stream_id].topics) // _GRANTS_PER_ROW
        for access in _with_topic(state, stream_id, topic_id)
    )


def drop_stream(state: StreamsState, stream_id: int) -> None:
    """Take back every grant in a stream that is gone."""
    users = grantees_of(state, stream_id)
    if users:
        state.grantees.delete(stream_id)
    for user_id in users:
        state.access.put(user_id, state.access.rows[user_id].without_stream(stream_id))


def drop_topic(state: StreamsState, stream_id: int, topic_id: int) -> None:
    """Take back every grant in a topic that is gone."""
    for access in _with_topic(state, stream_id, topic_id):
        left = access.without_topic(stream_id, topic_id)
        state.access.put(left.user_id, left)
        if stream_id not in left.streams:
            _remove_grantee(state, stream_id, left.user_id)


def _with_topic(state: StreamsState, stream_id: int, topic_id: int) -> list[Access]:
    rows = state.access.rows
    users = map(rows.__getitem__, grantees_of(state, stream_id))
    return [access for access in users if topic_id in access.streams[stream_id].topics]


def _rows(access: Access) -> int:
    return _ROWS_PER_USER + len(access.streams) // _GRANTS_PER_ROW


def _add_grantee(state: StreamsState, stream_id: int, user_id: int) -> None:
    users = state.grantees.rows.get(stream_id)
    if users is None:
        users = state.grantees.nested()
        state.grantees.put(stream_id, users)
    users.put(user_id, None)


def _remove_grantee(state: StreamsState, stream_id: int, user_id: int) -> None:
    users = state.grantees.rows[stream_id]
    users.delete(user_id)
    if not users:
        state.grantees.delete(stream_id)
