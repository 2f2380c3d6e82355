"""Deletions of personal access tokens that name the revision they expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.services.users.users_support import Users, by_id, refused
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1.users_service_pb2 import (
    CreatePersonalAccessTokenRequest,
    DeletePersonalAccessTokenRequest,
    DeleteUserTokenRequest,
    ListPersonalAccessTokensRequest,
)
from viewstamp.limits import FEATURE_LEVEL_GUARDS

ALICE: Final = 1
# By command: who sends it, and a request with an expected revision.
DELETIONS: Final[dict[str, tuple[int, Callable[[int], Any]]]] = {
    "DeletePersonalAccessToken": (
        ALICE,
        lambda revision: DeletePersonalAccessTokenRequest(
            name="laptop", expected_revision=revision
        ),
    ),
    "DeleteUserToken": (
        0,
        lambda revision: DeleteUserTokenRequest(
            user=by_id(ALICE), name="laptop", expected_revision=revision
        ),
    ),
}


@pytest.fixture
def users() -> Users:
    """Return a cluster with the user alice, who has deleted a token and made another one."""
    users = Users().found()
    users.create("alice")
    users.command("CreatePersonalAccessToken", _token(b"1"), ALICE)
    users.command(
        "DeletePersonalAccessToken", DeletePersonalAccessTokenRequest(name="laptop"), ALICE
    )
    users.command("CreatePersonalAccessToken", _token(b"2"), ALICE)
    return users


def _token(start: bytes) -> CreatePersonalAccessTokenRequest:
    return CreatePersonalAccessTokenRequest(name="laptop", token_hash=start * 32)


def _revision(users: Users) -> int:
    """Return the modified_revision of alice's token, 0 if she has none."""
    answer = users.query("ListPersonalAccessTokens", ListPersonalAccessTokensRequest(), ALICE)
    return next((token.modified_revision for token in answer.tokens), 0)


@pytest.mark.parametrize("name", DELETIONS)
def test_another_token_of_that_name_stays(users: Users, name: str) -> None:
    """Whoever expects the deleted token does not delete the one that has its name now."""
    caller, request_of = DELETIONS[name]
    revision = _revision(users)
    refusal = refused(
        Reason.REASON_REVISION_MISMATCH,
        lambda: users.command(name, request_of(revision - 2), caller),
    )
    assert refusal.details["modified_revision"] == str(revision)
    assert _revision(users) == revision
    users.command(name, request_of(revision), caller)
    assert _revision(users) == 0


@pytest.mark.parametrize("name", DELETIONS)
def test_below_the_level_the_revision_counts_for_nothing(
    users: Users, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds that do not know it ignore it, so all do; the gateway refuses such a command."""
    monkeypatch.setattr("tests.services.users.users_support.LEVEL", FEATURE_LEVEL_GUARDS - 1)
    caller, request_of = DELETIONS[name]
    users.command(name, request_of(_revision(users) - 2), caller)
    assert _revision(users) == 0
