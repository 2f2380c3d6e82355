"""Grants on streams and topics: how they are resolved, kept canonical, and dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.services.users.users_support import (
    Users,
    by_id,
    by_name,
    create_request,
    refused,
    resolved_by_id,
    stream_grant,
    topic_grant,
)
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.domain.v1.effects_pb2 import EffectPayload, GrantsContext
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1.users_service_pb2 import (
    GetUserRequest,
    UpdatePermissionsRequest,
)


@pytest.fixture
def users() -> Users:
    """Return a bootstrapped cluster."""
    return Users().found()


def test_grants_become_canonical(users: Users) -> None:
    """Names become ids, ascending; duplicates are united, and empty grants are dropped."""
    granted = users_pb2.Permissions(
        streams=[
            stream_grant(
                by_name("nine"),
                [
                    topic_grant(by_id(4), read_topic=True),
                    topic_grant(by_name("three"), poll_messages=True),
                    topic_grant(by_id(4), send_messages=True),
                    topic_grant(by_id(5)),
                ],
                read_stream=True,
            ),
            stream_grant(by_id(2), manage_topics=True),
            stream_grant(by_id(9), manage_stream=True),
            stream_grant(by_id(7), [topic_grant(by_id(1))]),
        ]
    )
    context = GrantsContext(
        streams=[
            resolved_stream(9, 4, 3, 4, 5),
            resolved_stream(2),
            resolved_stream(9),
            resolved_stream(7, 1),
        ]
    )

    done = users.command("CreateUser", create_request(permissions=granted), context=context)

    expected = users_pb2.Permissions(
        streams=[
            stream_grant(by_id(2), manage_topics=True),
            stream_grant(
                by_id(9),
                [
                    topic_grant(by_id(3), poll_messages=True),
                    topic_grant(by_id(4), read_topic=True, send_messages=True),
                ],
                manage_stream=True,
                read_stream=True,
            ),
        ]
    )
    assert done.effects[0][1].grants_changed.permissions == expected
    user = users.query("GetUser", GetUserRequest(user=by_name("alice"))).user
    assert user.permissions == expected


GRANTING: list[tuple[str, Callable[[users_pb2.Permissions], Any]]] = [
    ("CreateUser", lambda granted: create_request("bob", permissions=granted)),
    (
        "UpdatePermissions",
        lambda granted: UpdatePermissionsRequest(user=by_name("alice"), permissions=granted),
    ),
]


@pytest.mark.parametrize(("name", "request_of"), GRANTING)
@pytest.mark.parametrize(
    ("named", "reason", "detail"),
    [
        (by_id(3), Reason.REASON_STREAM_NOT_FOUND, {"stream": "3"}),
        (by_name("x"), Reason.REASON_STREAM_NOT_FOUND, {"stream": "x"}),
        (Identifier(), Reason.REASON_MALFORMED_REQUEST, {"field": "stream"}),
    ],
)
def test_missing_stream_in_grants(
    users: Users,
    name: str,
    request_of: Callable[[users_pb2.Permissions], Any],
    named: Identifier,
    reason: Reason.ValueType,
    detail: dict[str, str],
) -> None:
    """Grants on a stream that streams did not find are refused, even if they grant nothing."""
    users.create("alice")
    granted = users_pb2.Permissions(streams=[stream_grant(named)])
    context = GrantsContext(streams=[effects_pb2.ResolvedStream()])

    error = refused(reason, lambda: users.command(name, request_of(granted), context=context))

    assert error.details == detail


@pytest.mark.parametrize(("name", "request_of"), GRANTING)
@pytest.mark.parametrize(
    ("named", "reason", "detail"),
    [
        (by_id(5), Reason.REASON_TOPIC_NOT_FOUND, {"topic": "5", "stream": "3"}),
        (Identifier(), Reason.REASON_MALFORMED_REQUEST, {"field": "topic"}),
    ],
)
def test_missing_topic_in_grants(
    users: Users,
    name: str,
    request_of: Callable[[users_pb2.Permissions], Any],
    named: Identifier,
    reason: Reason.ValueType,
    detail: dict[str, str],
) -> None:
    """Grants on a topic that streams did not find are refused."""
    users.create("alice")
    granted = users_pb2.Permissions(streams=[stream_grant(by_id(3), [topic_grant(named)])])
    missing = effects_pb2.ResolvedStream(stream_id=3, topics=[effects_pb2.ResolvedTopic()])

    error = refused(
        reason,
        lambda: users.command(name, request_of(granted), context=GrantsContext(streams=[missing])),
    )

    assert error.details == detail


@pytest.mark.parametrize(("name", "request_of"), GRANTING)
def test_denied_before_grants_are_missed(
    users: Users, name: str, request_of: Callable[[users_pb2.Permissions], Any]
) -> None:
    """A user who may not manage users does not learn which streams exist."""
    caller = users.create("alice")
    granted = users_pb2.Permissions(streams=[stream_grant(by_id(3), read_stream=True)])
    context = GrantsContext(streams=[effects_pb2.ResolvedStream()])
    refused(
        Reason.REASON_PERMISSION_DENIED,
        lambda: users.command(name, request_of(granted), caller, context=context),
    )


def granted_user(users: Users, username: str, *grants: users_pb2.StreamPermissions) -> int:
    """Create a user with grants on streams."""
    granted = users_pb2.Permissions(streams=grants)
    request = create_request(username, permissions=granted)
    done = users.command("CreateUser", request, context=resolved_by_id(granted))
    user_id: int = done.response.user_id
    return user_id


def streams_of(users: Users, user_id: int) -> list[users_pb2.StreamPermissions]:
    """Return the scoped grants of a user."""
    return list(
        users.query("GetUser", GetUserRequest(user=by_id(user_id))).user.permissions.streams
    )


def test_stream_deleted_drops_its_grants(users: Users) -> None:
    """Grants in a deleted stream go, those in others stay, and users without any are untouched."""
    kept = stream_grant(by_id(4), read_stream=True)
    gone = stream_grant(by_id(3), [topic_grant(by_id(1), read_topic=True)], read_stream=True)
    alice = granted_user(users, "alice", gone, kept)
    bob = granted_user(users, "bob", kept)
    before = users.state.users.rows[bob]

    users.effect(EffectPayload(stream_deleted=effects_pb2.StreamDeleted(stream_id=3)))

    assert streams_of(users, alice) == [kept]
    assert users.state.users.rows[alice].modified_revision == users.revision
    assert users.state.users.rows[bob] is before


def test_topic_deleted_drops_its_grants(users: Users) -> None:
    """Grants on a deleted topic go; a stream entry that then grants nothing goes with them."""
    first = topic_grant(by_id(1), read_topic=True)
    second = topic_grant(by_id(2), read_topic=True)
    alice = granted_user(users, "alice", stream_grant(by_id(3), [first]))
    bob = granted_user(users, "bob", stream_grant(by_id(3), [first, second]))
    carol = granted_user(users, "carol", stream_grant(by_id(3), [second]))
    before = users.state.users.rows[carol]

    deleted = effects_pb2.TopicDeleted(stream_id=3, topic_id=1)
    users.effect(EffectPayload(topic_deleted=deleted))

    assert streams_of(users, alice) == []
    assert streams_of(users, bob) == [stream_grant(by_id(3), [second])]
    assert users.state.users.rows[carol] is before
    assert {s: u.sorted_keys() for s, u in users.state.grantees.rows.items()} == {3: [bob, carol]}


def resolved_stream(stream_id: int, *topic_ids: int) -> effects_pb2.ResolvedStream:
    """Return the answer of streams for one named stream."""
    topics = [effects_pb2.ResolvedTopic(topic_id=topic_id) for topic_id in topic_ids]
    return effects_pb2.ResolvedStream(stream_id=stream_id, topics=topics)
