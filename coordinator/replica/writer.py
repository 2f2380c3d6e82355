"""The one thread that writes: groups of prepares into the journal, states into the superblock."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

Result = TypeVar("Result")
State = TypeVar("State")


class Journal(Protocol):
    """What the writer needs of a journal."""

    def append(self, group: Sequence[Any], *, use_reserve: bool) -> None:
        """Write the group and return once it is durable."""

    def read(self, op: int) -> Any | None:
        """Return the prepare of an op."""


class Superblock(Protocol):
    """What the writer needs of a superblock."""

    def write_core(self, state: Any) -> None:
        """Return once the core's part of it is durable."""


class Writer(Generic[State]):
    """Runs journal and superblock calls one at a time, in the order in which they were asked for.

    Prepares that arrive while a write is under way form the next group: one sync for all of them.
    """

    def __init__(
        self,
        journal: Journal,
        superblock: Superblock,
    ) -> None:
        self._journal = journal
        self._superblock = superblock
        self._thread = _Thread()
        self._queue: deque[_Prepares | _Superblock[State]] = deque()
        self._wake = asyncio.Event()

    def persist_prepares(self, prepares: Sequence[Any], *, use_reserve: bool = False) -> None:
        """Append prepares to the journal; snapshot commands may use what is reserved for them."""
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _Prepares):
            last.prepares.extend(prepares)
            last.use_reserve |= use_reserve
        else:
            self._queue.append(_Prepares(list(prepares), use_reserve))
        self._wake.set()

    def persist_superblock(self, state: State) -> None:
        """Write the core's part of the superblock; `superblock_durable` is told when it is."""
        self._queue.append(_Superblock(state))
        self._wake.set()

    async def read(self, op: int) -> Any | None:
        """Return the prepare of an op from the journal. Raises what the journal raises."""
        return await self.call(lambda: self._journal.read(op))

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run any other journal call between the writes."""
        return await self._thread.call(function)

    async def run(
        self,
        prepares_durable: Callable[[Sequence[Any]], None],
        superblock_durable: Callable[[State], None],
    ) -> None:
        """Write until cancelled, and tell what became durable.

        Any failure to write is raised, and must end the process.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                job = self._queue.popleft()
                if isinstance(job, _Prepares):
                    await self._append(job)
                    prepares_durable(job.prepares)
                else:
                    await self._write_superblock(job.state)
                    superblock_durable(job.state)

    async def _append(self, job: _Prepares) -> None:
        await self.call(lambda: self._journal.append(job.prepares, use_reserve=job.use_reserve))

    async def _write_superblock(self, state: State) -> None:
        await self.call(lambda: self._superblock.write_core(state))

    def close(self) -> None:
        """Wait for the write under way and end the thread."""
        self._thread.close()


class _Thread:
    """Runs calls one after another. A pool's futures of two kinds would cost several times more.

    It does not keep the process alive: what it has not finished then is as after a crash.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Return a future of the result, or of what the function raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            try:
                result = function()
            except BaseException as error:
                tell(_fail, future, error)
            else:
                tell(_succeed, future, result)

        def tell(how: Callable[..., None], *arguments: Any) -> None:
            try:
                loop.call_soon_threadsafe(how, *arguments)
            except RuntimeError:
                # The loop was closed meanwhile: nobody is left to be told.
                assert loop.is_closed()

        self._calls.put(run)
        return future

    def close(self) -> None:
        """Finish what was asked for, and end."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _succeed(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():  # whoever waited may have been cancelled
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class _Prepares:
    __slots__ = ("prepares", "use_reserve")

    def __init__(self, prepares: list[Any], use_reserve: bool) -> None:
        self.prepares = prepares
        self.use_reserve = use_reserve


class _Superblock(Generic[State]):
    __slots__ = ("state",)

    def __init__(self, state: State) -> None:
        self.state = state
