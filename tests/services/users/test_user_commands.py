"""The commands on users: their changes, their effects, and their refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.users.users_support import (
    GROUPS,
    ROOT_HASH,
    SESSIONS,
    STREAMS,
    Users,
    by_id,
    by_name,
    create_request,
    credentials,
    permissions,
    refused,
    resolved_by_id,
    stream_grant,
)
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.domain.v1.effects_pb2 import (
    EffectPayload,
    GrantsChanged,
    UserActivated,
    UserDeactivated,
    UserDeleted,
    UserSessionsEnded,
)
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1.users_service_pb2 import (
    ChangePasswordRequest,
    DeleteUserRequest,
    FoundRequest,
    UpdatePermissionsRequest,
    UpdateUserRequest,
)

ACTIVE = users_pb2.USER_STATUS_ACTIVE
INACTIVE = users_pb2.USER_STATUS_INACTIVE


@pytest.fixture
def users() -> Users:
    """Return a bootstrapped cluster."""
    return Users().found()


def own_password_request(users: Users, user_id: int, **fields: Any) -> ChangePasswordRequest:
    """Return a normalized request on one's own password."""
    verified = users.credential(user_id)
    return ChangePasswordRequest(
        new_password_hash="$new", verified_credential_revision=verified, **fields
    )


# --- Bootstrap ---


def test_bootstrap_creates_root() -> None:
    """The first command creates root with id 0, all permissions and credential revision 1."""
    users = Users()

    done = users.command("Found", FoundRequest(root_password_hash=ROOT_HASH), limits.SYSTEM_USER_ID)

    root = users.state.users.rows[0]
    assert (root.username, root.active, root.credential_revision) == ("root", True, 1)
    assert root.password_hash == ROOT_HASH
    everything = [f.name for f in users_pb2.GlobalPermissions.DESCRIPTOR.fields]
    granted = permissions(everything)
    assert done.effects == [
        (
            (STREAMS,),
            EffectPayload(grants_changed=GrantsChanged(user_id=0, permissions=granted)),
        ),
        ((STREAMS,), credentials(0, 1)),
    ]


def test_bootstrap_twice_changes_nothing(users: Users) -> None:
    """A second bootstrap is a no-op, whatever hash it brings."""
    before = users.entities()

    done = users.command("Found", FoundRequest(root_password_hash="$x"), limits.SYSTEM_USER_ID)

    assert users.entities() == before
    assert done.effects == []


def test_bootstrap_without_a_hash_is_refused() -> None:
    """Root cannot be created without a password hash."""
    error = refused(
        Reason.REASON_MALFORMED_REQUEST, lambda: Users().command("Found", FoundRequest())
    )
    assert error.details == {"field": "root_password_hash"}


# --- CreateUser ---


def test_create_user_tells_streams(users: Users) -> None:
    """A new user, even without grants, reaches streams with the minimum credential revision."""
    done = users.command("CreateUser", create_request())

    user = users.state.users.rows[done.response.user_id]
    assert user.id == limits.FIRST_USER_ID
    assert user.created_revision == user.modified_revision == done.revision
    assert user.credential_revision == done.revision
    assert user.created_at == users.timestamp
    nothing = GrantsChanged(user_id=1, permissions=permissions([]))
    assert done.effects == [
        (
            (STREAMS,),
            EffectPayload(grants_changed=nothing),
        ),
        ((STREAMS,), credentials(1, done.revision)),
    ]


def test_create_inactive_user_tells_streams(users: Users) -> None:
    """A user created inactive reaches streams as deactivated, and no earlier stage."""
    done = users.command("CreateUser", create_request(status=INACTIVE))

    assert not users.state.users.rows[1].active
    assert done.effects[2:] == [
        ((STREAMS,), EffectPayload(user_deactivated=UserDeactivated(user_id=1)))
    ]


def test_user_ids_are_never_reused(users: Users) -> None:
    """The id of a deleted user stays unused, and so do its grants."""
    first = users.create("alice")
    users.command("DeleteUser", DeleteUserRequest(user=by_id(first)))

    assert users.create("alice") == first + 1


@pytest.mark.parametrize("username", ["al", "a" * 51, "a\x00b", "a\x7fb", "a\x85b", "", "é"])
def test_invalid_username(users: Users, username: str) -> None:
    """Names outside 3 to 50 bytes, or with control characters, are refused on creation."""
    refused(
        Reason.REASON_INVALID_USERNAME,
        lambda: users.command("CreateUser", create_request(username)),
    )


@pytest.mark.parametrize("username", ["abc", "a" * 50, "éa", "日本語"])
def test_valid_username(users: Users, username: str) -> None:
    """Names of 3 to 50 bytes of UTF-8 are accepted, at the limits too."""
    users.command("CreateUser", create_request(username))
    assert users.state.user_named(username) is not None


def test_taken_username(users: Users) -> None:
    """A name is unique among all users."""
    users.create("alice")
    error = refused(
        Reason.REASON_USER_EXISTS, lambda: users.command("CreateUser", create_request("alice"))
    )
    assert error.details == {"username": "alice"}


@pytest.mark.parametrize("fields", [{"password_hash": ""}, {"password": "clear text"}])
def test_create_user_must_be_normalized(users: Users, fields: dict[str, str]) -> None:
    """A command that reached the log without hash, or with clear text, is refused."""
    refused(
        Reason.REASON_MALFORMED_REQUEST,
        lambda: users.command("CreateUser", create_request(**fields)),
    )


@pytest.mark.parametrize("name", ["CreateUser", "UpdateUser"])
def test_unknown_status_is_malformed(users: Users, name: str) -> None:
    """A number that is no status is refused."""
    request: Any = create_request("bob")
    if name == "UpdateUser":
        request = UpdateUserRequest(user=by_id(users.create("alice")))
    request.status = 9
    error = refused(Reason.REASON_MALFORMED_REQUEST, lambda: users.command(name, request))
    assert error.details == {"field": "status", "status": "9"}


# --- UpdateUser ---


def test_rename(users: Users) -> None:
    """A rename frees the old name, takes the new one, and sends no effect."""
    alice = users.create("alice")

    done = users.command("UpdateUser", UpdateUserRequest(user=by_name("alice"), username="bob"))

    assert done.effects == []
    assert users.state.user_named("alice") is None
    renamed = users.state.user_named("bob")
    assert renamed is not None
    assert (renamed.id, renamed.modified_revision) == (alice, done.revision)


def test_deactivation_and_activation(users: Users) -> None:
    """Deactivation reaches all stages with the user and raises the minimum; activation, streams."""
    alice = users.create("alice")

    down = users.command("UpdateUser", UpdateUserRequest(user=by_id(alice), status=INACTIVE))
    up = users.command("UpdateUser", UpdateUserRequest(user=by_id(alice), status=ACTIVE))

    assert down.effects == [
        (
            (SESSIONS, STREAMS, GROUPS),
            EffectPayload(user_deactivated=UserDeactivated(user_id=alice)),
        ),
        ((SESSIONS, STREAMS), credentials(alice, down.revision)),
    ]
    assert up.effects == [((STREAMS,), EffectPayload(user_activated=UserActivated(user_id=alice)))]
    assert users.credential(alice) == down.revision


@pytest.mark.parametrize(
    "request_",
    [
        UpdateUserRequest(user=by_name("alice")),
        UpdateUserRequest(user=by_name("alice"), username="alice"),
        UpdateUserRequest(user=by_name("alice"), status=ACTIVE),
    ],
)
def test_update_to_what_is_already_so(users: Users, request_: UpdateUserRequest) -> None:
    """An update without a change leaves the user, and the others, alone."""
    users.create("alice")
    before = users.entities()

    assert users.command("UpdateUser", request_).effects == []
    assert users.entities() == before


def test_rename_to_taken_name(users: Users) -> None:
    """A rename to a name that another user has is refused."""
    users.create("alice")
    users.create("bob")
    request = UpdateUserRequest(user=by_name("alice"), username="bob")
    refused(Reason.REASON_USER_EXISTS, lambda: users.command("UpdateUser", request))


def test_rename_to_invalid_name(users: Users) -> None:
    """A rename obeys the same rules as a creation."""
    users.create("alice")
    request = UpdateUserRequest(user=by_name("alice"), username="x\n")
    refused(Reason.REASON_INVALID_USERNAME, lambda: users.command("UpdateUser", request))


def test_root_cannot_be_deactivated(users: Users) -> None:
    """Root can always act; otherwise nobody might be able to let anybody in."""
    request = UpdateUserRequest(user=by_id(0), status=INACTIVE)
    refused(
        Reason.REASON_CANNOT_CHANGE_ROOT_PERMISSIONS, lambda: users.command("UpdateUser", request)
    )
    assert users.state.users.rows[0].active


def test_root_may_be_asked_to_stay_active(users: Users) -> None:
    """A request that leaves root active changes nothing, and is no error."""
    before = users.entities()
    users.command("UpdateUser", UpdateUserRequest(user=by_id(0), status=ACTIVE))
    assert users.entities() == before


# --- DeleteUser ---


def test_delete_user(users: Users) -> None:
    """A deleted user is gone from every table, and all stages with the user are told."""
    before = users.entities()
    alice = users.create("alice")

    done = users.command("DeleteUser", DeleteUserRequest(user=by_name("alice")))

    assert done.effects == [
        ((SESSIONS, STREAMS, GROUPS), EffectPayload(user_deleted=UserDeleted(user_id=alice)))
    ]
    assert users.entities()[:-1] == before[:-1]  # only the counter has moved on


def test_root_cannot_be_deleted(users: Users) -> None:
    """No user deletes root, not even root."""
    refused(
        Reason.REASON_CANNOT_DELETE_ROOT,
        lambda: users.command("DeleteUser", DeleteUserRequest(user=by_name("root"))),
    )


# --- ChangePassword ---


def test_change_own_password(users: Users) -> None:
    """A new password ends all earlier credentials, and streams and sessions are told."""
    alice = users.create("alice")

    done = users.command("ChangePassword", own_password_request(users, alice), alice)

    user = users.state.users.rows[alice]
    assert user.password_hash == "$new"
    assert user.credential_revision == user.modified_revision == done.revision
    ended = UserSessionsEnded(user_id=alice)
    assert done.effects == [
        ((SESSIONS, STREAMS), credentials(alice, done.revision)),
        ((SESSIONS, GROUPS), EffectPayload(user_sessions_ended=ended)),
    ]


@pytest.mark.parametrize("named", [by_id(1), by_name("alice")])
def test_change_own_password_by_identifier(users: Users, named: Identifier) -> None:
    """A user's own name means the same as no name, and needs no permission."""
    alice = users.create("alice")
    users.command("ChangePassword", own_password_request(users, alice, user=named), alice)
    assert users.state.users.rows[alice].password_hash == "$new"


def test_own_password_must_be_verified(users: Users) -> None:
    """Even root cannot change the own password without the current one."""
    request = ChangePasswordRequest(new_password_hash="$new")
    refused(Reason.REASON_INVALID_CREDENTIALS, lambda: users.command("ChangePassword", request))


def test_password_changed_in_between(users: Users) -> None:
    """Of two changes verified against the same password, the second fails: no update is lost."""
    alice = users.create("alice")
    first = own_password_request(users, alice)
    second = own_password_request(users, alice)
    users.command("ChangePassword", first, alice)

    refused(
        Reason.REASON_INVALID_CREDENTIALS, lambda: users.command("ChangePassword", second, alice)
    )


def test_name_changed_hands_in_between(users: Users) -> None:
    """A verified change of one's own password never changes that of a later owner of the name."""
    admin = users.create("admin", "manage_users")
    request = own_password_request(users, admin, user=by_name("admin"))
    users.command("UpdateUser", UpdateUserRequest(user=by_id(admin), username="other"))
    users.create("admin")

    refused(
        Reason.REASON_INVALID_CREDENTIALS, lambda: users.command("ChangePassword", request, admin)
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"new_password_hash": ""},
        {"new_password_hash": "$x", "new_password": "clear"},
        {"new_password_hash": "$x", "current_password": "clear"},
    ],
)
def test_change_password_must_be_normalized(users: Users, fields: dict[str, Any]) -> None:
    """A command that reached the log without hash, or with clear text, is refused."""
    alice = users.create("alice")
    request = ChangePasswordRequest(user=by_id(alice), **fields)
    refused(Reason.REASON_MALFORMED_REQUEST, lambda: users.command("ChangePassword", request))


# --- UpdatePermissions ---


def test_update_permissions_replaces_all(users: Users) -> None:
    """New permissions replace the old ones, and never touch the credential revision."""
    alice = users.create("alice", "manage_users")
    credential = users.credential(alice)
    granted = users_pb2.Permissions(streams=[stream_grant(by_id(3), read_stream=True)])

    request = UpdatePermissionsRequest(user=by_id(alice), permissions=granted)
    done = users.command("UpdatePermissions", request, context=resolved_by_id(granted))

    assert done.effects == [
        (
            (STREAMS,),
            EffectPayload(grants_changed=GrantsChanged(user_id=alice, permissions=granted)),
        )
    ]
    assert users.credential(alice) == credential
    assert users.state.users.rows[alice].modified_revision == done.revision


def test_update_permissions_to_none_clears(users: Users) -> None:
    """A request without permissions removes all of them at once."""
    admin = users.create("admin", "manage_users")
    users.command("UpdatePermissions", UpdatePermissionsRequest(user=by_id(admin)))
    refused(
        Reason.REASON_PERMISSION_DENIED,
        lambda: users.command("CreateUser", create_request(), admin),
    )


def test_root_permissions_are_fixed(users: Users) -> None:
    """No user changes root's permissions."""
    refused(
        Reason.REASON_CANNOT_CHANGE_ROOT_PERMISSIONS,
        lambda: users.command("UpdatePermissions", UpdatePermissionsRequest(user=by_id(0))),
    )
