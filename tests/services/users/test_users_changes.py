"""What watchers are told of users and their tokens: the changes of each command and effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from services.users.commands import COMMANDS
from services.users.effects import EFFECTS
from tests.services.runtime.changes_reading import KINDS, changes_of, limit, page_of
from tests.services.users.users_support import (
    ROOT_HASH,
    SOME_HASH,
    Users,
    by_id,
    by_name,
    create_request,
    resolved_by_id,
    stream_grant,
    topic_grant,
)
from viewstamp import limits
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as service
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.errors import Refusal

# What happened, to a thing of which type, of which user, and the rest of its key.
Told = tuple[str, str, int, bytes]
USER_TYPE: Final = "viewstamp.api.users.v1.User"
TOKEN_TYPE: Final = "viewstamp.api.users.v1.PersonalAccessToken"
ALICE, BOB = 1, 2
EXPIRES_AT: Final = 2_000_000
UPDATED_ALICE: Final[Told] = ("updated", USER_TYPE, ALICE, b"")
HOME_GONE: Final[Told] = ("deleted", TOKEN_TYPE, ALICE, b"home")
WORK_GONE: Final[Told] = ("deleted", TOKEN_TYPE, ALICE, b"work")


def founded() -> Users:
    """Return root, alice with two tokens and a grant in a topic, and bob with one in a stream."""
    users = Users().found()
    users.create("alice")
    users.create("bob")
    topic = users_pb2.Permissions(
        streams=[stream_grant(by_id(1), [topic_grant(by_id(2), read_topic=True)])]
    )
    stream = users_pb2.Permissions(streams=[stream_grant(by_id(1), read_stream=True)])
    for user_id, granted in ((ALICE, topic), (BOB, stream)):
        request = service.UpdatePermissionsRequest(user=by_id(user_id), permissions=granted)
        users.command("UpdatePermissions", request, context=resolved_by_id(granted))
    for name, expires_at in (("work", 0), ("home", EXPIRES_AT)):
        make = token_request(name=name, expires_at=expires_at, token_hash=name.encode() * 8)
        users.command("CreatePersonalAccessToken", make, ALICE)
    return users


def token_request(**fields: Any) -> service.CreatePersonalAccessTokenRequest:
    """Return a request for a token."""
    return service.CreatePersonalAccessTokenRequest(**fields)


def expiry(users: Users) -> service.ExpirePersonalAccessTokenRequest:
    """Return the command that lets alice's token end."""
    created = users.state.tokens.rows[ALICE, "home"].created_revision
    return service.ExpirePersonalAccessTokenRequest(
        user_id=ALICE, name="home", created_revision=created
    )


def tell(change: Change) -> Told:
    """Return a change in few words."""
    assert change.domain == routing_pb2.STAGE_USERS
    assert (change.stream_id, change.topic_id, change.group_id) == (0, 0, 0)
    assert change.key[:8] == change.user_id.to_bytes(8, "big")
    return KINDS[change.kind], change.entity_type, change.user_id, change.key[8:]


def new_changes(users: Users, do: Callable[[], object]) -> list[Change]:
    """Do something and return the changes that it makes, all of its last revision."""
    before = users.revision
    do()
    changes = changes_of(users.machine, from_revision=before + 1)
    assert {change.revision for change in changes} <= {users.revision}
    return changes


# Command, who calls, request, changes.
COMMAND_ROWS: Final[dict[str, tuple[str, int, Any, list[Told]]]] = {
    "Found again": ("Found", limits.SYSTEM_USER_ID, service.FoundRequest(), []),
    "CreateUser": ("CreateUser", 0, create_request("carol"), [("created", USER_TYPE, 3, b"")]),
    "UpdateUser by name": (
        "UpdateUser",
        0,
        service.UpdateUserRequest(user=by_name("alice"), username="amy"),
        [UPDATED_ALICE],
    ),
    "UpdateUser by status": (
        "UpdateUser",
        0,
        service.UpdateUserRequest(user=by_id(ALICE), status=users_pb2.USER_STATUS_INACTIVE),
        [UPDATED_ALICE],
    ),
    "UpdateUser to the same": (
        "UpdateUser",
        0,
        service.UpdateUserRequest(user=by_id(ALICE), username="alice"),
        [],
    ),
    "DeleteUser": (
        "DeleteUser",
        0,
        service.DeleteUserRequest(user=by_id(ALICE)),
        [HOME_GONE, WORK_GONE, ("deleted", USER_TYPE, ALICE, b"")],
    ),
    "DeleteUser without tokens": (
        "DeleteUser",
        0,
        service.DeleteUserRequest(user=by_id(BOB)),
        [("deleted", USER_TYPE, BOB, b"")],
    ),
    "ChangePassword": (
        "ChangePassword",
        0,
        service.ChangePasswordRequest(user=by_id(ALICE), new_password_hash="$n"),
        [UPDATED_ALICE, HOME_GONE, WORK_GONE],
    ),
    "ChangePassword that keeps tokens": (
        "ChangePassword",
        0,
        service.ChangePasswordRequest(
            user=by_id(ALICE), new_password_hash="$n", keep_tokens=True, keep_sessions=True
        ),
        [UPDATED_ALICE],
    ),
    "UpdatePermissions": (
        "UpdatePermissions",
        0,
        service.UpdatePermissionsRequest(user=by_id(ALICE)),
        [UPDATED_ALICE],
    ),
    "CreatePersonalAccessToken": (
        "CreatePersonalAccessToken",
        BOB,
        token_request(name="new", token_hash=b"n" * 32),
        [("created", TOKEN_TYPE, BOB, b"new")],
    ),
    # The credentials that end with it are a change of the row, and of nothing that watchers see.
    "DeletePersonalAccessToken": (
        "DeletePersonalAccessToken",
        ALICE,
        service.DeletePersonalAccessTokenRequest(name="work"),
        [WORK_GONE],
    ),
    "DeleteUserToken": (
        "DeleteUserToken",
        0,
        service.DeleteUserTokenRequest(user=by_id(ALICE), name="home"),
        [HOME_GONE],
    ),
    "Logout": ("Logout", ALICE, service.LogoutRequest(), []),
    "EndUserSessions": (
        "EndUserSessions",
        0,
        service.EndUserSessionsRequest(user=by_id(ALICE)),
        [],
    ),
}

EFFECT_ROWS: Final[dict[str, tuple[dict[str, Any], list[Told]]]] = {
    "a stream is deleted": (
        {"stream_deleted": effects_pb2.StreamDeleted(stream_id=1, topic_ids=[2])},
        [UPDATED_ALICE, ("updated", USER_TYPE, BOB, b"")],
    ),
    "a stream without grants is deleted": (
        {"stream_deleted": effects_pb2.StreamDeleted(stream_id=9)},
        [],
    ),
    "a topic is deleted": (
        {"topic_deleted": effects_pb2.TopicDeleted(stream_id=1, topic_id=2)},
        [UPDATED_ALICE],
    ),
    "a topic without grants is deleted": (
        {"topic_deleted": effects_pb2.TopicDeleted(stream_id=1, topic_id=3)},
        [],
    ),
}


def test_every_command_and_effect_has_a_row() -> None:
    """The tables have a row for whatever changes the state; a token's expiry has its own test."""
    commands = {name for name, _, _, _ in COMMAND_ROWS.values()}
    assert commands | {"ExpirePersonalAccessToken"} == set(COMMANDS)
    assert {kind for fields, _ in EFFECT_ROWS.values() for kind in fields} == set(EFFECTS)


@pytest.mark.parametrize("name", COMMAND_ROWS)
def test_a_command_makes_these_changes(name: str) -> None:
    """Each command tells what it did to users and their tokens."""
    command, caller, request, expected = COMMAND_ROWS[name]
    users = founded()
    found = new_changes(users, lambda: users.command(command, request, caller))
    assert [tell(change) for change in found] == expected


@pytest.mark.parametrize("name", EFFECT_ROWS)
def test_an_effect_makes_these_changes(name: str) -> None:
    """Each effect of streams tells whose grants went."""
    fields, expected = EFFECT_ROWS[name]
    users = founded()
    payload = effects_pb2.EffectPayload(**fields)
    assert [tell(c) for c in new_changes(users, lambda: users.effect(payload))] == expected


def test_the_founding_creates_root() -> None:
    """Root, whose id is 0, is a user that was created, and the first change of all."""
    users = Users().found()
    assert [tell(change) for change in changes_of(users.machine)] == [
        ("created", USER_TYPE, 0, b"")
    ]


@pytest.mark.parametrize("is_due", [False, True])
def test_a_token_that_expires_is_deleted(is_due: bool) -> None:
    """The internal command makes a change once it is time, and none before."""
    users = founded()
    users.timestamp = EXPIRES_AT if is_due else EXPIRES_AT - 10
    request = expiry(users)

    def expire() -> None:
        users.command("ExpirePersonalAccessToken", request, limits.SYSTEM_USER_ID, credential=0)

    assert [tell(c) for c in new_changes(users, expire)] == ([HOME_GONE] if is_due else [])


def test_a_refused_command_makes_no_change() -> None:
    """A name that is taken changes nothing."""
    users = founded()

    def create() -> None:
        with pytest.raises(Refusal, match="alice"):
            users.create("alice")

    assert new_changes(users, create) == []


def test_what_is_taken_back_makes_no_change() -> None:
    """Users created under a savepoint that is taken back were never there."""
    users = founded()

    def rehearse() -> None:
        users.savepoint()
        users.create("carol")
        users.revert()

    assert new_changes(users, rehearse) == []


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_user_is_described_as_callers_see_it(is_deleted: bool) -> None:
    """The entity is the message that GetUser answers, with permissions."""
    users, get = founded(), service.GetUserRequest(user=by_id(ALICE))
    before = users.query("GetUser", get).user
    if is_deleted:
        delete = service.DeleteUserRequest(user=by_id(ALICE))
        *_, change = new_changes(users, lambda: users.command("DeleteUser", delete))
    else:
        update = service.UpdateUserRequest(user=by_id(ALICE), username="amy")
        (change,) = new_changes(users, lambda: users.command("UpdateUser", update))
    seen = before if is_deleted else users.query("GetUser", get).user
    assert users_pb2.User.FromString(change.entity) == seen
    assert seen.username == ("alice" if is_deleted else "amy")
    assert len(seen.permissions.streams) == 1


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_token_is_described_as_callers_see_it(is_deleted: bool) -> None:
    """The entity is the message that ListPersonalAccessTokens answers."""
    users, get = founded(), service.ListPersonalAccessTokensRequest()
    home, work = users.query("ListPersonalAccessTokens", get, ALICE).tokens
    if is_deleted:
        delete = service.DeletePersonalAccessTokenRequest(name="home")
        changes = new_changes(
            users, lambda: users.command("DeletePersonalAccessToken", delete, ALICE)
        )
    else:
        changes = changes_of(users.machine, from_revision=users.revision)
    assert users_pb2.PersonalAccessToken.FromString(changes[0].entity) == home
    assert (home.name, home.expires_at, work.name) == ("home", EXPIRES_AT, "work")


def test_no_change_tells_a_secret() -> None:
    """Hashes of passwords and tokens are in rows, and in no entity."""
    users = founded()
    request = service.ChangePasswordRequest(user=by_id(ALICE), new_password_hash="$fresh")
    users.command("ChangePassword", request)
    told = b"".join(change.SerializeToString() for change in changes_of(users.machine))
    assert b"alice" in told
    secrets = [SOME_HASH.encode(), ROOT_HASH.encode(), b"$fresh", b"work" * 8, b"home" * 8]
    assert [secret in told for secret in secrets] == [False] * 5


def test_grants_weigh_where_they_are_replaced() -> None:
    """A user with many grants may be renamed often without taking the room of other changes."""
    users = founded()
    granted = users_pb2.Permissions(
        streams=[stream_grant(by_id(number), read_stream=True) for number in range(1, 101)]
    )
    request = service.UpdatePermissionsRequest(user=by_id(ALICE), permissions=granted)
    users.command("UpdatePermissions", request, context=resolved_by_id(granted))
    limit(users.machine, 10_000)
    first = users.revision + 1
    for number in range(5):
        rename = service.UpdateUserRequest(user=by_id(ALICE), username=f"alice-{number}")
        users.command("UpdateUser", rename)
    assert page_of(users.machine).oldest_revision == first
    none = service.UpdatePermissionsRequest(user=by_id(ALICE))
    users.command("UpdatePermissions", none)
    assert page_of(users.machine).oldest_revision == users.revision + 1
