"""`client.users` and `client.tokens`: users, permissions, personal access tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator

from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as service_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.identifiers import FacadeClient, identifier, pages


class Users:
    """Users by id or name. Errors are those of the RPCs of UsersService."""

    def __init__(self, client: FacadeClient) -> None:
        self._client = client

    async def create(
        self,
        username: str,
        password: str,
        *,
        status: users_pb2.UserStatus.ValueType = users_pb2.USER_STATUS_UNSPECIFIED,
        permissions: users_pb2.Permissions | None = None,
        validate_only: bool = False,
    ) -> service_pb2.CreateUserResponse:
        """Create a user, active unless said otherwise."""
        response: service_pb2.CreateUserResponse = await self._client.call(
            service_pb2.CreateUserRequest(
                username=username,
                password=password,
                status=status,
                permissions=permissions,
                validate_only=validate_only,
            )
        )
        return response

    async def update(
        self,
        user: int | str,
        *,
        username: str | None = None,
        status: users_pb2.UserStatus.ValueType = users_pb2.USER_STATUS_UNSPECIFIED,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.UpdateUserResponse:
        """Rename a user or change the status; what is not given stays."""
        response: service_pb2.UpdateUserResponse = await self._client.call(
            service_pb2.UpdateUserRequest(
                user=identifier(user),
                username=username,
                status=status,
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def delete(
        self, user: int | str, *, expected_revision: int | None = None, validate_only: bool = False
    ) -> service_pb2.DeleteUserResponse:
        """Delete a user with tokens, sessions, memberships and grants."""
        response: service_pb2.DeleteUserResponse = await self._client.call(
            service_pb2.DeleteUserRequest(
                user=identifier(user),
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def change_password(
        self,
        new_password: str,
        *,
        user: int | str | None = None,
        current_password: str = "",
        expected_revision: int | None = None,
        keep_tokens: bool = False,
        keep_sessions: bool = False,
        validate_only: bool = False,
    ) -> service_pb2.ChangePasswordResponse:
        """Change a password: one's own with the current one, another's with manage_users.

        Ends every access token of that user, one's own included; unless they are kept, personal
        access tokens and sessions, too.
        """
        response: service_pb2.ChangePasswordResponse = await self._client.call(
            service_pb2.ChangePasswordRequest(
                user=None if user is None else identifier(user),
                current_password=current_password,
                new_password=new_password,
                expected_revision=expected_revision,
                keep_tokens=keep_tokens,
                keep_sessions=keep_sessions,
                validate_only=validate_only,
            )
        )
        return response

    async def update_permissions(
        self,
        user: int | str,
        permissions: users_pb2.Permissions | None,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.UpdatePermissionsResponse:
        """Replace all permissions of a user; None clears them."""
        response: service_pb2.UpdatePermissionsResponse = await self._client.call(
            service_pb2.UpdatePermissionsRequest(
                user=identifier(user),
                permissions=permissions,
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

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
        return pages(
            lambda token: self._client.call(
                service_pb2.ListUsersRequest(page_size=page_size, page_token=token),
                consistency=consistency,
            ),
            lambda page: page.users,
        )


class Tokens:
    """Personal access tokens: the caller's, and those of others for who manages users."""

    def __init__(self, client: FacadeClient) -> None:
        self._client = client

    async def create(
        self, name: str, *, expires_at: int = 0, validate_only: bool = False
    ) -> service_pb2.CreatePersonalAccessTokenResponse:
        """Create a token; `expires_at` in microseconds since 1970, 0 for never.

        The response holds the raw token, which is shown this once.
        """
        response: service_pb2.CreatePersonalAccessTokenResponse = await self._client.call(
            service_pb2.CreatePersonalAccessTokenRequest(
                name=name, expires_at=expires_at, validate_only=validate_only
            )
        )
        return response

    async def revoke(
        self, user: int | str, name: str, *, validate_only: bool = False
    ) -> service_pb2.DeleteUserTokenResponse:
        """Delete a token of any user; what that user's tokens got ends."""
        response: service_pb2.DeleteUserTokenResponse = await self._client.call(
            service_pb2.DeleteUserTokenRequest(
                user=identifier(user), name=name, validate_only=validate_only
            )
        )
        return response

    async def delete(
        self, name: str, *, validate_only: bool = False
    ) -> service_pb2.DeletePersonalAccessTokenResponse:
        """Delete a token; what the caller's tokens got ends."""
        response: service_pb2.DeletePersonalAccessTokenResponse = await self._client.call(
            service_pb2.DeletePersonalAccessTokenRequest(name=name, validate_only=validate_only)
        )
        return response

    def list(
        self,
        *,
        user: int | str | None = None,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> AsyncIterator[users_pb2.PersonalAccessToken]:
        """Iterate over the tokens of the caller, or of a user, by name."""
        return pages(
            lambda token: self._client.call(
                service_pb2.ListPersonalAccessTokensRequest(
                    user=None if user is None else identifier(user),
                    page_size=page_size,
                    page_token=token,
                ),
                consistency=consistency,
            ),
            lambda page: page.tokens,
        )
