"""Watches over services that a test drives, with clients that read when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from coordinator.gateway.change_feed import ChangeFeed
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.watch_filters import WatchFilter
from coordinator.gateway.watch_openings import Opened, WatchOpenings
from coordinator.gateway.watches import WATCH_PATH, Watches
from coordinator.replica.batcher import Reply
from tests.coordinator.gateway.fake_changes import (
    GROUP,
    MEMBER,
    PATIENCE_S,
    STREAM,
    TOKEN,
    TOPIC,
    USER,
    FakeChanges,
    until,
)
from viewstamp.api.watch.v1.watch_service_pb2 import Change, WatchRequest, WatchResponse
from viewstamp.errors import Refusal
from viewstamp.status import STATUS_DETAILS_KEY
from viewstamp.tokens import AccessToken, sign

CLUSTER_KEY: Final = b"k" * 32
CLUSTER_ID: Final = b"c" * 16
NOW_US: Final = 10**12
HOUR_US: Final = 3_600 * 10**6
ALICE, BOB = 7, 8
EVERYTHING: Final = WatchFilter(frozenset((USER, TOKEN, STREAM, TOPIC, GROUP, MEMBER)))
OF_STREAM: Final = replace(EVERYTHING, stream_id=1)
OF_TOPIC: Final = replace(OF_STREAM, topic_id=2)
OF_GROUP: Final = replace(OF_TOPIC, group_id=3)


class WatchingClient:
    """The call of one client, as its handler sees it."""

    def __init__(self, token: str = "") -> None:
        self.messages: list[WatchResponse] = []
        self.sizes: list[int] = []
        self.ended_with: list[str] = []
        self.details: dict[str, str] = {}
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.reading: Callable[[], None] = lambda: None
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        """Return the token."""
        return self._metadata

    async def write(self, message: bytes) -> None:
        """Take a message, once the client reads."""
        await self.may_read.wait()
        self.sizes.append(len(message))
        self.messages.append(WatchResponse.FromString(message))
        self.reading()

    async def abort(self, code: object, message: str, trailing_metadata: Any = ()) -> None:
        """End the call."""
        status = status_pb2.Status.FromString(dict(trailing_metadata)[STATUS_DETAILS_KEY])
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        self.ended_with.append(info.reason)
        self.details = dict(info.metadata)
        raise grpc.aio.AbortError

    @property
    def changes(self) -> list[Change]:
        """All changes so far."""
        return [change for message in self.messages for change in message.changes]

    @property
    def revisions(self) -> list[int]:
        """The revisions of all changes so far."""
        return [change.revision for change in self.changes]

    @property
    def headers(self) -> list[int]:
        """How far the feed was said to be complete."""
        return [message.header.revision for message in self.messages]


class FakeOpenings(WatchOpenings):
    """Lets everybody watch what the test says, from the revision in the request on."""

    def __init__(self, services: FakeChanges) -> None:
        self.wanted = EVERYTHING
        self.refusal: Refusal | None = None
        self.may_open = asyncio.Event()
        self.may_open.set()
        self._services = services

    async def open(self, request: WatchRequest, principal: AccessToken) -> Opened:
        """Open a watch."""
        await self.may_open.wait()
        if self.refusal is not None:
            raise self.refusal
        revision = self._services.revision
        return Opened(
            self.wanted, request.from_revision or revision + 1, Reply(1, revision, revision, ())
        )


class WatchesTrial:
    """The watches of one replica."""

    def __init__(self, page_max: int = 1_024) -> None:
        self.services = FakeChanges(page_max)
        self.failures: list[BaseException] = []
        self.feed = ChangeFeed(self.services, lambda: self.services.revision, self.failures.append)
        self.openings = FakeOpenings(self.services)
        self.reading_refusal: Refusal | None = None
        self.watches = Watches(
            CLUSTER_ID,
            Authenticator(CLUSTER_KEY, CLUSTER_ID, lambda: NOW_US),
            self.openings,
            self.services,
            self.feed,
            self.check_reading,
        )

    def check_reading(self) -> None:
        """Raise the refusal of reads, if there is one."""
        if self.reading_refusal is not None:
            raise self.reading_refusal

    def client(self, user_id: int = ALICE, valid_us: int = HOUR_US) -> WatchingClient:
        """Return a client with a token."""
        return WatchingClient(sign(CLUSTER_KEY, CLUSTER_ID, user_id, 1, NOW_US + valid_us))

    async def serve(self, client: WatchingClient, payload: bytes) -> None:
        """Serve a call up to its end."""
        handler = self.watches.handlers()[WATCH_PATH]
        with suppress(grpc.aio.AbortError):
            await handler.unary_stream(payload, client)

    @asynccontextmanager
    async def watch(
        self,
        first: int = 0,
        wanted: WatchFilter | None = None,
        client: WatchingClient | None = None,
        **fields: Any,
    ) -> AsyncIterator[WatchingClient]:
        """Watch in the block, and leave at its end; by default alice watches everything."""
        client = self.client() if client is None else client
        self.openings.wanted = EVERYTHING if wanted is None else wanted
        request = WatchRequest(from_revision=first, **fields)
        task = asyncio.ensure_future(self.serve(client, request.SerializeToString()))
        try:
            await until(
                lambda: bool(client.messages or client.ended_with or not client.may_read.is_set())
            )
            yield client
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def ends(self, client: WatchingClient) -> str:
        """Wait until a client is told why its watch ends; return that."""
        await until(lambda: bool(client.ended_with))
        (reason,) = client.ended_with
        return reason

    async def until_complete(self, client: WatchingClient, revision: int) -> None:
        """Wait until a watch of everything has sent a revision, which has changes."""
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: bool(client.headers) and client.headers[-1] >= revision)
