"""Who calls, what they may do, and whom they name."""

from __future__ import annotations

from typing import Final

from services.runtime.domain import Call
from services.users.model import State, User
from services.users.permissions import GLOBAL_BITS
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


def authenticate(state: State, call: Call) -> User:
    """Return the caller. Raises Refusal UNAUTHENTICATED unless they may act as of now."""
    user = None if call.user_id is None else state.users.rows.get(call.user_id)
    if user is None or not user.active or call.credential_revision < user.credential_revision:
        # Nothing about which of these it was: it is no business of somebody who may not act.
        raise Refusal(
            Reason.REASON_UNAUTHENTICATED,
            "The credentials of this call are not, or no longer, valid; log in again.",
        )
    return user


def authorize(caller: User, permissions: tuple[str, ...]) -> None:
    """Raise Refusal PERMISSION_DENIED unless the caller has one of the global permissions."""
    if not any(caller.permissions.global_flags & GLOBAL_BITS[name] for name in permissions):
        raise Refusal(
            Reason.REASON_PERMISSION_DENIED,
            f"User {caller.id} lacks the global permission {' or '.join(permissions)}; "
            "somebody with manage_users can grant it.",
            user=caller.id,
            permission=permissions[0],
        )


def find_user(state: State, identifier: common_pb2.Identifier) -> User | None:
    """Return the user that a request names, or None. Raises Refusal MALFORMED_REQUEST."""
    kind = identifier.WhichOneof("kind")
    if kind is None:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            "The request names no user; set `user` to an id or a name.",
            field="user",
        )
    if kind == "id":
        return state.users.rows.get(identifier.id)
    return state.user_named(identifier.name)


def existing(user: User | None, identifier: common_pb2.Identifier) -> User:
    """Return the user found. Raises Refusal USER_NOT_FOUND if there is none."""
    if user is None:
        named = str(identifier.id) if identifier.HasField("id") else repr(identifier.name)
        raise Refusal(
            Reason.REASON_USER_NOT_FOUND,
            f"There is no user {named}; ListUsers shows those that exist.",
            user=named,
        )
    return user


def requested_status(status: int) -> bool | None:
    """Return whether a request wants a user active, None for unsaid.

    Raises Refusal MALFORMED_REQUEST for a number that is no status.
    """
    if status not in STATUSES:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            f"{status} is not a user status; use USER_STATUS_ACTIVE ({users_pb2.USER_STATUS_ACTIVE}"
            f") or USER_STATUS_INACTIVE ({users_pb2.USER_STATUS_INACTIVE}).",
            field="status",
            status=status,
        )
    return STATUSES[status]
