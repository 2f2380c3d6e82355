"""`client.sessions`: lists the sessions of users, and ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client.identifiers import Facade, identifier, pages


class Sessions(Facade):
    """Sessions of the caller, and of others for those who read or manage users."""

    async def own(self, *, page_size: int = 0) -> list[sessions_pb2.SessionInfo]:
        """Return the caller's sessions by ascending id; reads all pages."""
        request = sessions_pb2.ListSessionsRequest(page_size=page_size)
        found = pages(self._client, request, lambda page: page.sessions)
        return [each async for each in found]

    def list(
        self, *, user_id: int | None = None, page_size: int = 0
    ) -> AsyncIterator[sessions_pb2.SessionInfo]:
        """Iterate over the sessions of a user, or of all, by ascending id."""
        request = sessions_pb2.ListUserSessionsRequest(user_id=user_id, page_size=page_size)
        return pages(self._client, request, lambda page: page.sessions)

    async def end(
        self,
        *,
        user: int | str | None = None,
        session_id: int | None = None,
        validate_only: bool = False,
    ) -> users_pb2.EndUserSessionsResponse:
        """End one session of a user, or all; of the caller if no user is named.

        The session that carries this call goes on; `Client.close` ends it.
        """
        response: users_pb2.EndUserSessionsResponse = await self._client.call(
            users_pb2.EndUserSessionsRequest(
                user=None if user is None else identifier(user),
                session_id=session_id,
                validate_only=validate_only,
            )
        )
        return response
