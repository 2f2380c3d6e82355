"""Authentication, authorization, and lookup of the users that requests name."""

from __future__ import annotations

from typing import Any, Final

from services.runtime.domain import Call
from services.users.model import User, UsersState
from services.users.permissions import GLOBAL_BITS
from viewstamp import limits
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.errors import Refusal

MANAGE_USERS: Final = ("manage_users",)
READ_USERS: Final = ("read_users", "manage_users")

# An update leaves the status alone if it is unspecified, hence None.
STATUSES: Final[dict[int, bool | None]] = {
    users_pb2.USER_STATUS_UNSPECIFIED: None,
    users_pb2.USER_STATUS_ACTIVE: True,
    users_pb2.USER_STATUS_INACTIVE: False,
}


def authenticate(state: UsersState, call: Call) -> User:
    """Return the caller. Raises Refusal UNAUTHENTICATED unless the caller may act now."""
    user = None if call.user_id is None else state.users.rows.get(call.user_id)
    if user is None or not user.active or not is_current(user, call.credential_revision):
        # The refusal does not say which: that is not for somebody who may not act.
        raise Refusal.of(Reason.REASON_UNAUTHENTICATED)
    return user


def unauthenticated() -> Refusal:
    """Return the refusal of credentials that are not in force, without saying why."""
    return Refusal.of(Reason.REASON_UNAUTHENTICATED)


def is_current(user: User, stamp: int) -> bool:
    """Whether credentials with this stamp are still in force."""
    minimum = user.credential_revision
    if stamp & limits.TOKEN_STAMP:
        minimum = max(minimum, user.minimum_token_revision)
    return stamp & ~limits.TOKEN_STAMP >= minimum


def check_root(caller: User, user: User) -> None:
    """Raise Refusal PERMISSION_DENIED if the user is root and the caller is not."""
    if user.id == limits.ROOT_USER_ID != caller.id:
        raise Refusal.of(Reason.REASON_PERMISSION_DENIED, "root", user=caller.id, permission="root")


def authorize(caller: User, permissions: tuple[str, ...]) -> None:
    """Raise Refusal PERMISSION_DENIED unless the caller has one of the global permissions."""
    if not any(caller.permissions.global_flags & GLOBAL_BITS[name] for name in permissions):
        raise Refusal.of(
            Reason.REASON_PERMISSION_DENIED,
            "global",
            user=caller.id,
            permission=permissions[0],
            any_of=",".join(permissions),
        )


def find_user(state: UsersState, identifier: common_pb2.Identifier) -> User | None:
    """Return the user that a request names, or None. Raises Refusal MALFORMED_REQUEST."""
    kind = identifier.WhichOneof("kind")
    if kind is None:
        raise Refusal.of(Reason.REASON_MALFORMED_REQUEST, "unnamed", field="user")
    if kind == "id":
        return state.users.rows.get(identifier.id)
    return state.user_named(identifier.name)


def existing(user: User | None, identifier: common_pb2.Identifier) -> User:
    """Return the user found. Raises Refusal USER_NOT_FOUND if there is none."""
    if user is None:
        named = identifier.id if identifier.HasField("id") else identifier.name
        raise Refusal.of(Reason.REASON_USER_NOT_FOUND, user=named)
    return user


def whose(state: UsersState, request: Any, caller: User) -> User:
    """Return the user of a request: the caller, or another user if the caller manages users.

    Raises Refusal PERMISSION_DENIED, USER_NOT_FOUND.
    """
    return whose_with(state, request, caller, MANAGE_USERS)


def whose_with(state: UsersState, request: Any, caller: User, permissions: tuple[str, ...]) -> User:
    """Return the user of a request; for another user the caller needs one of the permissions."""
    if not request.HasField("user"):
        return caller
    user = find_user(state, request.user)
    if user is None or user.id != caller.id:
        authorize(caller, permissions)
    return existing(user, request.user)


def requested_status(status: int) -> bool | None:
    """Return whether a request wants a user active, None for unsaid.

    Raises Refusal MALFORMED_REQUEST for a number that is no status.
    """
    if status not in STATUSES:
        raise Refusal.of(
            Reason.REASON_MALFORMED_REQUEST, "user_status", field="status", status=status
        )
    return STATUSES[status]
