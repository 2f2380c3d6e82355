"""Reads of the past, put together: where states are built from, and who builds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from coordinator.history.bases import PastBases
from coordinator.history.builder import BuilderPorts, PastBuilder
from coordinator.history.process import PastLauncher
from coordinator.history.turns import PastTurns
from coordinator.mux.mux import Mux
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.replica.driver import Driver
from coordinator.replica.writer import JournalWriter, Reading


def past_turns(
    launch: PastLauncher,
    files: ReplicaFiles,
    mux: Mux,
    driver: Driver,
    writer: JournalWriter[Any],
    start: Callable[[Coroutine[Any, Any, None]], None],
) -> PastTurns:
    """Return the turns of all who ask this replica for earlier states."""

    async def bases() -> PastBases:
        stored = await asyncio.to_thread(files.snapshots.generations)
        first_op = await writer.call(lambda: _first_op(files))
        catalog = mux.catalog
        return PastBases(catalog.list_after(0, catalog.last_generation), stored, first_op)

    ports = BuilderPorts(
        launch=launch,
        bases=bases,
        load=files.snapshots.load,
        read=read_durable(writer.read_committed, lambda: driver.core.marks.durable_op),
        found_faulty=driver.found_faulty,
        live_digest=mux.digests.at,
    )
    return PastTurns(PastBuilder(ports), start)


def read_durable(
    read: Callable[[int, int], Awaitable[Reading]], durable_op: Callable[[], int]
) -> Callable[[int, int], Awaitable[Reading]]:
    """Return a way to read that ends at what the disk holds of the core's log.

    The core applies from memory, and a read overtakes the writes that wait. So behind that op the
    journal may still have an entry that a new view has discarded.
    """

    async def read_some(first_op: int, last_op: int) -> Reading:
        return await read(first_op, min(last_op, durable_op()))

    return read_some


def _first_op(files: ReplicaFiles) -> int:
    """Return the op from which on the log has no hole."""
    journal = files.journal
    return max(journal.first_available_op, journal.restart_op + 1)
