"""Changes of the projection of users, with the index from streams to users with scoped grants.

A grant is dropped together with its stream or topic: `*_rows` return the cost here and in users,
which has the same grants, and the command pays for both before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.streams.access import Access
from services.streams.model import StreamsState

# Of one user who loses a grant: rows, and grants copied for one more row.
_ROWS_PER_USER = 8
_GRANTS_PER_ROW = 32
# Users checked for one row.
_LOOKS_PER_ROW = 4


def put(state: StreamsState, access: Access) -> None:
    """Insert or replace a user's access."""
    before = state.access.rows.get(access.user_id)
    state.access.put(access.user_id, access)
    if before is not None and before.streams is access.streams:
        return
    old = before.streams.keys() if before is not None else set()
    for stream_id in sorted(old - access.streams.keys()):
        state.grantees.take(stream_id, access.user_id)
    for stream_id in sorted(access.streams.keys() - old):
        state.grantees.add(stream_id, access.user_id)


def delete(state: StreamsState, user_id: int) -> None:
    """Forget a user."""
    access = state.access.delete(user_id)
    for stream_id in sorted(access.streams):
        state.grantees.take(stream_id, user_id)


def grantees_of(state: StreamsState, stream_id: int) -> Iterable[int]:
    """Return the users with a grant in a stream, ascending."""
    return state.grantees.of(stream_id)


def stream_rows(state: StreamsState, stream_id: int) -> int:
    """Return the cost for one of the two domains of dropping all grants in a stream."""
    return sum(_rows(state.access.rows[user_id]) for user_id in grantees_of(state, stream_id))


def look_rows(state: StreamsState, stream_id: int) -> int:
    """Return the cost of finding the users with a grant in a topic of a stream."""
    users = state.grantees.rows.get(stream_id)
    return 0 if users is None else len(users) // _LOOKS_PER_ROW


def topic_rows(state: StreamsState, stream_id: int, topic_id: int) -> int:
    """Return the cost for one of the two domains of dropping all grants in a topic."""
    return sum(
        _rows(access) + len(access.streams[stream_id].topics) // _GRANTS_PER_ROW
        for access in _with_topic(state, stream_id, topic_id)
    )


def drop_stream(state: StreamsState, stream_id: int) -> None:
    """Take back every grant in a deleted stream."""
    users = grantees_of(state, stream_id)
    if users:
        state.grantees.delete(stream_id)
    for user_id in users:
        state.access.put(user_id, state.access.rows[user_id].without_stream(stream_id))


def drop_topic(state: StreamsState, stream_id: int, topic_id: int) -> None:
    """Take back every grant in a deleted topic."""
    for access in _with_topic(state, stream_id, topic_id):
        left = access.without_topic(stream_id, topic_id)
        state.access.put(left.user_id, left)
        if stream_id not in left.streams:
            state.grantees.take(stream_id, left.user_id)


def _with_topic(state: StreamsState, stream_id: int, topic_id: int) -> list[Access]:
    rows = state.access.rows
    users = map(rows.__getitem__, grantees_of(state, stream_id))
    return [access for access in users if topic_id in access.streams[stream_id].topics]


def _rows(access: Access) -> int:
    return _ROWS_PER_USER + len(access.streams) // _GRANTS_PER_ROW
