"""The reads that exchange a secret for an access token.

The handler takes what it needs from the state; everything slow, and everything that needs the
clock, happens in the function it returns, which a thread runs. Nobody learns from an answer, or
from how long it took, which part of the credentials was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.runtime.domain import Call, Deferred, QueryHandler
from services.runtime.login_guard import Attempt
from services.users.model import Token, User, UsersState
from services.users.raw_tokens import token_hash
from services.users.shell import Shell
from viewstamp import limits, tokens
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.passwords import UNKNOWN_USER_HASH, verify_password


def login_queries(shell: Shell) -> Mapping[str, QueryHandler[UsersState]]:
    """Return the handlers of Login and LoginWithToken in these surroundings."""

    def login(state: UsersState, request: users_service_pb2.LoginRequest, call: Call) -> Deferred:
        user = state.user_named(request.username)
        password = request.password
        attempt = Attempt(call.caller_address, request.username, None if user is None else user.id)
        shell.logins.check(attempt)
        now_us = call.timestamp or shell.clock_us()
        return Deferred(
            lambda: _login(shell, user, attempt, password, now_us),
            share=call.caller_address.encode(),
            is_trusted=shell.logins.is_trusted(attempt),
        )

    def login_with_token(
        state: UsersState, request: users_service_pb2.LoginWithTokenRequest, call: Call
    ) -> Deferred:
        key = state.token_keys.rows.get(token_hash(request.token))
        if key is None:
            return Deferred(_refuse_token)
        user, token = state.users.rows[key[0]], state.tokens.rows[key]
        now_us = call.timestamp or shell.clock_us()
        return Deferred(lambda: _login_with_token(shell, user, token, now_us))

    return {"Login": login, "LoginWithToken": login_with_token}


def _login(
    shell: Shell, user: User | None, attempt: Attempt, password: str, now_us: int
) -> users_service_pb2.LoginResponse:
    def matches() -> bool:
        # The costly part comes first and always, for every caller.
        stored = UNKNOWN_USER_HASH if user is None else user.password_hash
        right = verify_password(stored, password)
        return right and user is not None and user.active

    if not shell.logins.attempt(attempt, matches) or user is None:
        raise Refusal.of(Reason.REASON_INVALID_CREDENTIALS, "login")
    expires_at = now_us + limits.ACCESS_TOKEN_LIFETIME_US
    return users_service_pb2.LoginResponse(
        access_token=_sign(shell, user, user.credential_revision, expires_at),
        expires_at=expires_at,
        user_id=user.id,
    )


def _login_with_token(
    shell: Shell, user: User, token: Token, now_us: int
) -> users_service_pb2.LoginWithTokenResponse:
    if not user.active or 0 < token.expires_at <= now_us:
        _refuse_token()
    expires_at = now_us + limits.ACCESS_TOKEN_LIFETIME_US
    # So that deleting the token ends what was issued for it, and nothing else.
    stamp = limits.TOKEN_STAMP | max(user.credential_revision, user.minimum_token_revision)
    if token.expires_at:
        expires_at = min(expires_at, token.expires_at)
    return users_service_pb2.LoginWithTokenResponse(
        access_token=_sign(shell, user, stamp, expires_at),
        expires_at=expires_at,
        user_id=user.id,
    )


def _refuse_token() -> users_service_pb2.LoginWithTokenResponse:
    raise Refusal.of(Reason.REASON_INVALID_CREDENTIALS, "personal_access_token")


def _sign(shell: Shell, user: User, stamp: int, expires_at: int) -> str:
    return tokens.sign(shell.cluster_key, shell.cluster_id, user.id, stamp, expires_at)
