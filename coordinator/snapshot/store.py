"""The durable view of the catalog: what operators and tools see of generations, in SQLite.

The log decides; this view is written at retirement, in order, by a task of its own, and is never
asked what to do. So nothing waits for it: a write that fails marks the view stale, and once writing
works again the view is written anew from what this replica knows. At start it is rebuilt from the
catalog machine, whatever the file holds.

Write-ahead logging, so that a tool that reads never keeps the replica from writing. `synchronous`
is NORMAL: losing power can lose the last writes, but not tear the file, and the rebuild at start
brings them back; FULL would pay an fsync for nothing. SQLite does its own input and output: this
file is the one thing beside the storage door, and the one that may be deleted at any time.

`update` is isolated from every other store on the same file: it compares and sets the view's change
number, and begins anew where somebody else was faster.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

import aiosqlite

from coordinator.mux.catalog_types import Snapshot
from coordinator.mux.stage import Stage
from coordinator.snapshot import schema, values

BUSY_TIMEOUT_MS: Final = 5_000
RETRY_DELAY_MS: Final = 1_000
# What changes within this time is written in one transaction.
GATHER_MS: Final = 250
UPDATE_ATTEMPTS_MAX: Final = 100

_log = logging.getLogger(__name__)


class UpdateContended(Exception):  # noqa: N818  A state of the file, named as operators say it.
    """Others wrote to the view at every attempt of an update; try again."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What a write does to the view, whole generations at a time."""

    put: Sequence[Snapshot] = ()
    deleted: Sequence[int] = ()
    copies: Mapping[int, Sequence[str]] = field(default_factory=dict)
    is_everything: bool = False  # nothing else is left in the view


class SnapshotStore:
    """The view in one file. `run` writes what `apply`, `copied` and `rebuild` were given.

    `became_stale` is called with the reason when writing begins to fail, `became_current` once the
    view was written again. Only the replica itself may apply; others may read and `update`.
    """

    def __init__(
        self,
        path: Path,
        became_stale: Callable[[str], None] = lambda _: None,
        became_current: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_stale = False
        self._path = path
        self._became_stale = became_stale
        self._became_current = became_current
        self._connection: aiosqlite.Connection | None = None
        # Statements of one connection would join the transaction that is open on it.
        self._connection_lock = asyncio.Lock()
        self._writing_lock = asyncio.Lock()
        self._queue: deque[_Change] = deque()
        self._wake = asyncio.Event()
        # What this replica knows, to write the view anew from.
        self._known: dict[int, Snapshot] = {}
        self._copies: dict[int, tuple[str, ...]] = {}

    # --- Writing, in order, from the replica ---

    def rebuild(self, snapshots: Iterable[Snapshot]) -> None:
        """Replace the whole view, at start; copies are told anew by `copied`."""
        self._known = {snapshot.generation: snapshot for snapshot in snapshots}
        self._copies.clear()
        self._enqueue(self._everything())

    def apply(self, changed: Sequence[Snapshot], deleted: Sequence[int]) -> None:
        """Take over what a retired prepare has changed; never blocks, never fails."""
        self._known.update((snapshot.generation, snapshot) for snapshot in changed)
        for generation in deleted:
            self._known.pop(generation, None)
            self._copies.pop(generation, None)
        self._enqueue(_Change(tuple(changed), tuple(deleted)))

    def copied(self, generation: int, directories: Sequence[str]) -> None:
        """Remember which directories hold verified copies of a generation."""
        self._copies[generation] = tuple(directories)
        self._enqueue(_Change(copies={generation: tuple(directories)}))

    async def run(self) -> None:
        """Write what comes, until cancelled."""
        while True:
            timeout_ms = RETRY_DELAY_MS if self.is_stale else None
            try:
                async with asyncio.timeout(timeout_ms and timeout_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass  # try a stale view again
            else:
                await asyncio.sleep(GATHER_MS / 1000)
            self._wake.clear()
            await self.settle()

    async def settle(self) -> None:
        """Write all that waits; a failure marks the view stale, and is not raised."""
        async with self._writing_lock:
            if self.is_stale:
                self._queue.clear()
                self._queue.append(self._everything())
            while self._queue:
                waiting = len(self._queue)
                try:
                    await self._write(_together(islice(self._queue, waiting)))
                except (sqlite3.Error, OSError) as error:
                    await self._failed(error)
                    return
                for _ in range(waiting):
                    self._queue.popleft()
            self._succeeded()

    async def close(self) -> None:
        """Write what waits, and close the file."""
        await self.settle()
        async with self._connection_lock:
            await self._disconnect()

    # --- Isolated updates ---

    async def update(self, change: Callable[[Snapshot], Snapshot]) -> Snapshot:
        """Replace the newest generation, or add one, in isolation; return what was written.

        `change` must be pure: it is called again when another store was faster. What it raises is
        raised, and nothing is written. Raises sqlite3.Error, or UpdateContended.
        """
        await self.settle()
        written: list[Snapshot] = []

        def put(current: Snapshot) -> _Change:
            written[:] = (change(current),)
            return _Change(written[:] if written[0] != current else ())

        await self._change(put)
        self._known[written[0].generation] = written[0]
        return written[0]

    # --- Reading ---

    async def current(self, wait: bool = False) -> Snapshot:
        """Return the newest generation, generation 0 before the first.

        With `wait` everything that was given to this store before is in it, unless the view is
        stale. This and every other read raises sqlite3.Error if the file cannot be read.
        """
        if wait:
            await self.settle()
        async with self._transaction("DEFERRED") as connection:
            return await schema.newest(connection)

    async def latest_completed(self) -> Snapshot:
        """Return the newest completed generation, generation 0 before the first."""
        async with self._transaction("DEFERRED") as connection:
            return await schema.latest_completed(connection)

    async def list_snapshots(self, before: int | None = None, limit: int = 100) -> list[Snapshot]:
        """Return generations, newest first, those below `before` if given; never generation 0."""
        async with self._transaction("DEFERRED") as connection:
            return await schema.page(connection, before, limit)

    async def get(self, generation: int) -> Snapshot | None:
        """Return a generation, None if there is none of that number."""
        async with self._transaction("DEFERRED") as connection:
            return await schema.one(connection, generation)

    async def copies(self, generation: int) -> tuple[str, ...]:
        """Return the directories that hold verified copies of a generation, in their order."""
        async with self._transaction("DEFERRED") as connection:
            return await schema.copies(connection, generation)

    async def lookup_generation(self, task: Stage) -> int:
        """Return the generation that a task has reached."""
        return values.lookup_generation(await self.current(), task)

    # --- The file ---

    def _enqueue(self, change: _Change) -> None:
        self._queue.append(change)
        self._wake.set()

    def _everything(self) -> _Change:
        return _Change(tuple(self._known.values()), (), dict(self._copies), is_everything=True)

    async def _write(self, change: _Change) -> None:
        """Write what this replica says, whatever the view holds."""
        async with self._transaction("IMMEDIATE") as connection:
            await schema.count_change(connection)
            await _write(connection, change)

    async def _change(self, change: Callable[[Snapshot], _Change]) -> None:
        """Compare and set: nothing is written unless the view is the one that was looked at."""
        for _ in range(UPDATE_ATTEMPTS_MAX):
            async with self._transaction("DEFERRED") as connection:
                number = await schema.change_number(connection)
                current = await schema.newest(connection)
            wanted = change(current)
            async with self._transaction("IMMEDIATE") as connection:
                if await schema.advance(connection, number):
                    await _write(connection, wanted)
                    return
        raise UpdateContended(
            f"{self._path} was changed by others at each of {UPDATE_ATTEMPTS_MAX} attempts"
        )

    @asynccontextmanager
    async def _transaction(self, kind: str) -> AsyncIterator[aiosqlite.Connection]:
        async with self._connection_lock:
            connection = await self._connected()
            await connection.execute(f"BEGIN {kind}")
            try:
                yield connection
            except BaseException:
                await connection.rollback()
                raise
            await connection.commit()

    async def _connected(self) -> aiosqlite.Connection:
        if self._connection is None:
            connection = await aiosqlite.connect(self._path, isolation_level=None)
            try:
                await connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
                await connection.execute("PRAGMA journal_mode = WAL")
                await connection.execute("PRAGMA synchronous = NORMAL")
                await connection.execute("PRAGMA foreign_keys = ON")
                await schema.create(connection)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # --- Failure ---

    async def _failed(self, error: Exception) -> None:
        """Give the file up until the next attempt; one that is damaged is made anew then."""
        async with self._connection_lock:
            await self._disconnect()
        if getattr(error, "sqlite_errorcode", None) in _DAMAGED:
            _log.error("the catalog view is damaged and is made anew: %s", error)
            self._remove()
        if not self.is_stale:
            self.is_stale = True
            self._became_stale(f"{self._path} cannot be written: {error}")

    def _remove(self) -> None:
        try:
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        except OSError as error:
            _log.error("the damaged catalog view cannot be removed: %s", error)

    def _succeeded(self) -> None:
        if self.is_stale:
            self.is_stale = False
            self._became_current()


_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def _together(changes: Iterable[_Change]) -> _Change:
    """Return one change that does what several in a row do."""
    put: dict[int, Snapshot] = {}
    deleted: dict[int, None] = {}
    copies: dict[int, Sequence[str]] = {}
    is_everything = False
    for change in changes:
        if change.is_everything:
            put, deleted, copies, is_everything = {}, {}, {}, True
        put.update((snapshot.generation, snapshot) for snapshot in change.put)
        for generation in change.deleted:
            put.pop(generation, None)
            copies.pop(generation, None)
            deleted[generation] = None
        copies.update(change.copies)
    return _Change(tuple(put.values()), tuple(deleted), copies, is_everything)


async def _write(connection: aiosqlite.Connection, change: _Change) -> None:
    if change.is_everything:
        await schema.clear(connection)
    for snapshot in change.put:
        await schema.put(connection, snapshot)
    for generation in change.deleted:
        await schema.delete(connection, generation)
    for generation, directories in change.copies.items():
        await schema.put_copies(connection, generation, directories)
