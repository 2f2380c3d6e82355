"""The users domain in plain words: each function decides one command, or one read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from testkit.composite.model_groups import drop_members
from testkit.composite.world import (
    FROM_TOKEN,
    GLOBAL_FLAGS,
    STREAM_FLAGS,
    TOPIC_FLAGS,
    Call,
    CompositeModelState,
    CompositeRefused,
    Grants,
    Token,
    User,
    check_expected,
    check_name,
    check_revision,
    find,
    key_of,
)

ACTIVE, INACTIVE = 1, 2
TOKEN_HASH_BYTES = 32
TOKENS_MAX = 100


def found(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Create root, once."""
    if 0 not in world.users:
        grants: Grants = {(): set(GLOBAL_FLAGS)}
        world.users[0] = _user(call, 0, "root", request.root_password_hash, grants)
    return {}


def create_user(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Create a user."""
    world.demand(world.caller(call), "manage_users")
    grants = _grants(world, request.permissions)
    active = _status(request.status) is not False
    _check_hashed(request.password, request.password_hash)
    check_name(request.username, "INVALID_USERNAME", 3, 50)
    _check_free(world, request.username)
    user = _user(call, world.next_user_id, request.username, request.password_hash, grants)
    user.active = active
    world.next_user_id += 1
    world.users[user.id] = user
    return {"user_id": user.id}


def update_user(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Rename, activate, deactivate."""
    caller = world.caller(call)
    world.demand(caller, "manage_users")
    user = _existing(world, request.user)
    if world.is_bounded:
        _check_root(caller, user)
    active = _status(request.status)
    if active is False and user.id == 0:
        raise CompositeRefused("CANNOT_CHANGE_ROOT_PERMISSIONS")
    if request.HasField("username"):
        check_name(request.username, "INVALID_USERNAME", 3, 50)
    check_expected(request, user)
    if request.HasField("username") and request.username != user.name:
        _check_free(world, request.username)
        user.name = request.username
        user.modified = call.revision
    if active is not None and active != user.active:
        user.active = active
        user.modified = call.revision
        if not active:
            user.credential = call.revision
            _lose_power(world, user.id, call)
    return {}


def delete_user(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Delete a user with tokens, sessions, memberships and grants."""
    world.demand(world.caller(call), "manage_users")
    user = _existing(world, request.user)
    if user.id == 0:
        raise CompositeRefused("CANNOT_DELETE_ROOT")
    check_expected(request, user)
    del world.users[user.id]
    _lose_power(world, user.id, call)
    return {}


def change_password(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Replace a password; older credentials are refused from here on, and what they left ends."""
    caller = world.caller(call)
    user = _whose(world, request, caller)
    if world.is_bounded:
        _check_root(caller, user)
    is_own = user.id == caller.id
    is_verified = request.HasField("verified_credential_revision")
    if is_own != is_verified:
        raise CompositeRefused("INVALID_CREDENTIALS")
    if is_own and request.verified_credential_revision != user.credential:
        raise CompositeRefused("INVALID_CREDENTIALS")
    _check_hashed(request.current_password + request.new_password, request.new_password_hash)
    check_expected(request, user)
    user.password_hash = request.new_password_hash
    user.modified = user.credential = world.floors[user.id] = call.revision
    if world.is_bounded and not request.keep_tokens:
        user.tokens.clear()
    if world.is_bounded and not request.keep_sessions:
        _end_sessions(world, user.id, None, 0, call)
    return {}


def update_permissions(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Replace all grants."""
    world.demand(world.caller(call), "manage_users")
    user = _existing(world, request.user)
    if user.id == 0:
        raise CompositeRefused("CANNOT_CHANGE_ROOT_PERMISSIONS")
    grants = _grants(world, request.permissions)
    check_expected(request, user)
    user.grants = grants
    user.modified = call.revision
    return {}


def create_token(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Create a token for the caller."""
    caller = world.caller(call)
    hashes = {token.hash for user in world.users.values() for token in user.tokens.values()}
    if len(request.token_hash) != TOKEN_HASH_BYTES or request.token_hash in hashes:
        raise CompositeRefused("MALFORMED_REQUEST")
    check_name(request.name, "INVALID_TOKEN_NAME", 3, 30)
    if request.expires_at and request.expires_at <= call.timestamp:
        raise CompositeRefused("INVALID_TOKEN_EXPIRY")
    if request.name in caller.tokens:
        raise CompositeRefused("TOKEN_EXISTS", token=request.name)
    if len(caller.tokens) >= TOKENS_MAX:
        raise CompositeRefused("TOKEN_LIMIT")
    caller.tokens[request.name] = Token(
        request.token_hash, request.expires_at, call.timestamp, call.revision
    )
    return {}


def delete_token(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Delete a token of the caller."""
    caller = world.caller(call)
    if request.name not in caller.tokens:
        raise CompositeRefused("TOKEN_NOT_FOUND", token=request.name)
    if world.has_guards:
        check_revision(request, caller.tokens[request.name].created)
    del caller.tokens[request.name]
    if world.is_bounded:
        _end_minted(world, caller, call)
    return {}


def delete_user_token(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Delete a token of any user."""
    caller = world.caller(call)
    user = _whose(world, request, caller)
    _check_root(caller, user)
    if request.name not in user.tokens:
        raise CompositeRefused("TOKEN_NOT_FOUND", token=request.name)
    if world.has_guards:
        check_revision(request, user.tokens[request.name].created)
    del user.tokens[request.name]
    if world.is_bounded:
        _end_minted(world, user, call)
    return {}


def end_user_sessions(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """End one session of a user, or all, but never the calling one."""
    caller = world.caller(call)
    user = _whose(world, request, caller)
    _check_root(caller, user)
    one = request.session_id if request.HasField("session_id") else None
    _end_sessions(world, user.id, one, call.session_id, call)
    return {}


def logout(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """End what was got as the caller's access token was."""
    caller = world.caller(call)
    if call.stamp >= FROM_TOKEN:
        _end_minted(world, caller, call)
    else:
        caller.credential = world.floors[caller.id] = call.revision
    return {}


def expire_token(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Delete the very token that is meant, if its time has come."""
    user = world.users.get(request.user_id)
    token = user.tokens.get(request.name) if user is not None else None
    is_meant = token is not None and token.created == request.created_revision
    if user is not None and token is not None and is_meant:
        if not token.expires_at or token.expires_at > call.timestamp:
            return {}
        del user.tokens[request.name]
    return {}


def get_user(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read a user: oneself, or with permission."""
    caller = world.caller(call)
    named = world.find_user(request.user)
    if named is None or named.id != caller.id:
        world.demand(caller, "read_users", "manage_users")
    return {"user": _view(_existing(world, request.user))}


def who_am_i(world: CompositeModelState, request: Any, call: Call) -> dict[str, Any]:
    """Read oneself."""
    return {"user": _view(world.caller(call))}


COMMANDS: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "Found": found,
    "CreateUser": create_user,
    "UpdateUser": update_user,
    "DeleteUser": delete_user,
    "ChangePassword": change_password,
    "UpdatePermissions": update_permissions,
    "CreatePersonalAccessToken": create_token,
    "DeletePersonalAccessToken": delete_token,
    "ExpirePersonalAccessToken": expire_token,
    "DeleteUserToken": delete_user_token,
    "EndUserSessions": end_user_sessions,
    "Logout": logout,
}
QUERIES: Final[dict[str, Callable[[CompositeModelState, Any, Call], dict[str, Any]]]] = {
    "GetUser": get_user,
    "WhoAmI": who_am_i,
}


def _user(call: Call, user_id: int, name: str, password_hash: str, grants: Grants) -> User:
    return User(
        id=user_id,
        name=name,
        active=True,
        password_hash=password_hash,
        grants=grants,
        created_at=call.timestamp,
        created=call.revision,
        modified=call.revision,
        credential=call.revision,
    )


def _lose_power(world: CompositeModelState, user_id: int, call: Call) -> None:
    """End sessions and memberships of a user who is gone or inactive."""
    world.floors[user_id] = call.revision
    for session_id in [s.id for s in world.sessions.values() if s.user_id == user_id]:
        del world.sessions[session_id]
    drop_members(world, lambda member: member.user_id == user_id, call)


def _end_sessions(
    world: CompositeModelState, user_id: int, one: int | None, kept: int, call: Call
) -> None:
    """End sessions of a user with their memberships: one, or all, but not one that is kept."""

    def ends(session_id: int, owner: int) -> bool:
        return owner == user_id and session_id != kept and one in (None, session_id)

    for session_id in [s.id for s in world.sessions.values() if ends(s.id, s.user_id)]:
        del world.sessions[session_id]
    drop_members(world, lambda member: ends(member.session_id, member.user_id), call)


def _end_minted(world: CompositeModelState, user: User, call: Call) -> None:
    """Refuse what personal access tokens of the user got."""
    user.token_floor = world.token_floors[user.id] = call.revision


def _whose(world: CompositeModelState, request: Any, caller: User) -> User:
    """Return the user that a request names."""
    user = caller
    if request.HasField("user"):
        named = world.find_user(request.user)
        if named is None or named.id != caller.id:
            world.demand(caller, "manage_users")
        user = _existing(world, request.user)
    return user


def _check_root(caller: User, user: User) -> None:
    if user.id == 0 and caller.id != 0:
        raise CompositeRefused("PERMISSION_DENIED", permission="root")


def _existing(world: CompositeModelState, named: Any) -> User:
    user = world.find_user(named)
    if user is None:
        raise CompositeRefused("USER_NOT_FOUND")
    return user


def _status(status: int) -> bool | None:
    if status not in (0, ACTIVE, INACTIVE):
        raise CompositeRefused("MALFORMED_REQUEST")
    return None if status == 0 else status == ACTIVE


def _check_hashed(clear_text: str, password_hash: str) -> None:
    if clear_text or not password_hash:
        raise CompositeRefused("MALFORMED_REQUEST")


def _check_free(world: CompositeModelState, name: str) -> None:
    if find(world.users, name) is not None:
        raise CompositeRefused("USER_EXISTS", username=name)


def _grants(world: CompositeModelState, message: Any) -> Grants:
    """Return the grants that a request names; what it names must exist."""
    grants: Grants = {(): _flags(getattr(message, "global"), GLOBAL_FLAGS)}
    for entry in message.streams:
        stream = world.find_stream(key_of(entry.stream))
        if stream is None:
            raise CompositeRefused("STREAM_NOT_FOUND")
        grants.setdefault((stream.id,), set()).update(_flags(entry, STREAM_FLAGS))
        for part in entry.topics:
            topic = find(stream.topics, key_of(part.topic))
            if topic is None:
                raise CompositeRefused("TOPIC_NOT_FOUND", stream=stream.id)
            scope = (stream.id, topic.id)
            grants.setdefault(scope, set()).update(_flags(part, TOPIC_FLAGS))
    return {scope: flags for scope, flags in grants.items() if flags}


def _flags(message: Any, names: tuple[str, ...]) -> set[str]:
    return {name for name in names if getattr(message, name)}


def _view(user: User) -> dict[str, Any]:
    """Return the facts of a users.v1.User."""
    return {
        "id": user.id,
        "username": user.name,
        "status": ACTIVE if user.active else INACTIVE,
        "permissions": user.grants,
        "created_at": user.created_at,
        "created_revision": user.created,
        "modified_revision": user.modified,
    }
