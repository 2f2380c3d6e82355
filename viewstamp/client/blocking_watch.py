"""`watch_blocking`: a watch for programs without asyncio, as an ordinary iterator."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.client.client import Client, connect
from viewstamp.client.revisions import WatchedRevision
from viewstamp.client.watching import EntityType, Watch

T = TypeVar("T")


class ConnectOptions(TypedDict, total=False):
    """The options of `connect` for a program that only watches."""

    username: str | None
    password: str | None
    access_token: str | None
    personal_access_token: str | None
    tls_ca: Path | str | None
    timeout_s: float | None
    connect_timeout_s: float


def watch_blocking(
    address: str | Iterable[str],
    *,
    from_revision: int = 0,
    stream: int | str | None = None,
    topic: int | str | None = None,
    group: int | str | None = None,
    domains: Iterable[routing_pb2.Stage.ValueType] = (),
    entity_types: Iterable[EntityType] = (),
    **identity: Unpack[ConnectOptions],
) -> BlockingWatch:
    """Return a watch with a connection of its own; see `Client.watch` and `connect`.

    Use it as `with watch_blocking(...) as watch`, which raises the errors of both.
    """

    def begun(client: Client) -> Watch:
        return client.watch(
            from_revision=from_revision,
            stream=stream,
            topic=topic,
            group=group,
            domains=domains,
            entity_types=entity_types,
        )

    return BlockingWatch(
        lambda: connect(address, register_session=False, **identity),
        begun,
    )


class BlockingWatch:
    """Iterates over whole revisions, each once; the calling thread waits for the next one.

    A thread of its own runs the event loop. It reads no further than the iteration has come, so
    nothing waits in memory for a slow program. An iteration that was interrupted, for example by
    Ctrl-C, loses nothing: go on with the next one. One thread at a time may use it.
    """

    def __init__(
        self, connected: Callable[[], Coroutine[Any, Any, Client]], begun: Callable[[Client], Watch]
    ) -> None:
        self._connected = connected
        self._begun = begun
        self._client: Client | None = None
        self._watch: Watch | None = None
        self._loop: _LoopThread | None = None
        self._step: asyncio.Task[Any] | None = None
        # What an iteration waits for; it stays until somebody has taken the revision.
        self._next: Future[WatchedRevision | None] | None = None

    def __enter__(self) -> BlockingWatch:
        """Connect and open the watch. Raises the errors of `connect` and `Watch`."""
        self._loop = _LoopThread()
        try:
            self._loop.submitted(self._open()).result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __iter__(self) -> BlockingWatch:
        return self

    def __next__(self) -> WatchedRevision:
        """Wait for the next revision. Raises the errors of `Watch`; ends when it is closed."""
        if self._loop is None:
            raise StopIteration
        if self._next is None:
            self._next = self._loop.submitted(self._revision())
        # Ctrl-C interrupts this wait, and not the iteration in the other thread.
        found = self._next.result()
        self._next = None
        if found is None:
            raise StopIteration
        return found

    @property
    def revision(self) -> int:
        """The revision up to which the iteration has given out everything; see `Watch.revision`."""
        return 0 if self._watch is None else self._watch.revision

    def close(self) -> None:
        """End the watch, its connection and its thread."""
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.submitted(self._closed()).result()
            finally:
                loop.stop()

    async def _open(self) -> None:
        self._step = asyncio.current_task()
        self._client = await self._connected()
        self._watch = await self._begun(self._client).__aenter__()

    async def _revision(self) -> WatchedRevision | None:
        assert self._watch is not None, "it is not open"
        self._step = asyncio.current_task()
        return await anext(self._watch, None)

    async def _closed(self) -> None:
        if self._step is not None:
            self._step.cancel()
            await asyncio.gather(self._step, return_exceptions=True)
        if self._watch is not None:
            await self._watch.close()
        if self._client is not None:
            await self._client.close()
        await asyncio.get_running_loop().shutdown_default_executor()


class _LoopThread:
    """An event loop that runs in a thread of its own until it is stopped."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program which forgets to close its watch can end.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="viewstamp-watch", daemon=True
        )
        self._thread.start()

    def submitted(self, step: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a step there, and return its result as a future."""
        return asyncio.run_coroutine_threadsafe(step, self._loop)

    def stop(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
