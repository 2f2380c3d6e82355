"""The reads of users that need nothing but the state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from services.runtime.domain import Call, QueryHandler
from services.users import permissions
from services.users.access import (
    READ_USERS,
    authenticate,
    authorize,
    existing,
    find_user,
    whose_with,
)
from services.users.model import Token, User, UsersState
from viewstamp.api.users.v1 import users_pb2, users_service_pb2
from viewstamp.paging import PagedList, page_size


def get_user(
    state: UsersState, request: users_service_pb2.GetUserRequest, call: Call
) -> users_service_pb2.GetUserResponse:
    """Return one user with permissions."""
    caller = authenticate(state, call)
    user = find_user(state, request.user)
    if user is None or user.id != caller.id:
        authorize(caller, READ_USERS)
    message = user_with_permissions(existing(user, request.user))
    return users_service_pb2.GetUserResponse(user=message)


def list_users(
    state: UsersState, request: users_service_pb2.ListUsersRequest, call: Call
) -> users_service_pb2.ListUsersResponse:
    """Return a page of users by ascending id."""
    authorize(authenticate(state, call), READ_USERS)
    size, pages = page_size(request.page_size), PagedList("ListUsers")
    # One more than asked for tells whether there is another page.
    ids = state.users.keys_after(pages.id_after(request.page_token), size + 1)
    page = ids[:size]
    return users_service_pb2.ListUsersResponse(
        users=[user_message(state.users.rows[user_id]) for user_id in page],
        next_page_token=pages.next_id_token(ids, size),
    )


def list_tokens(
    state: UsersState, request: users_service_pb2.ListPersonalAccessTokensRequest, call: Call
) -> users_service_pb2.ListPersonalAccessTokensResponse:
    """Return a page of a user's tokens by name."""
    user = whose_with(state, request, authenticate(state, call), READ_USERS)
    size, pages = page_size(request.page_size), PagedList("ListPersonalAccessTokens", user.id)
    names = state.tokens_of(user.id)
    start = bisect_right(names, pages.name_after(request.page_token))
    page = names[start : start + size]
    return users_service_pb2.ListPersonalAccessTokensResponse(
        tokens=[token_message(state.tokens.rows[user.id, name]) for name in page],
        next_page_token=pages.name_token(page[-1]) if len(names) > start + size else "",
    )


def who_am_i(
    state: UsersState, request: users_service_pb2.WhoAmIRequest, call: Call
) -> users_service_pb2.WhoAmIResponse:
    """Return the caller with permissions."""
    return users_service_pb2.WhoAmIResponse(user=user_with_permissions(authenticate(state, call)))


QUERIES: Final[Mapping[str, QueryHandler[UsersState]]] = {
    "GetUser": get_user,
    "ListUsers": list_users,
    "ListPersonalAccessTokens": list_tokens,
    "WhoAmI": who_am_i,
}


def status_of(user: User) -> users_pb2.UserStatus.ValueType:
    """Return the status as callers and snapshots see it."""
    return users_pb2.USER_STATUS_ACTIVE if user.active else users_pb2.USER_STATUS_INACTIVE


def user_message(user: User) -> users_pb2.User:
    """Return the user as callers see it, without permissions."""
    return users_pb2.User(
        id=user.id,
        username=user.username,
        status=status_of(user),
        created_at=user.created_at,
        created_revision=user.created_revision,
        modified_revision=user.modified_revision,
    )


def user_with_permissions(user: User) -> users_pb2.User:
    """Return the user as callers see it, with permissions."""
    message = user_message(user)
    message.permissions.CopyFrom(permissions.to_message(user.permissions))
    return message


def token_message(token: Token) -> users_pb2.PersonalAccessToken:
    """Return a token as callers see it."""
    return users_pb2.PersonalAccessToken(
        name=token.name,
        expires_at=token.expires_at,
        created_at=token.created_at,
        created_revision=token.created_revision,
        modified_revision=token.modified_revision,
    )
