"""The rules of all commands on users: the caller, the target and the revision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.services.users.users_support import (
    SOME_HASH,
    Users,
    by_id,
    by_name,
    create_request,
    refused,
)
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1.users_service_pb2 import (
    ChangePasswordRequest,
    DeleteUserRequest,
    UpdatePermissionsRequest,
    UpdateUserRequest,
    WhoAmIRequest,
)

INACTIVE = users_pb2.USER_STATUS_INACTIVE


@pytest.fixture
def users() -> Users:
    """Return a bootstrapped cluster."""
    return Users().found()


ADMIN_COMMANDS: list[tuple[str, Callable[[int], Any]]] = [
    ("CreateUser", lambda _: create_request("newcomer")),
    ("UpdateUser", lambda i: UpdateUserRequest(user=by_id(i), username="renamed")),
    ("DeleteUser", lambda i: DeleteUserRequest(user=by_id(i))),
    ("UpdatePermissions", lambda i: UpdatePermissionsRequest(user=by_id(i))),
    (
        "ChangePassword",
        lambda i: ChangePasswordRequest(user=by_id(i), new_password_hash=SOME_HASH),
    ),
]
OTHER_FLAGS = [
    f.name for f in users_pb2.GlobalPermissions.DESCRIPTOR.fields if f.name != "manage_users"
]


@pytest.mark.parametrize(("name", "request_of"), ADMIN_COMMANDS)
def test_manage_users_allows(users: Users, name: str, request_of: Callable[[int], Any]) -> None:
    """A caller with manage_users may use every command on other users."""
    target = users.create("target")
    admin = users.create("admin", "manage_users")

    users.command(name, request_of(target), admin)


@pytest.mark.parametrize(("name", "request_of"), ADMIN_COMMANDS)
def test_without_manage_users_denied(
    users: Users, name: str, request_of: Callable[[int], Any]
) -> None:
    """All other permissions together do not suffice, and the answer names the one that would."""
    target = users.create("target")
    caller = users.create("caller", *OTHER_FLAGS)
    before = users.entities()

    error = refused(
        Reason.REASON_PERMISSION_DENIED, lambda: users.command(name, request_of(target), caller)
    )

    assert error.details == {
        "user": str(caller),
        "permission": "manage_users",
        "any_of": "manage_users",
    }
    assert "lacks the global permission manage_users;" in error.message
    assert users.entities() == before


@pytest.mark.parametrize(("name", "request_of"), ADMIN_COMMANDS[1:])
def test_denied_before_looked_up(users: Users, name: str, request_of: Callable[[int], Any]) -> None:
    """A caller who may not manage users is told so, whether or not the named user exists."""
    caller = users.create("caller")
    refused(Reason.REASON_PERMISSION_DENIED, lambda: users.command(name, request_of(77), caller))


@pytest.mark.parametrize(("name", "request_of"), ADMIN_COMMANDS[1:])
@pytest.mark.parametrize("named", [by_id(77), by_name("nobody")])
def test_unknown_user_not_found(
    users: Users, name: str, request_of: Callable[[int], Any], named: Identifier
) -> None:
    """Every command on a user refuses one that does not exist, by id or by name."""
    request = request_of(77)
    request.user.CopyFrom(named)
    refused(Reason.REASON_USER_NOT_FOUND, lambda: users.command(name, request))


@pytest.mark.parametrize("name", ["UpdateUser", "DeleteUser", "UpdatePermissions"])
def test_nobody_named_is_malformed(users: Users, name: str) -> None:
    """A request that names no user at all is malformed."""
    request = dict(ADMIN_COMMANDS)[name](1)
    request.ClearField("user")
    refused(Reason.REASON_MALFORMED_REQUEST, lambda: users.command(name, request))


@pytest.mark.parametrize("name", ["UpdateUser", "DeleteUser", "UpdatePermissions", "WhoAmI"])
def test_stale_credentials_unauthenticated(users: Users, name: str) -> None:
    """A stamp below the caller's credential revision is worth nothing, one above is fine."""
    admin = users.create("admin", "manage_users")
    stamp = users.credential(admin)

    def call(credential: int) -> None:
        if name == "WhoAmI":
            users.query("WhoAmI", WhoAmIRequest(), admin, credential)
        else:
            request = dict(ADMIN_COMMANDS)[name](users.create(f"target{credential}"))
            if name == "UpdateUser":
                request.username = f"renamed{credential}"
            users.command(name, request, admin, credential=credential)

    refused(Reason.REASON_UNAUTHENTICATED, lambda: call(stamp - 1))
    call(stamp)
    call(stamp + 1)


def test_root_with_stale_credentials_unauthenticated(users: Users) -> None:
    """Root is bound by the credential revision like everybody."""
    request = create_request()
    refused(
        Reason.REASON_UNAUTHENTICATED,
        lambda: users.command("CreateUser", request, 0, credential=0),
    )


def test_unknown_caller_unauthenticated(users: Users) -> None:
    """A caller who does not exist is not authenticated."""
    refused(
        Reason.REASON_UNAUTHENTICATED,
        lambda: users.command("CreateUser", create_request(), 55, credential=1 << 60),
    )


def test_inactive_caller_unauthenticated(users: Users) -> None:
    """A caller who was deactivated is not authenticated, even with a newer stamp."""
    admin = users.create("admin", "manage_users")
    users.command("UpdateUser", UpdateUserRequest(user=by_id(admin), status=INACTIVE))
    refused(
        Reason.REASON_UNAUTHENTICATED,
        lambda: users.command("CreateUser", create_request(), admin, credential=1 << 60),
    )


@pytest.mark.parametrize(("name", "request_of"), ADMIN_COMMANDS[1:])
def test_expected_revision(users: Users, name: str, request_of: Callable[[int], Any]) -> None:
    """A command with an expected revision passes only on the user as of that revision."""
    target = users.create("target")
    modified = users.state.users.rows[target].modified_revision
    request = request_of(target)

    request.expected_revision = modified - 1
    error = refused(Reason.REASON_REVISION_MISMATCH, lambda: users.command(name, request))
    assert error.details["modified_revision"] == str(modified)

    request.expected_revision = modified
    users.command(name, request)


@pytest.mark.parametrize(("name", "request_of"), ADMIN_COMMANDS)
def test_validate_only_changes_nothing(
    users: Users, name: str, request_of: Callable[[int], Any]
) -> None:
    """A command that is only validated answers as if done, and leaves no trace."""
    request = request_of(users.create("target"))
    request.validate_only = True
    before = users.entities()

    assert users.command(name, request).effects == []
    assert users.entities() == before
