"""How requests lose their secrets before they are logged.

A normalizer reads the state and makes the cheap checks; the function it returns does the rest in a
thread, without the state. Fields that must not come from outside are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from google.protobuf.message import Message

from services.runtime.domain import Costly, NormalizeCall, Normalized, Normalizer, SuffixFunction
from services.users.access import (
    MANAGE_USERS,
    authorize,
    check_root,
    is_current,
    unauthenticated,
    whose,
)
from services.users.model import User, UsersState
from services.users.raw_tokens import raw_token, token_hash
from services.users.shell import Shell
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.names import check_length
from viewstamp.passwords import hash_password, verify_password

Request = TypeVar("Request", bound=Message)

_USER_ID_BYTES: Final = 8
_THROTTLE_LABEL: Final = b"current password\x00"


def normalizers(shell: Shell) -> Mapping[str, Normalizer[UsersState]]:
    """Return the normalizers in these surroundings, by RPC name."""

    def change_password(
        state: UsersState, request: users_service_pb2.ChangePasswordRequest, call: NormalizeCall
    ) -> Costly:
        user = _whose_password(state, request, call)
        _refuse_field(
            request.HasField("verified_credential_revision"), "verified_credential_revision"
        )
        _refuse_field(bool(request.new_password_hash), "new_password_hash")
        _check_password(request.new_password)
        own = user if user.id == call.user_id else None
        return Costly(lambda: _changed_password(shell, request, own))

    def create_token(
        state: UsersState,
        request: users_service_pb2.CreatePersonalAccessTokenRequest,
        call: NormalizeCall,
    ) -> Callable[[], Normalized]:
        _refuse_field(bool(request.token_hash), "token_hash")
        return lambda: _created_token(shell, request, call)

    return {
        "CreateUser": create_user,
        "ChangePassword": change_password,
        "CreatePersonalAccessToken": create_token,
    }


def suffixes(shell: Shell) -> Mapping[str, SuffixFunction]:
    """Return the functions that derive a caller's secret again, by RPC name."""

    def create_token(
        request: users_service_pb2.CreatePersonalAccessTokenRequest, call: NormalizeCall
    ) -> bytes:
        return _suffix(raw_token(shell.cluster_key, shell.cluster_id, call.user_id, call.origin))

    return {"CreatePersonalAccessToken": create_token}


def create_user(
    state: UsersState, request: users_service_pb2.CreateUserRequest, call: NormalizeCall
) -> Costly:
    """Replace the password by its hash, once the caller is known to be permitted."""
    authorize(_caller(state, call), MANAGE_USERS)
    _refuse_field(bool(request.password_hash), "password_hash")
    _check_password(request.password)

    def compute() -> Normalized:
        loggable = _copy(request)
        loggable.password_hash = hash_password(request.password)
        loggable.ClearField("password")
        return Normalized(loggable)

    return Costly(compute)


def _whose_password(
    state: UsersState, request: users_service_pb2.ChangePasswordRequest, call: NormalizeCall
) -> User:
    """Return the user whose password a permitted caller changes. Raises Refusal."""
    caller = _caller(state, call)
    user = whose(state, request, caller)
    check_root(caller, user)
    return user


def _caller(state: UsersState, call: NormalizeCall) -> User:
    """Return the caller. Raises Refusal UNAUTHENTICATED.

    Nothing is hashed for a caller who could not use it. The log decides this again, where it
    counts.
    """
    user = state.users.rows.get(call.user_id)
    if user is None or not user.active or not is_current(user, call.credential_revision):
        raise unauthenticated()
    return user


def _changed_password(
    shell: Shell, request: users_service_pb2.ChangePasswordRequest, own: User | None
) -> Normalized:
    loggable = _copy(request)
    if own is not None:
        _verify_current(shell, own, request.current_password)
        loggable.verified_credential_revision = own.credential_revision
    loggable.new_password_hash = hash_password(request.new_password)
    loggable.ClearField("current_password")
    loggable.ClearField("new_password")
    return Normalized(loggable)


def _verify_current(shell: Shell, own: User, current_password: str) -> None:
    """Refuse a wrong current password; guessing it is throttled like a login.

    The count is separate from logins, so that failed logins elsewhere do not interfere.
    """
    key = _THROTTLE_LABEL + own.id.to_bytes(_USER_ID_BYTES, "big")
    if not shell.throttle.attempt(
        key, lambda: verify_password(own.password_hash, current_password)
    ):
        raise Refusal.of(Reason.REASON_INVALID_CREDENTIALS, "current_password_wrong")


def _created_token(
    shell: Shell, request: users_service_pb2.CreatePersonalAccessTokenRequest, call: NormalizeCall
) -> Normalized:
    raw = raw_token(shell.cluster_key, shell.cluster_id, call.user_id, call.origin)
    loggable = _copy(request)
    loggable.token_hash = token_hash(raw)
    return Normalized(loggable, _suffix(raw))


def _suffix(raw: str) -> bytes:
    response = users_service_pb2.CreatePersonalAccessTokenResponse(token=raw)
    return response.SerializeToString(deterministic=True)


def _copy(request: Request) -> Request:
    """Return a copy to change, without unknown fields, which might hide anything."""
    copy = type(request)()
    copy.CopyFrom(request)
    copy.DiscardUnknownFields()
    return copy


def _check_password(password: str) -> None:
    check_length(
        password,
        reason=Reason.REASON_INVALID_PASSWORD,
        bytes_min=limits.PASSWORD_BYTES_MIN,
        bytes_max=limits.PASSWORD_BYTES_MAX,
    )


def _refuse_field(is_set: bool, field: str) -> None:
    if is_set:
        raise Refusal.of(Reason.REASON_MALFORMED_REQUEST, "set_by_the_cluster", field=field)
