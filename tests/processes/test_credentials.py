"""Credentials end as documented: callers of a real replica try what they once got."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from tests.processes.callers import span
from tests.processes.credentials import (
    OTHER_PASSWORD,
    PASSWORD,
    Door,
    ends_with,
    refusal_of,
)
from tests.processes.processes import ReplicaProcesses, replica, unique
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as service_pb2
from viewstamp.client import Client, RawSession, connect
from viewstamp.limits import ROOT_USER_ID

pytestmark = pytest.mark.xdist_group("processes")

END_SESSION_CODE: Final = 2


def may(permission: str) -> users_pb2.Permissions:
    """Return one permission, everywhere."""
    granted = users_pb2.Permissions()
    setattr(getattr(granted, "global"), permission, True)
    return granted


@pytest.fixture
def door(shared: ReplicaProcesses) -> Door:
    """The shared replica."""
    return Door(shared.address)


@pytest.fixture
async def root(shared: ReplicaProcesses, door: Door) -> AsyncIterator[Client]:
    """Root, over the client library."""
    async with door.client("root", shared.root_password()) as client:
        yield client


@pytest.fixture
async def alice(root: Client) -> str:
    """The name of a user who may manage streams."""
    name = unique("alice")
    await root.users.create(name, PASSWORD, permissions=may("manage_streams"))
    return name


async def new_token(door: Door, username: str, name: str) -> str:
    """Return a new personal access token of a user."""
    request = service_pb2.CreatePersonalAccessTokenRequest(name=name)
    return str((await door.ask(request, await door.by_password(username))).token)


async def creates_a_stream(session: RawSession, number: int) -> None:
    """Create a stream in a session."""
    request = streams_pb2.CreateStreamRequest(name=unique("stream"))
    reply = await session.submit_request(number, number - 1, [span(200, request)])
    assert not reply.message.command.HasField("error"), reply.message


async def sessions_of(root: Client, username: str) -> list[int]:
    """Return the sessions of a user, as an administrator sees them."""
    user_id = (await root.users.get(username)).id
    return [session.session_id async for session in root.sessions.list(user_id=user_id)]


async def test_logout_ends_what_the_password_got(door: Door, alice: str) -> None:
    """No method serves an access token after a logout; a client with the password logs in anew."""
    first, second = [await door.by_password(alice) for _ in range(2)]
    minted = await door.by_token(await new_token(door, alice, "laptop"))
    assert await door.is_in_force(first)
    async with door.client(alice) as client:
        await door.ask(service_pb2.LogoutRequest(), first)
        for ended in (first, second, minted):
            assert await door.still_served(ended) == {}
        assert (await client.users.who_am_i()).username == alice


async def test_logout_of_a_token_leaves_the_password_alone(door: Door, alice: str) -> None:
    """A logout with a personal access token's access token leaves those of the password valid."""
    personal = await new_token(door, alice, "laptop")
    by_password, minted = await door.by_password(alice), await door.by_token(personal)
    await door.ask(service_pb2.LogoutRequest(), minted)
    assert not await door.is_in_force(minted)
    assert await door.is_in_force(by_password)
    assert await door.is_in_force(await door.by_token(personal))


async def test_a_deleted_token_ends_what_it_got(door: Door, root: Client, alice: str) -> None:
    """A token's deletion by an administrator ends its access tokens and their streams."""
    personal = await new_token(door, alice, "laptop")
    by_password, minted = await door.by_password(alice), await door.by_token(personal)
    async with door.session(minted) as session, door.session(by_password) as other:
        await root.tokens.revoke(alice, "laptop")
        assert await ends_with(session) == "UNAUTHENTICATED"
        assert await door.still_served(minted) == {}
        refusal = await refusal_of(door.by_token(personal))
        assert refusal.reason == Reason.REASON_INVALID_CREDENTIALS
        assert await door.is_in_force(by_password)
        await creates_a_stream(other, 1)


async def test_holders_of_another_token_hardly_notice(door: Door, root: Client, alice: str) -> None:
    """A deletion also ends access tokens of the user's other personal access tokens.

    The library logs in with them again, and its session goes on.
    """
    await new_token(door, alice, "laptop")
    server = await new_token(door, alice, "server")
    async with await connect(door.address, personal_access_token=server) as client:
        await client.streams.create(unique("stream"))
        session_id = client.session_id
        await root.tokens.revoke(alice, "laptop")
        await client.streams.create(unique("stream"))
        assert (await client.users.who_am_i()).username == alice
        assert client.session_id == session_id


async def test_sessions_are_listed(door: Door, root: Client, alice: str) -> None:
    """Users see their own sessions; those of others need the permission to read users."""
    async with door.client(alice) as client, door.client(alice) as second:
        both = sorted((client.session_id, second.session_id))
        assert [each.session_id for each in await client.sessions.own()] == both
        assert await sessions_of(root, alice) == both
        everybody = [each.session_id async for each in root.sessions.list()]
        assert {*both, root.session_id} <= set(everybody)
        with_root = client.call(sessions_pb2.ListUserSessionsRequest(user_id=ROOT_USER_ID))
        assert (await refusal_of(with_root)).reason == Reason.REASON_PERMISSION_DENIED
    # The library ends its session when it closes.
    assert await sessions_of(root, alice) == []


async def test_sessions_end_one_by_one_or_all(door: Door, root: Client, alice: str) -> None:
    """The stream of an ended session ends; the session that carries the command lives on."""
    token = await door.by_password(alice)
    async with (
        door.client(alice) as client,
        door.session(token) as first,
        door.session(token) as second,
    ):
        await client.sessions.end(session_id=first.session_id)
        assert await ends_with(first) == "SESSION_EVICTED"
        await creates_a_stream(second, 1)
        await client.sessions.end()
        assert await ends_with(second) == "SESSION_EVICTED"
        await client.streams.create(unique("stream"))
        assert await sessions_of(root, alice) == [client.session_id]
        # Access tokens stay valid: only sessions were ended.
        assert await door.is_in_force(token)


async def test_an_administrator_ends_sessions(door: Door, root: Client, alice: str) -> None:
    """Only those who manage users end the sessions of others; the library registers a new one."""
    async with door.client(alice) as client:
        before = client.session_id
        bob = unique("bob")
        await root.users.create(bob, PASSWORD)
        async with door.client(bob) as powerless:
            refusal = await refusal_of(powerless.sessions.end(user=alice))
            assert refusal.reason == Reason.REASON_PERMISSION_DENIED
        assert await sessions_of(root, alice) == [before]
        await root.sessions.end(user=alice, validate_only=True)
        assert await sessions_of(root, alice) == [before]
        await root.sessions.end(user=alice)
        assert await sessions_of(root, alice) == []
        await client.streams.create(unique("stream"))
        assert await sessions_of(root, alice) == [client.session_id] != [before]


async def test_a_session_ends_itself(door: Door, root: Client, alice: str) -> None:
    """EndSession is answered, then the stream ends; nobody can open the session again."""
    token = await door.by_password(alice)
    async with door.session(token) as session:
        request = span(END_SESSION_CODE, sessions_pb2.EndSessionRequest())
        reply = await session.submit_request(1, 0, [request])
        assert not reply.message.command.HasField("error"), reply.message
        assert await ends_with(session) == "SESSION_EVICTED"
        refusal = await refusal_of(opened_again(door, token, session.session_id))
        assert refusal.reason == Reason.REASON_SESSION_EVICTED
    assert await sessions_of(root, alice) == []


async def opened_again(door: Door, token: str, session_id: int) -> None:
    """Open a stream of a session."""
    async with door.session(token, session_id):
        pass


async def change_own_password(door: Door, username: str, *, keeps_others: bool) -> None:
    """Have a user choose another password."""
    request = service_pb2.ChangePasswordRequest(
        current_password=PASSWORD,
        new_password=OTHER_PASSWORD,
        keep_tokens=keeps_others,
        keep_sessions=keeps_others,
    )
    await door.ask(request, await door.by_password(username))


async def test_a_new_password_ends_everything(door: Door, root: Client, alice: str) -> None:
    """By default a new password ends sessions, access tokens and personal access tokens."""
    personal = await new_token(door, alice, "laptop")
    by_password, minted = await door.by_password(alice), await door.by_token(personal)
    async with door.session(by_password) as session:
        await change_own_password(door, alice, keeps_others=False)
        assert await ends_with(session) == "SESSION_EVICTED"
    assert await sessions_of(root, alice) == []
    assert not await door.is_in_force(by_password)
    assert not await door.is_in_force(minted)
    for attempt in (door.by_token(personal), door.by_password(alice)):
        refusal = await refusal_of(attempt)
        assert refusal.reason == Reason.REASON_INVALID_CREDENTIALS
    assert await door.is_in_force(await door.by_password(alice, OTHER_PASSWORD))


async def test_a_new_password_can_keep_tokens_and_sessions(
    door: Door, root: Client, alice: str
) -> None:
    """On request sessions and personal access tokens stay; access tokens end nevertheless."""
    personal = await new_token(door, alice, "laptop")
    by_password = await door.by_password(alice)
    async with await connect(door.address, personal_access_token=personal) as client:
        before = client.session_id
        await change_own_password(door, alice, keeps_others=True)
        assert not await door.is_in_force(by_password)
        await client.streams.create(unique("stream"))
        assert await sessions_of(root, alice) == [client.session_id] == [before]


async def test_a_reset_evicts_an_intruder(door: Door, root: Client, alice: str) -> None:
    """A reset ends an intruder's streams and tokens, and protects the owner's new session."""
    personal = await new_token(door, alice, "backdoor")
    stolen = [await door.by_password(alice), await door.by_token(personal)]
    async with (
        door.session(stolen[0]) as intruder,
        door.stream_for_reads(stolen[0]) as reader,
        door.session(stolen[1]) as second,
    ):
        await creates_a_stream(intruder, 1)
        await root.users.change_password(OTHER_PASSWORD, user=alice)
        assert await ends_with(intruder) == "SESSION_EVICTED"
        assert await ends_with(second) == "SESSION_EVICTED"
        assert await ends_with(reader) == "UNAUTHENTICATED"
    async with door.session(await door.by_password(alice, OTHER_PASSWORD)) as owner:
        for token in stolen:
            assert await door.still_served(token) == {}
            refusal = await refusal_of(opened_again(door, token, owner.session_id))
            assert refusal.reason == Reason.REASON_UNAUTHENTICATED
            assert "log in again" in refusal.message
        for attempt in (door.by_token(personal), door.by_password(alice)):
            assert (await refusal_of(attempt)).reason == Reason.REASON_INVALID_CREDENTIALS
        await creates_a_stream(owner, 1)
    assert await sessions_of(root, alice) == [owner.session_id]


ROOT: Final = Identifier(id=ROOT_USER_ID)
# Only root may make these changes of root; each with the reason of its refusal.
ON_ROOT: Final[dict[str, tuple[Message, Any]]] = {
    "password": (
        service_pb2.ChangePasswordRequest(user=ROOT, new_password=OTHER_PASSWORD),
        Reason.REASON_PERMISSION_DENIED,
    ),
    "token": (
        service_pb2.DeleteUserTokenRequest(user=ROOT, name="any token"),
        Reason.REASON_PERMISSION_DENIED,
    ),
    "sessions": (
        service_pb2.EndUserSessionsRequest(user=ROOT),
        Reason.REASON_PERMISSION_DENIED,
    ),
    "name": (
        service_pb2.UpdateUserRequest(user=ROOT, username="toor"),
        Reason.REASON_PERMISSION_DENIED,
    ),
    "status": (
        service_pb2.UpdateUserRequest(user=ROOT, status=users_pb2.USER_STATUS_INACTIVE),
        Reason.REASON_PERMISSION_DENIED,
    ),
    "permissions": (
        service_pb2.UpdatePermissionsRequest(user=ROOT),
        Reason.REASON_CANNOT_CHANGE_ROOT_PERMISSIONS,
    ),
    "existence": (
        service_pb2.DeleteUserRequest(user=ROOT),
        Reason.REASON_CANNOT_DELETE_ROOT,
    ),
}


async def test_nobody_but_root_changes_root(
    door: Door, root: Client, shared: ReplicaProcesses
) -> None:
    """A user who manages users is refused every change of root, unary and in a transaction."""
    name, before = unique("admin"), await root.users.get("root")
    await root.users.create(name, PASSWORD, permissions=may("manage_users"))
    token = await door.by_password("root", shared.root_password())
    async with door.client(name) as admin:
        for what, (request, reason) in ON_ROOT.items():
            refusal = await refusal_of(admin.call(request))
            assert refusal.reason == reason, what
            if reason == Reason.REASON_PERMISSION_DENIED:
                assert refusal.details["permission"] == "root", what
        with_another = [service_pb2.EndUserSessionsRequest(), ON_ROOT["sessions"][0]]
        refusal = await refusal_of(admin.transact(with_another))
        assert (refusal.reason, refusal.details["part"]) == (Reason.REASON_PERMISSION_DENIED, "1")
    assert await root.users.get("root") == before
    assert await door.is_in_force(token)


async def test_tokens_of_another_cluster_are_refused(door: Door, alice: str) -> None:
    """An access token of another cluster with the same key is refused, with a remedy."""
    with replica() as running:
        there = Door(running.address)
        async with there.client("root", running.root_password()) as root:
            await root.users.create(alice, PASSWORD)
        personal = await new_token(there, alice, "laptop")
        access = await there.by_password(alice)
        assert await there.is_in_force(access)
    assert await door.still_served(access) == {}
    refusal = await refusal_of(door.ask(service_pb2.WhoAmIRequest(), access))
    assert refusal.message == (
        "The access token was not signed by this cluster; log in again, here."
    )
    refusal = await refusal_of(door.by_token(personal))
    assert refusal.reason == Reason.REASON_INVALID_CREDENTIALS
    assert "use one that CreatePersonalAccessToken returned" in refusal.message
