"""Access tokens of callers: how they get one, and which calls it still allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio
import pytest
from google.protobuf.message import Message

from testkit.api_methods import methods_by_request
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Client, Endpoint, RawSession, connect, unary
from viewstamp.client.link import StreamCall, open_stream
from viewstamp.client.transport import refusal_in
from viewstamp.errors import Refusal
from viewstamp.routing import Method

PASSWORD: Final = "correct horse"
OTHER_PASSWORD: Final = "battery staple"
END_TIMEOUT_S: Final = 30
# The second reason is that of a method that is not built yet.
_SERVES_NOBODY: Final = (Reason.REASON_UNAUTHENTICATED, Reason.REASON_UNIMPLEMENTED)


def methods_for_callers() -> list[Method]:
    """Return every unary method that a caller needs a token for."""
    return [
        method
        for method in methods_by_request().values()
        if not method.internal and not method.public
    ]


class Door:
    """One replica, for callers who bring their own credentials."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def ask(self, request: Message, access_token: str | None = None) -> Any:
        """Call a method by itself. Raises Refusal."""
        async with Endpoint(self.address).open() as channel:
            return await unary(channel, request, access_token=access_token)

    async def by_password(self, username: str, password: str = PASSWORD) -> str:
        """Return the access token of a login. Raises Refusal."""
        request = users_pb2.LoginRequest(username=username, password=password)
        return str((await self.ask(request)).access_token)

    async def by_token(self, personal_access_token: str) -> str:
        """Log in with a personal access token; return the access token. Raises Refusal."""
        request = users_pb2.LoginWithTokenRequest(token=personal_access_token)
        return str((await self.ask(request)).access_token)

    async def is_in_force(self, access_token: str) -> bool:
        """Whether a linearizable read accepts an access token."""
        try:
            await self.ask(users_pb2.WhoAmIRequest(), access_token)
        except Refusal as refusal:
            assert refusal.reason == Reason.REASON_UNAUTHENTICATED, refusal
            return False
        return True

    async def still_served(self, access_token: str) -> dict[str, str]:
        """Call every method with an access token that should be invalid.

        Return the methods that do not refuse it as such, with their answers.
        """
        found = {}
        for method in methods_for_callers():
            try:
                await self.ask(method.request(), access_token)
            except Refusal as refusal:
                if refusal.reason not in _SERVES_NOBODY:
                    found[method.name] = refusal.name
            else:
                found[method.name] = "served"
        return found

    @asynccontextmanager
    async def client(self, username: str, password: str = PASSWORD) -> AsyncIterator[Client]:
        """Connect a client of the library with a password."""
        async with await connect(self.address, username=username, password=password) as client:
            yield client

    @asynccontextmanager
    async def session(self, access_token: str, session_id: int = 0) -> AsyncIterator[RawSession]:
        """Open a stream with a session, either a new or an existing one."""
        endpoint = Endpoint(self.address)
        async with RawSession(endpoint, access_token, session_id=session_id) as session:
            yield session

    @asynccontextmanager
    async def stream_for_reads(self, access_token: str) -> AsyncIterator[StreamCall]:
        """Open a stream without a session."""
        async with Endpoint(self.address).open() as channel:
            yield (await open_stream(channel, access_token, 0))[0]


async def ends_with(stream: RawSession | StreamCall) -> str:
    """Wait for the end of a stream that expects no answer; return the reason."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(END_TIMEOUT_S):
            await (stream.receive() if isinstance(stream, RawSession) else stream.read())
    refusal = refusal_in(caught.value)
    assert refusal is not None, caught.value
    return refusal.name


async def refusal_of(attempt: Any) -> Refusal:
    """Return the refusal of a call, over a stream or unary."""
    with pytest.raises((Refusal, grpc.aio.AioRpcError)) as caught:
        await attempt
    error = caught.value
    refusal = refusal_in(error) if isinstance(error, grpc.aio.AioRpcError) else error
    assert isinstance(refusal, Refusal), error
    return refusal
