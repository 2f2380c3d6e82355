"""Personal access tokens: created, deleted, expired, counted, listed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.users.users_support import Users, by_id, refused
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1.users_service_pb2 import (
    CreatePersonalAccessTokenRequest,
    DeletePersonalAccessTokenRequest,
    DeleteUserRequest,
    ExpirePersonalAccessTokenRequest,
    ListPersonalAccessTokensRequest,
)

FUTURE_US = 1 << 50
CREATE = "CreatePersonalAccessToken"
DELETE = "DeletePersonalAccessToken"
EXPIRE = "ExpirePersonalAccessToken"
LIST = "ListPersonalAccessTokens"


@pytest.fixture
def users() -> Users:
    """Return a bootstrapped cluster with the user alice, id 1, who may do nothing special."""
    users = Users().found()
    users.create("alice")
    return users


def token_request(name: str = "laptop", **fields: Any) -> CreatePersonalAccessTokenRequest:
    """Return a normalized request; the hash depends on the name."""
    token_hash = name.encode().ljust(32, b".")[:32]
    values = {"name": name, "token_hash": token_hash, **fields}
    return CreatePersonalAccessTokenRequest(**values)


def names(users: Users, user_id: int = 1) -> list[str]:
    """Return the names of a user's tokens."""
    answer = users.query(LIST, ListPersonalAccessTokensRequest(), user_id)
    return [token.name for token in answer.tokens]


def test_create_and_list(users: Users) -> None:
    """Everybody may make tokens of their own and sees them, and them alone, by name."""
    users.command(CREATE, token_request("work"), 1)
    done = users.command(CREATE, token_request("home", expires_at=FUTURE_US), 1)
    users.command(CREATE, token_request("root's"), 0)

    answer = users.query(LIST, ListPersonalAccessTokensRequest(), 1)

    assert [token.name for token in answer.tokens] == ["home", "work"]
    home = answer.tokens[0]
    assert (home.expires_at, home.created_at) == (FUTURE_US, users.timestamp - 1)
    assert home.created_revision == done.revision
    assert answer.next_page_token == ""


@pytest.mark.parametrize("name", ["ab", "a" * 31, "a\x1fb", ""])
def test_invalid_token_name(users: Users, name: str) -> None:
    """Token names have 3 to 30 bytes without control characters."""
    refused(Reason.REASON_INVALID_TOKEN_NAME, lambda: users.command(CREATE, token_request(name), 1))


@pytest.mark.parametrize("token_hash", [b"", b"x" * 31, b"x" * 33])
def test_token_must_be_normalized(users: Users, token_hash: bytes) -> None:
    """A command that reached the log without a hash of 32 bytes is refused."""
    request = token_request(token_hash=token_hash)
    refused(Reason.REASON_MALFORMED_REQUEST, lambda: users.command(CREATE, request, 1))


def test_token_hash_is_unique(users: Users) -> None:
    """Two tokens never share a hash, so each hash has one owner."""
    users.command(CREATE, token_request("one", token_hash=b"h" * 32), 1)
    request = token_request("two", token_hash=b"h" * 32)
    refused(Reason.REASON_MALFORMED_REQUEST, lambda: users.command(CREATE, request, 0))


def test_expiry_is_judged_by_log_time(users: Users) -> None:
    """A token must expire after the log time of its command, by a microsecond at least."""
    request = token_request(expires_at=users.timestamp + 1)
    refused(Reason.REASON_INVALID_TOKEN_EXPIRY, lambda: users.command(CREATE, request, 1))

    request.expires_at = users.timestamp + 2
    users.command(CREATE, request, 1)


def test_taken_token_name(users: Users) -> None:
    """A name is unique among the tokens of a user, and free for every other user."""
    users.command(CREATE, token_request(), 1)
    users.command(CREATE, token_request(token_hash=b"2" * 32), 0)
    request = token_request(token_hash=b"3" * 32)
    refused(Reason.REASON_TOKEN_EXISTS, lambda: users.command(CREATE, request, 1))


def test_token_limit_is_exact(users: Users) -> None:
    """A user has 100 tokens and not one more, until one is deleted."""
    for index in range(limits.TOKENS_PER_USER_MAX):
        users.command(CREATE, token_request(f"token {index}"), 1)
    error = refused(
        Reason.REASON_TOKEN_LIMIT, lambda: users.command(CREATE, token_request("more"), 1)
    )
    assert error.details == {"count": "100", "limit": "100"}

    users.command(CREATE, token_request("of another"), 0)
    users.command(DELETE, DeletePersonalAccessTokenRequest(name="token 7"), 1)
    users.command(CREATE, token_request("more"), 1)
    assert len(names(users)) == limits.TOKENS_PER_USER_MAX


def test_delete_token(users: Users) -> None:
    """A deleted token is gone from every table, and its name and hash are free."""
    users.command(CREATE, token_request(), 1)
    users.command(DELETE, DeletePersonalAccessTokenRequest(name="laptop"), 1)

    assert names(users) == []
    assert not users.state.token_keys.rows and not users.state.token_names.rows
    users.command(CREATE, token_request(), 1)


def test_delete_token_of_another(users: Users) -> None:
    """Even root cannot delete the token of another user."""
    users.command(CREATE, token_request(), 1)
    request = DeletePersonalAccessTokenRequest(name="laptop")
    refused(Reason.REASON_TOKEN_NOT_FOUND, lambda: users.command(DELETE, request, 0))


@pytest.mark.parametrize(
    ("name", "request_"),
    [(CREATE, token_request()), (DELETE, DeletePersonalAccessTokenRequest(name="laptop"))],
)
def test_token_commands_authenticate(users: Users, name: str, request_: Any) -> None:
    """Stale credentials make and delete no tokens."""
    refused(Reason.REASON_UNAUTHENTICATED, lambda: users.command(name, request_, 1, credential=1))


def test_tokens_go_with_their_user(users: Users) -> None:
    """A deleted user's tokens are deleted in the same command, the others' stay."""
    users.command(CREATE, token_request("one"), 1)
    users.command(CREATE, token_request("two"), 1)
    users.command(CREATE, token_request("root's"), 0)

    users.command("DeleteUser", DeleteUserRequest(user=by_id(1)))

    assert users.state.tokens.sorted_keys() == [(0, "root's")]
    assert len(users.state.token_keys) == len(users.state.token_names) == 1


def expire_request(revision: int) -> ExpirePersonalAccessTokenRequest:
    """Return the internal command that ends alice's token of this revision."""
    return ExpirePersonalAccessTokenRequest(user_id=1, name="laptop", created_revision=revision)


def test_expiry_is_proposed(users: Users) -> None:
    """A token that expires is proposed for its end, at once and again to a new primary."""
    done = users.command(CREATE, token_request(expires_at=FUTURE_US), 1)
    forever = users.command(CREATE, token_request("forever"), 1)

    (proposal,) = done.proposals
    request = ExpirePersonalAccessTokenRequest.FromString(proposal.request)
    assert (request, proposal.due) == (expire_request(done.revision), FUTURE_US)
    assert forever.proposals == []
    assert users.all_proposals() == done.proposals


def test_expired_token_is_deleted(users: Users) -> None:
    """At its expiry a token is deleted; a second command on it does nothing."""
    done = users.command(CREATE, token_request(expires_at=users.timestamp + 10), 1)
    users.timestamp += 8

    users.command(EXPIRE, expire_request(done.revision), limits.SYSTEM_USER_ID)
    users.command(EXPIRE, expire_request(done.revision), limits.SYSTEM_USER_ID)

    assert names(users) == []


def test_early_expiry_is_proposed_again(users: Users) -> None:
    """A command that comes before its time deletes nothing and is proposed again."""
    done = users.command(CREATE, token_request(expires_at=users.timestamp + 10), 1)

    early = users.command(EXPIRE, expire_request(done.revision), limits.SYSTEM_USER_ID)

    assert names(users) == ["laptop"]
    assert early.proposals == done.proposals


def test_expiry_spares_a_newer_token(users: Users) -> None:
    """A token of the same name that was made later is not the one meant, even if due as well."""
    done = users.command(CREATE, token_request(expires_at=users.timestamp + 2), 1)
    users.command(DELETE, DeletePersonalAccessTokenRequest(name="laptop"), 1)
    users.command(CREATE, token_request(expires_at=users.timestamp + 2), 1)

    users.command(EXPIRE, expire_request(done.revision), limits.SYSTEM_USER_ID)

    assert names(users) == ["laptop"]


def test_expiry_spares_a_token_without_one(users: Users) -> None:
    """A token that never expires outlives a command that says it does."""
    done = users.command(CREATE, token_request(), 1)

    expired = users.command(EXPIRE, expire_request(done.revision), limits.SYSTEM_USER_ID)

    assert names(users) == ["laptop"]
    assert expired.proposals == []


def test_validate_only_proposes_nothing(users: Users) -> None:
    """A token that is only validated is not stored and not proposed for its end."""
    request = token_request(expires_at=FUTURE_US, validate_only=True)
    assert users.command(CREATE, request, 1).proposals == []
    assert names(users) == []
