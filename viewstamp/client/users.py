"""`client.users` and `client.tokens`: users, permissions, personal access tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as service_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.identifiers import Answer, Facade, Guards, identifier, pages


class Users(Facade):
    """Users by id or name. The RPCs of UsersService document the errors."""

    def create(
        self,
        username: str,
        password: str,
        *,
        status: users_pb2.UserStatus.ValueType = users_pb2.USER_STATUS_UNSPECIFIED,
        permissions: users_pb2.Permissions | None = None,
        validate_only: bool = False,
    ) -> Answer[service_pb2.CreateUserResponse]:
        """Create a user, by default an active one."""
        request = service_pb2.CreateUserRequest(
            username=username,
            password=password,
            status=status,
            permissions=permissions,
            validate_only=validate_only,
        )
        return self._client.call(request)

    def update(
        self,
        user: int | str,
        *,
        username: str | None = None,
        status: users_pb2.UserStatus.ValueType = users_pb2.USER_STATUS_UNSPECIFIED,
        **guards: Unpack[Guards],
    ) -> Answer[service_pb2.UpdateUserResponse]:
        """Rename a user or change the status; absent arguments change nothing."""
        request = service_pb2.UpdateUserRequest(
            user=identifier(user), username=username, status=status, **guards
        )
        return self._client.call(request)

    def delete(
        self, user: int | str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.DeleteUserResponse]:
        """Delete a user with tokens, sessions, memberships and grants."""
        return self._client.call(service_pb2.DeleteUserRequest(user=identifier(user), **guards))

    def change_password(
        self,
        new_password: str,
        *,
        user: int | str | None = None,
        current_password: str = "",
        expected_revision: int | None = None,
        keep_tokens: bool = False,
        keep_sessions: bool = False,
        validate_only: bool = False,
    ) -> Answer[service_pb2.ChangePasswordResponse]:
        """Change a password: one's own with the current one, another's with manage_users.

        Ends every access token of that user, even the caller's own. It also ends the user's
        personal access tokens and sessions, unless they are kept.
        """
        request = service_pb2.ChangePasswordRequest(
            user=None if user is None else identifier(user),
            current_password=current_password,
            new_password=new_password,
            expected_revision=expected_revision,
            keep_tokens=keep_tokens,
            keep_sessions=keep_sessions,
            validate_only=validate_only,
        )
        return self._client.call(request)

    def update_permissions(
        self, user: int | str, permissions: users_pb2.Permissions | None, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.UpdatePermissionsResponse]:
        """Replace all permissions of a user; None clears them."""
        request = service_pb2.UpdatePermissionsRequest(
            user=identifier(user), permissions=permissions, **guards
        )
        return self._client.call(request)

    async def get(
        self, user: int | str, *, consistency: Consistency = LINEARIZABLE
    ) -> users_pb2.User:
        """Return a user with permissions."""
        request = service_pb2.GetUserRequest(user=identifier(user))
        response = await self._client.call(request, consistency=consistency)
        found: users_pb2.User = response.user
        return found

    async def who_am_i(self, *, consistency: Consistency = LINEARIZABLE) -> users_pb2.User:
        """Return the caller, with permissions."""
        response = await self._client.call(service_pb2.WhoAmIRequest(), consistency=consistency)
        found: users_pb2.User = response.user
        return found

    def list(
        self, *, page_size: int = 0, consistency: Consistency = LINEARIZABLE
    ) -> AsyncIterator[users_pb2.User]:
        """Iterate over all users by ascending id, without permissions."""
        request = service_pb2.ListUsersRequest(page_size=page_size)
        return pages(self._client, request, lambda page: page.users, consistency)


class Tokens(Facade):
    """Personal access tokens: the caller's own, and with manage_users those of others."""

    def create(
        self, name: str, *, expires_at: int = 0, validate_only: bool = False
    ) -> Answer[service_pb2.CreatePersonalAccessTokenResponse]:
        """Create a token; `expires_at` in microseconds since 1970, 0 for never.

        Only this response holds the raw token.
        """
        request = service_pb2.CreatePersonalAccessTokenRequest(
            name=name, expires_at=expires_at, validate_only=validate_only
        )
        return self._client.call(request)

    def revoke(
        self, user: int | str, name: str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.DeleteUserTokenResponse]:
        """Delete a token of any user; ends that user's access tokens from personal ones."""
        request = service_pb2.DeleteUserTokenRequest(user=identifier(user), name=name, **guards)
        return self._client.call(request)

    def delete(
        self, name: str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.DeletePersonalAccessTokenResponse]:
        """Delete a token; ends the caller's access tokens from personal ones."""
        request = service_pb2.DeletePersonalAccessTokenRequest(name=name, **guards)
        return self._client.call(request)

    def list(
        self,
        *,
        user: int | str | None = None,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> AsyncIterator[users_pb2.PersonalAccessToken]:
        """Iterate over the tokens of the caller, or of a user, by name."""
        request = service_pb2.ListPersonalAccessTokensRequest(
            user=None if user is None else identifier(user), page_size=page_size
        )
        return pages(self._client, request, lambda page: page.tokens, consistency)
