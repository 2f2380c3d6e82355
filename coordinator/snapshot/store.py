"""Writes the catalog view: what operators and tools see of generations, in one SQLite file.

The log decides; this file is written behind it by a task of its own, and is never asked what to do.
So nothing waits for it, and reads over gRPC see it only where no replica serves. It is always
written whole, from the applied catalog, under another name, and renamed: so a reader in another
process never sees half of one. A failed write marks the view stale and is tried again. Nothing is
synced: what a loss of power tears, the next start writes anew.
SQLite does its own input and output: this file is the one thing beside the storage door.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiosqlite

from coordinator.base.clock import wall_clock_us
from coordinator.mux.catalog_types import Snapshot, SnapshotState, TaskSnapshot
from coordinator.stages.entities import snapshot_message
from viewstamp.snapshots.catalog_view import SCHEMA, CatalogView, inserts

RETRY_DELAY_MS: Final = 1_000
# Changes within this time are written together.
GATHER_MS: Final = 250


def view_of(
    position: tuple[int, int],
    snapshots: Iterable[Snapshot],
    reported: Callable[[int], tuple[TaskSnapshot, ...]],
    copies: Mapping[int, Sequence[str]],
) -> CatalogView:
    """Return the view at an op and revision; undecided snapshots have the tasks reported here."""
    shown = {
        s.generation: replace(s, tasks=reported(s.generation))
        if s.state is SnapshotState.CREATED
        else s
        for s in snapshots
    }
    return CatalogView(
        *position,
        wall_clock_us(),
        [snapshot_message(shown[generation]) for generation in sorted(shown, reverse=True)],
        {generation: held for generation, held in copies.items() if generation in shown},
    )


class CatalogViewWriter:
    """Writes what `view` returns, soon after each `changed`.

    `became_stale` is called with the reason when writing begins to fail, `became_current` once the
    view was written again.
    """

    def __init__(
        self,
        path: Path,
        view: Callable[[], CatalogView],
        became_stale: Callable[[str], None] = lambda _: None,
        became_current: Callable[[], None] = lambda: None,
        write: Callable[[Path, CatalogView], Awaitable[None]] | None = None,
    ) -> None:
        self.is_stale = False
        self._path = path
        self._view = view
        self._became_stale = became_stale
        self._became_current = became_current
        self._write = write or rebuild
        self._writing_lock = asyncio.Lock()
        self._wake = asyncio.Event()

    def changed(self) -> None:
        """Have the view written soon; never blocks, never fails."""
        self._wake.set()

    async def run(self) -> None:
        """Write the view now and after every change, until cancelled."""
        while True:
            self._wake.clear()
            await self.settle()
            timeout_ms = RETRY_DELAY_MS if self.is_stale else None
            try:
                async with asyncio.timeout(timeout_ms and timeout_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue  # try a stale view again
            await asyncio.sleep(GATHER_MS / 1000)

    async def settle(self) -> None:
        """Write the present view; a failure marks it stale, and is not raised."""
        async with self._writing_lock:
            try:
                await self._write(self._path, self._view())
            except (sqlite3.Error, OSError) as error:
                self._failed(error)
            else:
                self._succeeded()

    def _failed(self, error: Exception) -> None:
        if not self.is_stale:
            self.is_stale = True
            self._became_stale(f"{self._path} cannot be written: {error}")

    def _succeeded(self) -> None:
        if self.is_stale:
            self.is_stale = False
            self._became_current()


async def rebuild(path: Path, view: CatalogView) -> None:
    """Replace the file by one with this view. Raises sqlite3.Error, OSError."""
    fresh = path.with_name(path.name + ".tmp")
    await asyncio.to_thread(fresh.unlink, missing_ok=True)
    async with aiosqlite.connect(fresh, isolation_level=None) as connection:
        await connection.executescript(SCHEMA)
        for statement, rows in inserts(view):
            await connection.executemany(statement, rows)
        await connection.commit()
    await asyncio.to_thread(_replace, fresh, path)


def _replace(fresh: Path, path: Path) -> None:
    # An older build kept a log beside the file, which SQLite would apply to any file of that name.
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    fresh.replace(path)
