"""The commands on personal access tokens, and the proposals that end them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from services.runtime.domain import Call, CommandHandler
from services.users.access import authenticate, check_root, whose
from services.users.ending import end_minted
from services.users.model import Token, User, UsersState
from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.names import check_name
from viewstamp.routing import methods_of_file

TOKEN_HASH_BYTES: Final = 32
Deletion: TypeAlias = (
    users_service_pb2.DeletePersonalAccessTokenRequest | users_service_pb2.DeleteUserTokenRequest
)

EXPIRE_CODE: Final = next(
    method.code
    for method in methods_of_file(users_service_pb2.DESCRIPTOR)
    if method.name == "ExpirePersonalAccessToken"
)


def create_token(
    state: UsersState, request: users_service_pb2.CreatePersonalAccessTokenRequest, call: Call
) -> users_service_pb2.CreatePersonalAccessTokenResponse:
    """Create a token for the caller. The raw token is unknown here: normalization made it."""
    caller = authenticate(state, call)
    _check_token_hash(state, request.token_hash)
    check_name(
        request.name,
        reason=Reason.REASON_INVALID_TOKEN_NAME,
        bytes_min=limits.TOKEN_NAME_BYTES_MIN,
        bytes_max=limits.TOKEN_NAME_BYTES_MAX,
    )
    _check_expiry(request.expires_at, call.timestamp)
    _check_room(state, caller.id, request.name)
    token = Token(
        user_id=caller.id,
        name=request.name,
        token_hash=request.token_hash,
        expires_at=request.expires_at,
        created_at=call.timestamp,
        created_revision=call.revision,
    )
    state.add_token(token)
    if token.expires_at:
        call.propose(EXPIRE_CODE, _expire_request(token), due=token.expires_at)
    return users_service_pb2.CreatePersonalAccessTokenResponse()


def delete_token(
    state: UsersState, request: users_service_pb2.DeletePersonalAccessTokenRequest, call: Call
) -> users_service_pb2.DeletePersonalAccessTokenResponse:
    """Delete a token of the caller, and end what was issued for the caller's tokens."""
    _delete(state, authenticate(state, call), request, call)
    return users_service_pb2.DeletePersonalAccessTokenResponse()


def delete_user_token(
    state: UsersState, request: users_service_pb2.DeleteUserTokenRequest, call: Call
) -> users_service_pb2.DeleteUserTokenResponse:
    """Delete a token of any user, and end what was issued for that user's tokens."""
    caller = authenticate(state, call)
    user = whose(state, request, caller)
    check_root(caller, user)
    _delete(state, user, request, call)
    return users_service_pb2.DeleteUserTokenResponse()


def expire_token(
    state: UsersState, request: users_service_pb2.ExpirePersonalAccessTokenRequest, call: Call
) -> users_service_pb2.ExpirePersonalAccessTokenResponse:
    """Delete an expired token; nothing if it is gone already."""
    key = (request.user_id, request.name)
    token = state.tokens.rows.get(key)
    if token is not None and token.created_revision == request.created_revision:
        if 0 < token.expires_at <= call.timestamp:
            state.remove_token(key)
        elif token.expires_at:
            # Too early: propose it again for its time, or nobody would.
            call.propose(EXPIRE_CODE, request, due=token.expires_at)
    return users_service_pb2.ExpirePersonalAccessTokenResponse()


def expiry_proposals(state: UsersState) -> Iterator[domain_service_pb2.Proposal]:
    """Yield one proposal per token that will expire, by owner and name."""
    for key in state.tokens.sorted_keys():
        token = state.tokens.rows[key]
        if token.expires_at:
            request = _expire_request(token).SerializeToString(deterministic=True)
            yield domain_service_pb2.Proposal(
                code=EXPIRE_CODE, request=request, due=token.expires_at
            )


TOKEN_COMMANDS: Final[Mapping[str, CommandHandler[UsersState]]] = {
    "CreatePersonalAccessToken": create_token,
    "DeletePersonalAccessToken": delete_token,
    "DeleteUserToken": delete_user_token,
    "ExpirePersonalAccessToken": expire_token,
}


def _delete(state: UsersState, owner: User, request: Deletion, call: Call) -> None:
    key = (owner.id, request.name)
    token = state.tokens.rows.get(key)
    if token is None:
        raise Refusal.of(Reason.REASON_TOKEN_NOT_FOUND, token=request.name)
    if call.has_guards and request.HasField("expected_revision"):
        _check_revision(token, request.expected_revision)
    state.remove_token(key)
    if call.feature_level >= limits.FEATURE_LEVEL_BOUNDED:
        end_minted(state, owner, call)


def _check_revision(token: Token, expected: int) -> None:
    if expected != token.modified_revision:
        raise Refusal.of(
            Reason.REASON_REVISION_MISMATCH,
            "token",
            token=token.name,
            modified_revision=token.modified_revision,
            expected_revision=expected,
        )


def _expire_request(token: Token) -> users_service_pb2.ExpirePersonalAccessTokenRequest:
    return users_service_pb2.ExpirePersonalAccessTokenRequest(
        user_id=token.user_id, name=token.name, created_revision=token.created_revision
    )


def _check_token_hash(state: UsersState, token_hash: bytes) -> None:
    if len(token_hash) != TOKEN_HASH_BYTES:
        raise Refusal.of(
            Reason.REASON_MALFORMED_REQUEST,
            "token_hash_length",
            field="token_hash",
            bytes=len(token_hash),
            bytes_due=TOKEN_HASH_BYTES,
        )
    if token_hash in state.token_keys:
        raise Refusal.of(Reason.REASON_MALFORMED_REQUEST, "token_hash_taken", field="token_hash")


def _check_expiry(expires_at: int, timestamp: int) -> None:
    if expires_at and expires_at <= timestamp:
        raise Refusal.of(
            Reason.REASON_INVALID_TOKEN_EXPIRY, expires_at=expires_at, timestamp=timestamp
        )


def _check_room(state: UsersState, user_id: int, name: str) -> None:
    if (user_id, name) in state.tokens:
        raise Refusal.of(Reason.REASON_TOKEN_EXISTS, token=name)
    count = len(state.tokens_of(user_id))
    if count >= limits.TOKENS_PER_USER_MAX:
        raise Refusal.of(Reason.REASON_TOKEN_LIMIT, count=count, limit=limits.TOKENS_PER_USER_MAX)
