"""The reads of users: gates, pages, and shown fields."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.services.users.users_support import Users, by_id, by_name, permissions, refused
from viewstamp import limits
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1.users_service_pb2 import (
    CreatePersonalAccessTokenRequest,
    DeleteUserRequest,
    GetUserRequest,
    ListPersonalAccessTokensRequest,
    ListUsersRequest,
    WhoAmIRequest,
)

READERS = ("read_users", "manage_users")
OTHERS = [f.name for f in users_pb2.GlobalPermissions.DESCRIPTOR.fields if f.name not in READERS]
LISTS: list[tuple[str, Any]] = [
    ("ListUsers", ListUsersRequest),
    ("ListPersonalAccessTokens", ListPersonalAccessTokensRequest),
]


@pytest.fixture
def users() -> Users:
    """Return a bootstrapped cluster with the user alice, id 1."""
    users = Users().found()
    users.create("alice", "send_messages")
    return users


@pytest.mark.parametrize("permission", READERS)
def test_readers_see_users(users: Users, permission: str) -> None:
    """Either of the two permissions opens both reads."""
    reader = users.create("reader", permission)

    alice = users.query("GetUser", GetUserRequest(user=by_name("alice")), reader).user
    page = users.query("ListUsers", ListUsersRequest(), reader).users

    assert (alice.id, alice.status) == (1, users_pb2.USER_STATUS_ACTIVE)
    assert alice.permissions == permissions(["send_messages"])
    assert [user.username for user in page] == ["root", "alice", "reader"]
    assert not any(user.HasField("permissions") for user in page)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("ListUsers", ListUsersRequest()),
        ("GetUser", GetUserRequest(user=by_name("root"))),
        ("GetUser", GetUserRequest(user=by_id(77))),
    ],
)
def test_others_see_no_users(users: Users, name: str, request_: Any) -> None:
    """All other permissions together open neither, whether or not the user named exists."""
    caller = users.create("caller", *OTHERS)
    error = refused(Reason.REASON_PERMISSION_DENIED, lambda: users.query(name, request_, caller))
    assert error.details["permission"] == "read_users"


@pytest.mark.parametrize("named", [by_id(1), by_name("alice")])
def test_everybody_sees_themselves(users: Users, named: Identifier) -> None:
    """No permission is needed to read oneself, by id or by name, or by WhoAmI."""
    got = users.query("GetUser", GetUserRequest(user=named), 1).user
    assert got.username == "alice"
    assert users.query("WhoAmI", WhoAmIRequest(), 1).user == got


def test_root_sees_that_it_may_do_everything(users: Users) -> None:
    """WhoAmI shows root every global permission."""
    flags = [f.name for f in users_pb2.GlobalPermissions.DESCRIPTOR.fields]
    assert users.query("WhoAmI", WhoAmIRequest()).user.permissions == permissions(flags)


@pytest.mark.parametrize("named", [by_id(77), by_name("nobody")])
def test_get_unknown_user(users: Users, named: Identifier) -> None:
    """A reader is told that a user does not exist."""
    refused(
        Reason.REASON_USER_NOT_FOUND, lambda: users.query("GetUser", GetUserRequest(user=named))
    )


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("GetUser", GetUserRequest(user=by_id(1))),
        ("ListUsers", ListUsersRequest()),
        ("ListPersonalAccessTokens", ListPersonalAccessTokensRequest()),
        ("WhoAmI", WhoAmIRequest()),
    ],
)
@pytest.mark.parametrize(("user_id", "credential"), [(1, 1), (77, 1 << 60), (None, None)])
def test_reads_authenticate(
    users: Users, name: str, request_: Any, user_id: int | None, credential: int | None
) -> None:
    """Stale credentials, unknown callers and callers without any read nothing."""
    refused(Reason.REASON_UNAUTHENTICATED, lambda: users.query(name, request_, user_id, credential))


# --- Pages ---


def with_entries(users: Users, name: str, count: int) -> list[str]:
    """Return the names of `count` users, or of alice's tokens, in the order of the list."""
    names = [f"name {index:02}" for index in range(count)]
    if name == "ListUsers":
        for username in names:
            users.create(username)
        return ["root", "alice", *names]
    for token in reversed(names):
        add_token(users, token)
    return names


def add_token(users: Users, name: str) -> None:
    """Give root a token."""
    request = CreatePersonalAccessTokenRequest(name=name, token_hash=name.encode().ljust(32, b"."))
    users.command("CreatePersonalAccessToken", request, 0)


def entries(answer: Any) -> list[str]:
    """Return the names on a page."""
    if hasattr(answer, "users"):
        return [user.username for user in answer.users]
    return [token.name for token in answer.tokens]


@pytest.mark.parametrize(("name", "request_class"), LISTS)
@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 6, 8, 9])
def test_pages_join_to_the_whole(
    users: Users, name: str, request_class: Any, page_size: int
) -> None:
    """Pages of any size hold every entry once, in order; the last one says that it is."""
    expected = with_entries(users, name, 6)
    seen: list[str] = []
    page_token = ""
    for _ in range(len(expected)):
        request = request_class(page_size=page_size, page_token=page_token)
        answer = users.query(name, request)
        assert 0 < len(entries(answer)) <= page_size
        seen += entries(answer)
        page_token = answer.next_page_token
        if not page_token:
            break

    assert page_token == ""
    assert seen == expected


def test_default_page_size(users: Users) -> None:
    """A page without a size has 100 entries."""
    with_entries(users, "ListUsers", limits.PAGE_SIZE_DEFAULT - 1)
    answer = users.query("ListUsers", ListUsersRequest())
    assert len(answer.users) == limits.PAGE_SIZE_DEFAULT
    assert answer.next_page_token


@pytest.mark.parametrize(("name", "request_class"), LISTS)
def test_page_size_limit(users: Users, name: str, request_class: Any) -> None:
    """A page of 1000 is the largest; the answer to more names the limit."""
    users.query(name, request_class(page_size=1000))
    error = refused(
        Reason.REASON_MALFORMED_REQUEST,
        lambda: users.query(name, request_class(page_size=1001)),
    )
    assert error.details == {"page_size": "1001", "limit": "1000"}


def encoded(key: bytes) -> str:
    """Return a key in base64url."""
    return base64.urlsafe_b64encode(key).decode()


@pytest.mark.parametrize(
    ("name", "request_class", "page_token"),
    [
        (name, request_class, token)
        for name, request_class in LISTS
        for token in ["?", "é", "AAA", "AAA=AAA=", " ", encoded(b"\xff"), "YWJ="]
    ],
)
def test_malformed_page_token(users: Users, name: str, request_class: Any, page_token: str) -> None:
    """A token with which no page ended is refused as a page token."""
    error = refused(
        Reason.REASON_MALFORMED_REQUEST,
        lambda: users.query(name, request_class(page_token=page_token)),
    )
    assert error.details == {"field": "page_token"}


def test_page_tokens_belong_to_a_list(users: Users) -> None:
    """A page token of users is refused for tokens, and one user's tokens' for another's."""
    for name in ("one", "two"):
        add_token(users, name)
    people = users.query("ListUsers", ListUsersRequest(page_size=1)).next_page_token
    own = users.query("ListPersonalAccessTokens", ListPersonalAccessTokensRequest(page_size=1))
    for name, request in (
        ("ListUsers", ListUsersRequest(page_token=own.next_page_token)),
        ("ListPersonalAccessTokens", ListPersonalAccessTokensRequest(page_token=people)),
        (
            "ListPersonalAccessTokens",
            ListPersonalAccessTokensRequest(user=by_id(1), page_token=own.next_page_token),
        ),
    ):
        error = refused(
            Reason.REASON_MALFORMED_REQUEST,
            lambda name=name, request=request: users.query(name, request),  # type: ignore[misc]
        )
        assert error.case == "page_token_of_another_list"


def test_page_token_survives_a_delete(users: Users) -> None:
    """A page goes on after its key even if the entry with that key is gone."""
    users.create("bob")
    first = users.query("ListUsers", ListUsersRequest(page_size=2))
    users.command("DeleteUser", DeleteUserRequest(user=by_name("alice")))

    rest = users.query("ListUsers", ListUsersRequest(page_token=first.next_page_token))

    assert entries(rest) == ["bob"]
