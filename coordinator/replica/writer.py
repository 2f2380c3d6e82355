"""The one thread that writes: groups of prepares into the journal, states into the superblock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

Result = TypeVar("Result")
State = TypeVar("State")


class Journal(Protocol):
    """What the writer needs of a journal."""

    def append(self, group: Sequence[Any]) -> None:
        """Write the group and return once it is durable."""

    def read(self, op: int) -> Any | None:
        """Return the prepare of an op."""


class Superblock(Protocol):
    """What the writer needs of a superblock."""

    def write(self, state: Any) -> None:
        """Return once the state is durable."""


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
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._queue: deque[_Prepares | _Superblock[State]] = deque()
        self._wake = asyncio.Event()

    def persist_prepares(self, prepares: Sequence[Any]) -> None:
        """Append prepares to the journal."""
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _Prepares):
            last.prepares.extend(prepares)
        else:
            self._queue.append(_Prepares(list(prepares)))
        self._wake.set()

    def persist_superblock(self, state: State, encoded: Any) -> None:
        """Write the superblock; `state` is what `superblock_durable` is told."""
        self._queue.append(_Superblock(state, encoded))
        self._wake.set()

    async def read(self, op: int) -> Any | None:
        """Return the prepare of an op from the journal. Raises what the journal raises."""
        return await self.call(lambda: self._journal.read(op))

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run any other journal call between the writes."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

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
                    await self._append(job.prepares)
                    prepares_durable(job.prepares)
                else:
                    await self._write_superblock(job.encoded)
                    superblock_durable(job.state)

    async def _append(self, prepares: Sequence[Any]) -> None:
        await self.call(lambda: self._journal.append(prepares))

    async def _write_superblock(self, encoded: Any) -> None:
        await self.call(lambda: self._superblock.write(encoded))

    def close(self) -> None:
        """Wait for the write under way and end the thread."""
        self._executor.shutdown(wait=True)


class _Prepares:
    __slots__ = ("prepares",)

    def __init__(self, prepares: list[Any]) -> None:
        self.prepares = prepares


class _Superblock(Generic[State]):
    __slots__ = ("state", "encoded")

    def __init__(self, state: State, encoded: Any) -> None:
        self.state = state
        self.encoded = encoded
