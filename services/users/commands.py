"""The commands on users. Each authenticates, authorizes, looks up, validates, then changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from services.runtime.domain import Call, CommandHandler
from services.users import permissions
from services.users.access import (
    MANAGE_USERS,
    authenticate,
    authorize,
    check_root,
    existing,
    find_user,
    requested_status,
    whose,
)
from services.users.ending import (
    ENDING_COMMANDS,
    TO_CREDENTIALS,
    tell_credentials,
    tell_sessions_ended,
)
from services.users.model import User, UsersState
from services.users.token_commands import TOKEN_COMMANDS
from viewstamp import limits
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.users.v1 import users_pb2, users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.names import check_name

TO_STREAMS: Final[tuple[int, ...]] = (routing_pb2.STAGE_STREAMS,)
TO_ALL: Final[tuple[int, ...]] = (
    routing_pb2.STAGE_SESSIONS,
    routing_pb2.STAGE_STREAMS,
    routing_pb2.STAGE_CONSUMER_GROUPS,
)

# Costs in rows, here and in streams: to keep a grant (less before the level at which prices were
# measured), and to forget one; to forget a token.
_ROWS_PER_GRANT: Final = 24
_ROWS_PER_GRANT_UNBOUNDED: Final = 5
_ROWS_PER_GRANT_LOST: Final = 2
_ROWS_PER_TOKEN: Final = 8


def found(
    state: UsersState, request: users_service_pb2.FoundRequest, call: Call
) -> users_service_pb2.FoundResponse:
    """Create the root user, who may do everything; nothing if there is one."""
    if limits.ROOT_USER_ID not in state.users:
        if not request.root_password_hash:
            raise Refusal.of(
                Reason.REASON_MALFORMED_REQUEST,
                "no_root_password_hash",
                field="root_password_hash",
            )
        state.set_next_user_id(limits.FIRST_USER_ID)
        root = _new_user(call, limits.ROOT_USER_ID, limits.ROOT_USERNAME)
        root = replace(
            root,
            password_hash=request.root_password_hash,
            permissions=permissions.ALL_PERMISSIONS,
        )
        state.add_user(root)
        _tell_of_new_user(root, call)
    return users_service_pb2.FoundResponse()


def create_user(
    state: UsersState, request: users_service_pb2.CreateUserRequest, call: Call
) -> users_service_pb2.CreateUserResponse:
    """Create a user with the permissions that streams resolved."""
    authorize(authenticate(state, call), MANAGE_USERS)
    call.charge(_grants_rows(request.permissions, call))
    granted = permissions.resolved(request.permissions, call.context)
    active = requested_status(request.status)
    _check_normalized(request.password, request.password_hash)
    _check_username(state, request.username)
    user_id = state.next_user_id
    state.set_next_user_id(user_id + 1)
    user = replace(
        _new_user(call, user_id, request.username),
        active=active is not False,
        password_hash=request.password_hash,
        permissions=granted,
    )
    state.add_user(user)
    _tell_of_new_user(user, call)
    return users_service_pb2.CreateUserResponse(user_id=user_id)


def update_user(
    state: UsersState, request: users_service_pb2.UpdateUserRequest, call: Call
) -> users_service_pb2.UpdateUserResponse:
    """Rename a user, or change whether they may act; keep what is already as requested."""
    caller = authenticate(state, call)
    authorize(caller, MANAGE_USERS)
    user = existing(find_user(state, request.user), request.user)
    if call.feature_level >= limits.FEATURE_LEVEL_BOUNDED:
        check_root(caller, user)
    active = requested_status(request.status)
    if active is False:
        _check_not_root(user)
    if request.HasField("username"):
        _check_username_form(request.username)
    _check_revision(user, request)
    changed = user
    if request.HasField("username") and request.username != user.username:
        _check_username_free(state, request.username)
        changed = replace(changed, username=request.username)
    if active is not None and active != user.active:
        changed = _with_status(changed, active, call)
    if changed is not user:
        state.replace_user(replace(changed, modified_revision=call.revision))
    return users_service_pb2.UpdateUserResponse()


def delete_user(
    state: UsersState, request: users_service_pb2.DeleteUserRequest, call: Call
) -> users_service_pb2.DeleteUserResponse:
    """Delete a user with all tokens."""
    authorize(authenticate(state, call), MANAGE_USERS)
    user = existing(find_user(state, request.user), request.user)
    if user.id == limits.ROOT_USER_ID:
        raise Refusal.of(Reason.REASON_CANNOT_DELETE_ROOT, user=user.id)
    _check_revision(user, request)
    call.charge(
        _ROWS_PER_GRANT_LOST * len(user.permissions.streams)
        + _ROWS_PER_TOKEN * len(state.tokens_of(user.id))
    )
    state.remove_user(user.id)
    deleted = effects_pb2.UserDeleted(user_id=user.id)
    call.emit(TO_ALL, effects_pb2.EffectPayload(user_deleted=deleted))
    return users_service_pb2.DeleteUserResponse()


def change_password(
    state: UsersState, request: users_service_pb2.ChangePasswordRequest, call: Call
) -> users_service_pb2.ChangePasswordResponse:
    """Put a new password hash in place; every access token of the user ends.

    So do personal access tokens and sessions, unless the request keeps them.
    """
    caller = authenticate(state, call)
    user = whose(state, request, caller)
    if call.feature_level >= limits.FEATURE_LEVEL_BOUNDED:
        check_root(caller, user)
    _check_verified(request, user, caller)
    _check_normalized(request.new_password or request.current_password, request.new_password_hash)
    _check_revision(user, request)
    changed = replace(
        user,
        password_hash=request.new_password_hash,
        modified_revision=call.revision,
        credential_revision=call.revision,
    )
    state.replace_user(changed)
    tell_credentials(changed, call, TO_CREDENTIALS)
    if call.feature_level >= limits.FEATURE_LEVEL_BOUNDED:
        _revoke(state, user.id, request, call)
    return users_service_pb2.ChangePasswordResponse()


def _revoke(
    state: UsersState, user_id: int, request: users_service_pb2.ChangePasswordRequest, call: Call
) -> None:
    """End the tokens and sessions that somebody with the old password may have left behind."""
    if not request.keep_tokens:
        for name in state.tokens_of(user_id):
            state.remove_token((user_id, name))
    if not request.keep_sessions:
        tell_sessions_ended(user_id, None, call)


def update_permissions(
    state: UsersState, request: users_service_pb2.UpdatePermissionsRequest, call: Call
) -> users_service_pb2.UpdatePermissionsResponse:
    """Replace all permissions of a user by those that streams resolved."""
    authorize(authenticate(state, call), MANAGE_USERS)
    user = existing(find_user(state, request.user), request.user)
    _check_not_root(user)
    lost_rows = _ROWS_PER_GRANT_LOST * len(user.permissions.streams)
    call.charge(_grants_rows(request.permissions, call) + lost_rows)
    granted = permissions.resolved(request.permissions, call.context)
    _check_revision(user, request)
    changed = replace(user, permissions=granted, modified_revision=call.revision)
    state.replace_user(changed)
    _tell_grants(changed, call)
    return users_service_pb2.UpdatePermissionsResponse()


COMMANDS: Final[Mapping[str, CommandHandler[UsersState]]] = {
    "CreateUser": create_user,
    "UpdateUser": update_user,
    "DeleteUser": delete_user,
    "ChangePassword": change_password,
    "UpdatePermissions": update_permissions,
    "Found": found,
    **TOKEN_COMMANDS,
    **ENDING_COMMANDS,
}


def _grants_rows(granted: users_pb2.Permissions, call: Call) -> int:
    """Return the cost of keeping the grants of a request."""
    price = _ROWS_PER_GRANT if call.is_bounded else _ROWS_PER_GRANT_UNBOUNDED
    return price * permissions.grants_count(granted)


def _new_user(call: Call, user_id: int, username: str) -> User:
    """Return a user as this command creates them, still without password and permissions."""
    return User(
        id=user_id,
        username=username,
        active=True,
        password_hash="",
        permissions=permissions.NO_PERMISSIONS,
        created_at=call.timestamp,
        created_revision=call.revision,
        modified_revision=call.revision,
        credential_revision=call.revision,
    )


def _check_verified(
    request: users_service_pb2.ChangePasswordRequest, user: User, caller: User
) -> None:
    """Refuse unless the current password was verified against the hash in force, if required.

    Names may have changed hands since: a password verified as one's own must still be one's own.
    """
    verified = request.HasField("verified_credential_revision")
    own = user.id == caller.id
    current = request.verified_credential_revision == user.credential_revision
    if own != verified or (own and not current):
        raise Refusal.of(Reason.REASON_INVALID_CREDENTIALS, "current_password_not_verified")


def _check_normalized(clear_text: str, password_hash: str) -> None:
    if clear_text or not password_hash:
        raise Refusal.of(
            Reason.REASON_MALFORMED_REQUEST, "password_not_hashed", field="password_hash"
        )


def _check_username(state: UsersState, username: str) -> None:
    _check_username_form(username)
    _check_username_free(state, username)


def _check_username_form(username: str) -> None:
    check_name(
        username,
        reason=Reason.REASON_INVALID_USERNAME,
        bytes_min=limits.USERNAME_BYTES_MIN,
        bytes_max=limits.USERNAME_BYTES_MAX,
    )


def _check_username_free(state: UsersState, username: str) -> None:
    if username in state.user_ids:
        raise Refusal.of(Reason.REASON_USER_EXISTS, username=username)


def _check_revision(user: User, request: Any) -> None:
    if request.HasField("expected_revision"):
        expected = request.expected_revision
        if expected != user.modified_revision:
            raise Refusal.of(
                Reason.REASON_REVISION_MISMATCH,
                "user",
                user=user.id,
                modified_revision=user.modified_revision,
                expected_revision=expected,
            )


def _check_not_root(user: User) -> None:
    # Without root, nobody might be left who can let anybody in.
    if user.id == limits.ROOT_USER_ID:
        raise Refusal.of(Reason.REASON_CANNOT_CHANGE_ROOT_PERMISSIONS, user=user.id)


def _with_status(user: User, active: bool, call: Call) -> User:
    """Return the user with another status, and tell the stages concerned."""
    if active:
        activated = effects_pb2.UserActivated(user_id=user.id)
        call.emit(TO_STREAMS, effects_pb2.EffectPayload(user_activated=activated))
        return replace(user, active=True)
    _tell_deactivated(user.id, call, TO_ALL)
    deactivated = replace(user, active=False, credential_revision=call.revision)
    tell_credentials(deactivated, call, TO_CREDENTIALS)
    return deactivated


def _tell_of_new_user(user: User, call: Call) -> None:
    _tell_grants(user, call)
    tell_credentials(user, call, TO_STREAMS)
    if not user.active:
        _tell_deactivated(user.id, call, TO_STREAMS)


def _tell_grants(user: User, call: Call) -> None:
    message = permissions.to_message(user.permissions)
    changed = effects_pb2.GrantsChanged(user_id=user.id, permissions=message)
    call.emit(TO_STREAMS, effects_pb2.EffectPayload(grants_changed=changed))


def _tell_deactivated(user_id: int, call: Call, to: tuple[int, ...]) -> None:
    deactivated = effects_pb2.UserDeactivated(user_id=user_id)
    call.emit(to, effects_pb2.EffectPayload(user_deactivated=deactivated))
