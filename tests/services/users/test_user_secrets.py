"""Secrets of users: hashed before the log, revealed once, exchanged for access tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from services.users.domain import build_domain
from tests.services.users.users_support import (
    CLUSTER_ID,
    CLUSTER_KEY,
    SOME_HASH,
    START_US,
    Users,
    UsersClock,
    by_id,
    by_name,
    refused,
)
from viewstamp import limits, passwords, tokens
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1.users_service_pb2 import (
    ChangePasswordRequest,
    CreatePersonalAccessTokenRequest,
    CreatePersonalAccessTokenResponse,
    CreateUserRequest,
    DeletePersonalAccessTokenRequest,
    LoginRequest,
    LoginWithTokenRequest,
    UpdateUserRequest,
)

SECRET = "correct horse"
OTHER_SECRET = "battery staple"
SECRET_HASH = passwords.hash_password(SECRET)
CREATE_TOKEN = "CreatePersonalAccessToken"
MINUTE_US = 60_000_000


@pytest.fixture
def users() -> Users:
    """Return a bootstrapped cluster with the user alice, id 1, whose password is SECRET."""
    users = Users().found()
    users.create("alice", password_hash=SECRET_HASH)
    return users


def with_token(users: Users, name: str = "laptop", expires_at: int = 0) -> str:
    """Create a token for alice the whole way and return the raw one."""
    request = CreatePersonalAccessTokenRequest(name=name, expires_at=expires_at)
    loggable, suffix = users.normalize(CREATE_TOKEN, request, 1, number=users.revision)
    users.command(CREATE_TOKEN, loggable, 1)
    token: str = CreatePersonalAccessTokenResponse.FromString(suffix).token
    return token


def login(users: Users, username: str = "alice", password: str = SECRET) -> Any:
    """Log in and return the answer."""
    return users.query("Login", LoginRequest(username=username, password=password), None)


def login_with_token(users: Users, raw: str) -> Any:
    """Log in with a personal access token and return the answer."""
    return users.query("LoginWithToken", LoginWithTokenRequest(token=raw), None)


# --- Normalization ---


def test_create_user_is_hashed(users: Users) -> None:
    """The loggable form holds an argon2id hash of the password and never the password."""
    request = CreateUserRequest(username="bob", password=SECRET, validate_only=True)

    loggable, suffix = users.normalize("CreateUser", request)

    assert loggable.password == ""
    assert loggable.password_hash.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert passwords.verify_password(loggable.password_hash, SECRET)
    assert not passwords.verify_password(loggable.password_hash, OTHER_SECRET)
    assert (loggable.username, loggable.validate_only, suffix) == ("bob", True, b"")


def test_change_own_password_is_verified(users: Users) -> None:
    """The current password is verified, and the revision of its hash is logged."""
    request = ChangePasswordRequest(current_password=SECRET, new_password=OTHER_SECRET)

    loggable, _ = users.normalize("ChangePassword", request, 1)
    users.command("ChangePassword", loggable, 1)

    assert (loggable.current_password, loggable.new_password) == ("", "")
    stored = users.state.users.rows[1].password_hash
    assert passwords.verify_password(stored, OTHER_SECRET)


@pytest.mark.parametrize("named", [None, by_id(1), by_name("alice")])
@pytest.mark.parametrize("current", ["", "wrong"])
def test_wrong_current_password(users: Users, named: Any, current: str) -> None:
    """A change of one's own password with a wrong current one does not reach the log."""
    request = ChangePasswordRequest(user=named, current_password=current, new_password=OTHER_SECRET)
    refused(
        Reason.REASON_INVALID_CREDENTIALS, lambda: users.normalize("ChangePassword", request, 1)
    )


def test_guesses_of_the_current_password_are_throttled(users: Users) -> None:
    """A stolen access token does not serve to guess the password without end."""
    request = ChangePasswordRequest(current_password="wrong", new_password=OTHER_SECRET)

    def change() -> object:
        return users.normalize("ChangePassword", request, 1)

    for _ in range(limits.LOGIN_FAILURES_PER_MINUTE_MAX):
        refused(Reason.REASON_INVALID_CREDENTIALS, change)
    refused(Reason.REASON_QUOTA_EXCEEDED, change)
    login(users)  # counted apart


@pytest.mark.parametrize("named", [by_id(1), by_name("alice")])
def test_password_of_another_is_not_verified(users: Users, named: Any) -> None:
    """Another user's password needs no current one; the machine decides on the permission."""
    request = ChangePasswordRequest(user=named, new_password=OTHER_SECRET)

    loggable, _ = users.normalize("ChangePassword", request, 0)

    assert not loggable.HasField("verified_credential_revision")
    assert passwords.verify_password(loggable.new_password_hash, OTHER_SECRET)


def test_password_of_a_caller_who_is_gone(users: Users) -> None:
    """Nothing is hashed for a caller who does not exist."""
    request = ChangePasswordRequest(current_password=SECRET, new_password=OTHER_SECRET)
    refused(Reason.REASON_UNAUTHENTICATED, lambda: users.normalize("ChangePassword", request, 77))


@pytest.mark.parametrize(
    ("name", "request_", "field"),
    [
        (
            "CreateUser",
            CreateUserRequest(username="bob", password=SECRET, password_hash=SOME_HASH),
            "password_hash",
        ),
        (
            "ChangePassword",
            ChangePasswordRequest(new_password=SECRET, new_password_hash=SOME_HASH),
            "new_password_hash",
        ),
        (
            "ChangePassword",
            ChangePasswordRequest(new_password=SECRET, verified_credential_revision=0),
            "verified_credential_revision",
        ),
        (CREATE_TOKEN, CreatePersonalAccessTokenRequest(name="abc", token_hash=b"x"), "token_hash"),
    ],
)
def test_fields_of_the_cluster_are_refused(
    users: Users, name: str, request_: Any, field: str
) -> None:
    """Fields that normalization sets cannot be set from outside."""
    error = refused(Reason.REASON_MALFORMED_REQUEST, lambda: users.normalize(name, request_))
    assert error.details == {"field": field}


@pytest.mark.parametrize("password", ["", "ab", "a" * 101, "é" * 51])
def test_invalid_password(users: Users, password: str) -> None:
    """Passwords outside 3 to 100 bytes are refused, and not repeated in the message."""
    create = CreateUserRequest(username="bob", password=password)
    change = ChangePasswordRequest(current_password=SECRET, new_password=password)
    for name, request in (("CreateUser", create), ("ChangePassword", change)):
        error = refused(Reason.REASON_INVALID_PASSWORD, partial(users.normalize, name, request))
        assert not password or password not in error.message


def test_nobody_named_is_malformed(users: Users) -> None:
    """A change for a user that the request leaves empty is malformed."""
    request = ChangePasswordRequest(user=Identifier(), new_password=SECRET)
    refused(Reason.REASON_MALFORMED_REQUEST, lambda: users.normalize("ChangePassword", request))


def test_unknown_fields_do_not_reach_the_log(users: Users) -> None:
    """Fields that this version does not know are dropped, since they might hide anything."""
    unknown = b"\xa2\x06\x06secret"  # field 100
    request = CreateUserRequest.FromString(
        CreateUserRequest(username="bob", password=SECRET).SerializeToString() + unknown
    )
    loggable, _ = users.normalize("CreateUser", request)
    assert b"secret" not in loggable.SerializeToString()


# --- Personal access tokens ---


def test_token_is_revealed_to_its_caller_alone(users: Users) -> None:
    """The raw token is in the suffix, and neither in the log nor in the section."""
    request = CreatePersonalAccessTokenRequest(name="laptop")
    loggable, suffix = users.normalize(CREATE_TOKEN, request, 1)
    users.command(CREATE_TOKEN, loggable, 1)

    raw = CreatePersonalAccessTokenResponse.FromString(suffix).token
    assert raw.startswith("vspat_") and len(raw) == len("vspat_") + 52
    assert raw.encode() not in loggable.SerializeToString()
    assert not any(raw.encode() in canonical for _, _, canonical in users.entities())
    assert login_with_token(users, raw).user_id == 1


def test_retry_reveals_the_same_token(users: Users) -> None:
    """Asked again for the same request, the suffix and the hash are the same."""
    request = CreatePersonalAccessTokenRequest(name="laptop")
    first = users.normalize(CREATE_TOKEN, request, 1)

    assert users.normalize(CREATE_TOKEN, request, 1) == first
    assert users.suffix_again(CREATE_TOKEN, request, 1) == first[1]


@pytest.mark.parametrize("changed", [{"user_id": 0}, {"number": 2}, {"index": 1}])
def test_every_command_has_a_token_of_its_own(users: Users, changed: dict[str, int]) -> None:
    """Another user, request or index gives another token."""
    request = CreatePersonalAccessTokenRequest(name="laptop")
    first = users.normalize(CREATE_TOKEN, request, 1)
    other = users.normalize(CREATE_TOKEN, request, **{"user_id": 1, **changed})
    assert other[1] != first[1]


# --- Login ---


def test_login(users: Users) -> None:
    """The right password gives a signed token with the user's credential revision."""
    answer = login(users)

    expires_at = START_US + limits.ACCESS_TOKEN_LIFETIME_US
    assert (answer.user_id, answer.expires_at) == (1, expires_at)
    access = tokens.verify(CLUSTER_KEY, CLUSTER_ID, answer.access_token, START_US)
    assert access == tokens.AccessToken(1, users.credential(1), expires_at)


def test_failed_logins_look_alike(users: Users) -> None:
    """Wrong password, unknown name and inactive user get the same answer."""
    users.create("idle", password_hash=SECRET_HASH)
    request = UpdateUserRequest(user=by_name("idle"), status=users_pb2.USER_STATUS_INACTIVE)
    users.command("UpdateUser", request)

    errors = [
        refused(Reason.REASON_INVALID_CREDENTIALS, partial(login, users, name, secret))
        for name, secret in [("alice", "wrong"), ("nobody", SECRET), ("idle", SECRET)]
    ]

    assert len({error.to_error().SerializeToString() for error in errors}) == 1


def test_every_login_does_the_costly_part(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash of equal cost is verified once per login, for an unknown name too."""
    verified: list[str] = []

    def verify(password_hash: str, password: str) -> bool:
        verified.append(password_hash)
        return passwords.verify_password(password_hash, password)

    monkeypatch.setattr("services.users.login.verify_password", verify)
    login(users)
    refused(Reason.REASON_INVALID_CREDENTIALS, lambda: login(users, "nobody"))

    assert verified == [SECRET_HASH, passwords.UNKNOWN_USER_HASH]
    costs = {password_hash.split("$")[3] for password_hash in verified}
    assert len(costs) == 1


@pytest.mark.parametrize("username", ["alice", "nobody"])
def test_failed_logins_are_throttled(
    users: Users, monkeypatch: pytest.MonkeyPatch, username: str
) -> None:
    """After five failures within a minute a name, known or not, must wait, and learns how long."""
    # This test is not about the cost of hashing.
    monkeypatch.setattr("services.users.login.verify_password", lambda _, given: given == SECRET)
    for _ in range(limits.LOGIN_FAILURES_PER_MINUTE_MAX):
        refused(Reason.REASON_INVALID_CREDENTIALS, lambda: login(users, username, "wrong"))
        users.clock.now_us += 1_000_000

    error = refused(Reason.REASON_QUOTA_EXCEEDED, lambda: login(users, username))
    assert error.details == {"retry_delay_ms": "55000"}
    refused(Reason.REASON_INVALID_CREDENTIALS, lambda: login(users, "other", "wrong"))

    users.clock.now_us += 55_000_000
    if username == "alice":
        assert login(users).user_id == 1


def test_login_with_token(users: Users) -> None:
    """A personal access token gives an access token that does not outlive it."""
    short = START_US + 1000
    lasting = START_US + 2 * limits.ACCESS_TOKEN_LIFETIME_US

    assert login_with_token(users, with_token(users, "one", short)).expires_at == short
    for expires_at in (0, lasting):
        answer = login_with_token(users, with_token(users, f"token {expires_at}", expires_at))
        assert answer.expires_at == START_US + limits.ACCESS_TOKEN_LIFETIME_US
        access = tokens.verify(CLUSTER_KEY, CLUSTER_ID, answer.access_token, START_US)
        assert access.credential_revision == limits.TOKEN_STAMP | users.credential(1)


@pytest.mark.parametrize("wrong_us", [-START_US + 1, 10**15])
def test_logins_take_the_time_of_the_coordinator(users: Users, wrong_us: int) -> None:
    """The clock of the service decides no expiry where the coordinator tells the time."""
    raw = with_token(users, "short", START_US + 100)
    users.clock.now_us, users.told_us = START_US + wrong_us, START_US + 10
    expires_at = users.told_us + limits.ACCESS_TOKEN_LIFETIME_US
    assert login(users).expires_at == expires_at
    assert login_with_token(users, raw).expires_at == START_US + 100
    users.told_us = START_US + 100
    refused(Reason.REASON_INVALID_CREDENTIALS, lambda: login_with_token(users, raw))


def test_expired_token_gives_no_login(users: Users) -> None:
    """By the wall clock a token ends at its expiry, whether or not the log has deleted it."""
    expires_at = START_US + 1000
    raw = with_token(users, expires_at=expires_at)

    users.clock.now_us = expires_at - 1
    login_with_token(users, raw)
    users.clock.now_us = expires_at
    refused(Reason.REASON_INVALID_CREDENTIALS, lambda: login_with_token(users, raw))


def test_failed_token_logins_look_alike(users: Users) -> None:
    """Unknown, deleted and expired tokens, and those of inactive users, get the same answer."""
    deleted = with_token(users, "deleted")
    users.command("DeletePersonalAccessToken", DeletePersonalAccessTokenRequest(name="deleted"), 1)
    expired = with_token(users, "expired", START_US + 1000)
    idle = with_token(users, "idle")
    status = users_pb2.USER_STATUS_INACTIVE
    users.command("UpdateUser", UpdateUserRequest(user=by_id(1), status=status))
    users.clock.now_us += 1000

    errors = [
        refused(Reason.REASON_INVALID_CREDENTIALS, partial(login_with_token, users, raw))
        for raw in ("", "vspat_x", deleted, expired, idle)
    ]

    assert len({error.to_error().SerializeToString() for error in errors}) == 1


def test_no_clear_text_remains(users: Users) -> None:
    """After every kind of secret went through, none is in the log, the section or an answer."""
    create = CreateUserRequest(username="bob", password="bob's secret")
    change = ChangePasswordRequest(current_password=SECRET, new_password=OTHER_SECRET)
    token = CreatePersonalAccessTokenRequest(name="laptop")
    seen: list[bytes] = []
    raw = b""
    for name, request, caller in (
        ("CreateUser", create, 0),
        (CREATE_TOKEN, token, 1),
        ("ChangePassword", change, 1),
    ):
        loggable, suffix = users.normalize(name, request, caller)
        done = users.command(name, loggable, caller)
        raw = raw or CreatePersonalAccessTokenResponse.FromString(suffix).token.encode()
        seen += [loggable.SerializeToString(), done.response.SerializeToString()]
        seen += [payload.SerializeToString() for _, payload in done.effects]
        seen += [repr(users.state.users.rows).encode(), repr(users.state.tokens.rows).encode()]
    seen += [canonical for _, _, canonical in users.entities()]

    assert raw
    for secret in (b"bob's secret", SECRET.encode(), OTHER_SECRET.encode(), raw, CLUSTER_KEY):
        assert not any(secret in text for text in seen)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_domain_needs_a_whole_cluster_key(length: int) -> None:
    """A users service does not start with a cluster key of a wrong length."""
    with pytest.raises(ValueError, match=f"has {length} bytes; it must have 32"):
        build_domain(bytes(length), UsersClock())
