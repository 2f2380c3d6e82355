"""When access tokens, personal access tokens and sessions end."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.services.users.users_support import (
    GROUPS,
    SESSIONS,
    SOME_HASH,
    Users,
    by_id,
    refused,
)
from viewstamp.api.domain.v1.effects_pb2 import EffectPayload, UserSessionsEnded
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2 as pb
from viewstamp.limits import FEATURE_LEVEL_GUARDS, ROOT_USER_ID, TOKEN_STAMP

ALICE = 1


@pytest.fixture
def users() -> Users:
    """Return a bootstrapped cluster with alice, who may do nothing, and a token of hers."""
    users = Users().found()
    users.create("alice")
    add_token(users, ALICE)
    return users


def add_token(users: Users, owner: int, name: str = "laptop") -> None:
    """Create a personal access token."""
    request = pb.CreatePersonalAccessTokenRequest(
        name=name, token_hash=f"{owner:3}{name:29}".encode()
    )
    users.command("CreatePersonalAccessToken", request, owner)


def who_am_i(users: Users, stamp: int) -> int:
    """Ask for alice's data with credentials of this stamp. Raises Refusal."""
    answer = users.query("WhoAmI", pb.WhoAmIRequest(), ALICE, stamp)
    return int(answer.user.id)


def delete_own(users: Users) -> None:
    """Let alice delete her token."""
    request = pb.DeletePersonalAccessTokenRequest(name="laptop")
    users.command("DeletePersonalAccessToken", request, ALICE)


def delete_as_root(users: Users) -> None:
    """Let root delete alice's token."""
    users.command("DeleteUserToken", pb.DeleteUserTokenRequest(user=by_id(ALICE), name="laptop"))


@pytest.mark.parametrize("delete", [delete_own, delete_as_root])
def test_deleted_token_ends_what_it_got(users: Users, delete: Any) -> None:
    """Credentials from a deleted token are refused at once; those from the password live on."""
    by_password = users.credential(ALICE)
    by_token = TOKEN_STAMP | by_password
    assert who_am_i(users, by_token) == ALICE

    delete(users)

    refused(Reason.REASON_UNAUTHENTICATED, lambda: who_am_i(users, by_token))
    assert who_am_i(users, by_password) == ALICE
    assert who_am_i(users, TOKEN_STAMP | users.revision) == ALICE


def test_stages_hear_of_a_deleted_token(users: Users) -> None:
    """Sessions and streams learn the revision from which on a token's credentials are accepted."""
    request = pb.DeletePersonalAccessTokenRequest(name="laptop")
    (to, payload), *rest = users.command("DeletePersonalAccessToken", request, ALICE).effects
    changed = payload.credentials_changed
    assert (changed.minimum_credential_revision, changed.minimum_token_revision) == (
        users.credential(ALICE),
        users.revision,
    )
    assert SESSIONS in to and not rest


def test_reset_evicts_an_intruder(users: Users) -> None:
    """A new password deletes personal access tokens and ends their credentials, and sessions."""
    by_token = TOKEN_STAMP | users.credential(ALICE)
    request = pb.ChangePasswordRequest(user=by_id(ALICE), new_password_hash=SOME_HASH)

    done = users.command("ChangePassword", request)

    assert users.state.tokens_of(ALICE) == ()
    refused(Reason.REASON_UNAUTHENTICATED, lambda: who_am_i(users, by_token))
    ended = EffectPayload(user_sessions_ended=UserSessionsEnded(user_id=ALICE))
    assert done.effects[-1] == ((SESSIONS, GROUPS), ended)


@pytest.mark.parametrize("keep_tokens", [False, True])
@pytest.mark.parametrize("keep_sessions", [False, True])
def test_reset_keeps_what_it_is_asked_to(
    users: Users, keep_tokens: bool, keep_sessions: bool
) -> None:
    """A new password leaves personal access tokens alone, or sessions, or both, as asked."""
    request = pb.ChangePasswordRequest(
        user=by_id(ALICE),
        new_password_hash=SOME_HASH,
        keep_tokens=keep_tokens,
        keep_sessions=keep_sessions,
    )
    done = users.command("ChangePassword", request)
    assert users.state.tokens_of(ALICE) == (("laptop",) if keep_tokens else ())
    told = [payload.WhichOneof("kind") for _, payload in done.effects]
    assert told == ["credentials_changed"] + ["user_sessions_ended"] * (not keep_sessions)


def test_level_one_keeps_what_it_kept(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of feature level 1 keep their results: tokens and sessions live on."""
    monkeypatch.setattr("tests.services.users.users_support.LEVEL", 1)
    by_token = TOKEN_STAMP | users.revision
    request = pb.ChangePasswordRequest(user=by_id(ROOT_USER_ID), new_password_hash=SOME_HASH)
    admin = users.create("admin", "manage_users")
    users.command("ChangePassword", request, admin)
    delete_own(users)
    assert who_am_i(users, by_token) == ALICE
    request = pb.ChangePasswordRequest(user=by_id(ALICE), new_password_hash=SOME_HASH)
    add_token(users, ALICE)
    assert len(users.command("ChangePassword", request).effects) == 1
    assert users.state.tokens_of(ALICE) == ("laptop",)


@pytest.mark.parametrize("of_token", [False, True])
def test_logout(users: Users, of_token: bool) -> None:
    """Logging out ends the credentials of the same origin: a token's logout spares a password's."""
    by_password = users.credential(ALICE)
    by_token = TOKEN_STAMP | users.credential(ALICE)
    users.command(
        "Logout", pb.LogoutRequest(), ALICE, credential=by_token if of_token else by_password
    )
    refused(Reason.REASON_UNAUTHENTICATED, lambda: who_am_i(users, by_token))
    if of_token:
        assert who_am_i(users, by_password) == ALICE
    else:
        refused(Reason.REASON_UNAUTHENTICATED, lambda: who_am_i(users, by_password))


@pytest.mark.parametrize("level", [FEATURE_LEVEL_GUARDS - 1, FEATURE_LEVEL_GUARDS])
def test_a_logout_may_be_tried(users: Users, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that validates ends nothing; below the level, where builds ignore that, it ends all."""
    monkeypatch.setattr("tests.services.users.users_support.LEVEL", level)
    stamp = users.credential(ALICE)
    done = users.command("Logout", pb.LogoutRequest(validate_only=True), ALICE, credential=stamp)
    if level >= FEATURE_LEVEL_GUARDS:
        assert (who_am_i(users, stamp), done.effects) == (ALICE, [])
    else:
        refused(Reason.REASON_UNAUTHENTICATED, lambda: who_am_i(users, stamp))


@pytest.mark.parametrize("session_id", [None, 77])
def test_end_own_sessions(users: Users, session_id: int | None) -> None:
    """Everybody may end their own sessions, one or all."""
    request = pb.EndUserSessionsRequest(session_id=session_id)  # of a caller without a session
    done = users.command("EndUserSessions", request, ALICE)
    ended = UserSessionsEnded(user_id=ALICE, session_id=session_id)
    assert done.effects == [((SESSIONS, GROUPS), EffectPayload(user_sessions_ended=ended))]


ABOUT_ANOTHER = {
    "DeleteUserToken": pb.DeleteUserTokenRequest(name="laptop"),
    "EndUserSessions": pb.EndUserSessionsRequest(),
    "ChangePassword": pb.ChangePasswordRequest(new_password_hash=SOME_HASH),
}


def about(name: str, user_id: int) -> Any:
    """Return the request of that name about a user."""
    request: Any = type(ABOUT_ANOTHER[name])()
    request.CopyFrom(ABOUT_ANOTHER[name])
    request.user.id = user_id
    return request


@pytest.mark.parametrize("name", sorted(ABOUT_ANOTHER))
def test_gates(users: Users, name: str) -> None:
    """Another's credentials are for manage_users alone."""
    admin = users.create("admin", "manage_users")
    reader = users.create("reader", "read_users")
    for caller in (ALICE, reader):
        request = about(name, admin)
        refused(Reason.REASON_PERMISSION_DENIED, partial(users.command, name, request, caller))
    users.command(name, about(name, ALICE), admin)


@pytest.mark.parametrize("name", sorted(ABOUT_ANOTHER))
def test_only_root_changes_root(users: Users, name: str) -> None:
    """A user manager cannot take over root: neither by a password, nor by tokens or sessions."""
    admin = users.create("admin", "manage_users")
    request = about(name, ROOT_USER_ID)
    refusal = refused(Reason.REASON_PERMISSION_DENIED, lambda: users.command(name, request, admin))
    assert refusal.details["permission"] == "root"


def test_only_root_renames_root(users: Users) -> None:
    """The name of root is root's own."""
    admin = users.create("admin", "manage_users")
    request = pb.UpdateUserRequest(user=by_id(ROOT_USER_ID), username="toor")
    refused(Reason.REASON_PERMISSION_DENIED, lambda: users.command("UpdateUser", request, admin))
    users.command("UpdateUser", request)


def test_tokens_of_others_are_listed_to_those_who_read_users(users: Users) -> None:
    """Another's tokens need read_users or manage_users; one's own nothing."""
    request = pb.ListPersonalAccessTokensRequest(user=by_id(ALICE))
    for caller in (
        ALICE,
        users.create("reader", "read_users"),
        users.create("admin", "manage_users"),
    ):
        answer = users.query("ListPersonalAccessTokens", request, caller)
        assert [token.name for token in answer.tokens] == ["laptop"]
    nobody = users.create("nobody")
    refused(
        Reason.REASON_PERMISSION_DENIED,
        lambda: users.query("ListPersonalAccessTokens", request, nobody),
    )


@pytest.mark.parametrize("name", ["CreateUser", "ChangePassword"])
def test_nothing_is_hashed_for_the_powerless(
    users: Users, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A user who may neither create users nor change another's password causes no hash."""

    def hash_password(_: str) -> str:
        raise AssertionError("hashed")

    monkeypatch.setattr("services.users.normalize.hash_password", hash_password)
    requests: dict[str, Any] = {
        "CreateUser": pb.CreateUserRequest(username="bob", password="secret"),
        "ChangePassword": pb.ChangePasswordRequest(user=by_id(0), new_password="secret"),
    }
    refused(Reason.REASON_PERMISSION_DENIED, lambda: users.normalize(name, requests[name], ALICE))
    admin = users.create("admin", "manage_users")
    requests["ChangePassword"].user.id = ALICE
    # A defect in a part of the plan is answered INTERNAL, and raised by the harness.
    with pytest.raises(AssertionError, match="hashed"):
        users.normalize(name, requests[name], admin)
