"""Reads of the past, put together: where states are built from, and who builds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from coordinator.history.bases import PastBases
from coordinator.history.builder import BuilderPorts, PastBuilder
from coordinator.history.process import PastLauncher
from coordinator.history.turns import PastTurns
from coordinator.mux.mux import Mux
from coordinator.replica.data_directory import ReplicaFiles
from coordinator.replica.driver import Driver
from coordinator.replica.writer import JournalWriter


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
        read=writer.read_committed,
        found_faulty=driver.found_faulty,
        live_digest=mux.digests.at,
    )
    return PastTurns(PastBuilder(ports), start)


def _first_op(files: ReplicaFiles) -> int:
    """Return the op from which on the log has no hole."""
    journal = files.journal
    return max(journal.first_available_op, journal.restart_op + 1)
