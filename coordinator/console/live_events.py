"""What an open page is told: the status at every tick, and which domains have changed.

Nothing waits in a queue: of each kind of event a page gets the newest one, once it has read what
was written before. A page that does not read is given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final

from coordinator.console.bounds import (
    CHANGES_INTERVAL_MS,
    HEARTBEAT_MS,
    STREAMS_MAX,
    STREAMS_PER_SESSION_MAX,
    STREAMS_PER_USER_MAX,
    TICK_MS,
    WATCH_PAUSE_MS,
)
from coordinator.console.console_client import ConsoleClient
from coordinator.console.console_documents import Document, status_document, word
from coordinator.console.console_sessions import ConsoleSession, ConsoleSessions
from coordinator.console.http_messages import json_text
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.errors import Refusal, reason_name
from viewstamp.metering import LogRates

STATUS: Final = "status"
CHANGED: Final = "changed"
ENDED: Final = "ended"
# The browser tries again so soon after a stream has broken.
_RETRY_MS: Final = 2_000
# The page shows no users, and whoever may read streams need not be allowed to read users.
_WATCHED: Final = (routing_pb2.STAGE_STREAMS, routing_pb2.STAGE_CONSUMER_GROUPS)
_BEGINNING: Final = f"retry: {_RETRY_MS}\n\n"
_HEARTBEAT: Final = ": alive\n\n"


class StreamsFull(Exception):  # noqa: N818 - reads as the sentence it is
    """A session, a user, or all together have as many streams of events as they may."""


class EventPlaces:
    """Counts the open streams of each session, each user and all."""

    def __init__(self) -> None:
        self._of_user: dict[int, int] = {}

    @contextmanager
    def place(self, session: ConsoleSession) -> Iterator[None]:
        """Take a place for a stream. Raises StreamsFull."""
        of_user = self._of_user.get(session.user_id, 0)
        if session.streams >= STREAMS_PER_SESSION_MAX:
            raise StreamsFull(f"this login has {session.streams} pages open: close one")
        if of_user >= STREAMS_PER_USER_MAX:
            raise StreamsFull(f"this user has {of_user} pages open: close one")
        if sum(self._of_user.values()) >= STREAMS_MAX:
            raise StreamsFull("too many pages are open at this replica: try another one")
        session.streams += 1
        self._of_user[session.user_id] = of_user + 1
        try:
            yield
        finally:
            session.streams -= 1
            self._of_user[session.user_id] -= 1
            if not self._of_user[session.user_id]:
                del self._of_user[session.user_id]


class LiveEvents:
    """The events of one page. `here` is what this replica says of itself, `reads` how many reads it
    has begun."""

    def __init__(
        self,
        client: ConsoleClient,
        session: ConsoleSession,
        sessions: ConsoleSessions,
        here: Callable[[], Mapping[str, Any]],
        reads: Callable[[], int],
    ) -> None:
        self._client = client
        self._session = session
        self._sessions = sessions
        self._here = here
        self._reads = reads
        self._rates = LogRates()
        self._newest: dict[str, Document] = {}
        self._domains: set[str] = set()
        self._woken = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self, write: Callable[[str], Awaitable[None]]) -> None:
        """Write events until the session ends. Raises what `write` raises."""
        await write(_BEGINNING)
        tasks = [asyncio.create_task(work()) for work in (self._tick, self._watch, self._end)]
        for task in tasks:
            task.add_done_callback(self._done)
        try:
            while not self._session.ended.is_set():
                await self._write_newest(write)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._tell(ENDED, {"message": "the login has ended: log in again"})
        await self._write_all(write)

    async def _write_newest(self, write: Callable[[str], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(HEARTBEAT_MS / 1000):
                await self._woken.wait()
        except TimeoutError:
            await write(_HEARTBEAT)
            return
        self._woken.clear()
        if self._failure is not None:
            raise self._failure
        await self._write_all(write)

    async def _write_all(self, write: Callable[[str], Awaitable[None]]) -> None:
        newest, self._newest = self._newest, {}
        self._domains.clear()
        for name, document in newest.items():
            await write(f"event: {name}\ndata: {json_text(document)}\n\n")

    def _tell(self, name: str, document: Document) -> None:
        self._newest[name] = document
        self._woken.set()

    # --- What there is to tell ---

    def _done(self, task: asyncio.Task[None]) -> None:
        """Let nothing that failed be missed in silence."""
        if not task.cancelled():
            self._failure = self._failure or task.exception()
            self._woken.set()

    async def _end(self) -> None:
        """End the session in time, and wake the writer at its end, whoever ends it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._sessions.seconds_left(self._session)):
                await self._session.ended.wait()
        self._sessions.end(self._session)
        self._woken.set()

    async def _tick(self) -> None:
        while True:
            self._tell(STATUS, await self._status())
            await asyncio.sleep(TICK_MS / 1000)

    async def _status(self) -> Document:
        try:
            status = await self._client.call(cluster_pb2.GetStatusRequest())
        except Refusal as refusal:
            self._judge(refusal)
            return refused_document(refusal)
        counters = {
            "commands": status.header.revision,
            "entries": status.header.op,
            "reads": self._reads(),
        }
        return status_document(status, self._rates.take(time.monotonic(), counters), self._here())

    async def _watch(self) -> None:
        """Follow the changes that the user may see; after an ending begin anew.

        What happened in between is not told one by one: the page reads everything again.
        """
        while True:
            try:
                await self._follow()
            except Refusal as refusal:
                self._judge(refusal)
                if refusal.reason == Reason.REASON_PERMISSION_DENIED:
                    return  # the page reads again from time to time
            await asyncio.sleep(WATCH_PAUSE_MS / 1000)

    async def _follow(self) -> None:
        request = watch_pb2.WatchRequest(domains=_WATCHED, progress_notifications=True)
        is_first = True
        async with aclosing(self._client.watch(request)) as messages:
            async for message in messages:
                domains = {_domain(change.domain) for change in message.changes}
                if is_first:
                    domains.add("all")
                is_first = False
                if domains:
                    self._domains |= domains
                    told = {"domains": sorted(self._domains), "revision": message.header.revision}
                    self._tell(CHANGED, told)
                    await asyncio.sleep(CHANGES_INTERVAL_MS / 1000)

    def _judge(self, refusal: Refusal) -> None:
        """End the session whose token the cluster refuses."""
        if refusal.reason == Reason.REASON_UNAUTHENTICATED:
            self._sessions.end(self._session)


def refused_document(refusal: Refusal) -> Document:
    """Return what stands in the place of a document that a user may not, or cannot, have now."""
    return {"error": {"reason": reason_name(refusal.reason), "message": refusal.message}}


def _domain(stage: routing_pb2.Stage.ValueType) -> str:
    return word(routing_pb2.Stage, stage, "STAGE_")
