"""The projection of users in streams equals its source, also after grants were dropped in both."""

from __future__ import annotations

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from services.streams.access import Access, new_access
from services.users import permissions as source
from viewstamp.api.users.v1 import users_pb2

STREAMS: Final = st.integers(1, 3)
TOPICS: Final = st.integers(1, 3)


def bits(count: int) -> st.SearchStrategy[int]:
    """Return sets of so many flags, seldom many of them."""
    return st.one_of(st.just(0), st.sampled_from([1 << bit for bit in range(count)]))


GRANTS: Final = st.builds(
    source.canonical,
    bits(10),
    st.lists(
        st.builds(
            source.StreamPermissions,
            STREAMS,
            bits(6),
            st.lists(st.builds(source.TopicPermissions, TOPICS, bits(4)), max_size=3).map(tuple),
        ),
        max_size=3,
    ),
)


def encoded(permissions: source.Permissions) -> bytes:
    """Return the bytes that the users section holds."""
    return source.to_message(permissions).SerializeToString(deterministic=True)


def projected(permissions: source.Permissions) -> Access:
    """Return the streams result of an effect from users."""
    message = users_pb2.Permissions.FromString(encoded(permissions))
    return new_access(5, 1).with_permissions(message)


@given(GRANTS, STREAMS, TOPICS)
def test_drops_agree(permissions: source.Permissions, stream: int, topic: int) -> None:
    """Users and streams, each dropping grants by itself, end with the same bytes and rights."""
    access = projected(permissions)
    assert access.permissions == encoded(permissions)
    without_topic = source.without_topic(permissions, stream, topic)
    assert access.without_topic(stream, topic) == projected(without_topic)
    without_stream = source.without_stream(permissions, stream)
    assert access.without_stream(stream) == projected(without_stream)
