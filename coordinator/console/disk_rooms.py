"""The room on the file systems of this replica, looked up by a thread: a file system may hang."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coordinator.console.bounds import ROOM_INTERVAL_MS
from viewstamp.worker_thread import WorkerThread


class DiskRooms:
    """The room as it was when it was looked up last; none is known of what does not answer."""

    def __init__(
        self, directories: Mapping[str, Path], make_thread: Callable[[str], WorkerThread]
    ) -> None:
        self._directories = directories
        self._make_thread = make_thread
        self._rooms: dict[str, tuple[int, int]] = {}
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._work = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def documents(self) -> list[dict[str, Any]]:
        """Return what is known, by directory; None stands for what did not answer."""
        known = {name: self._rooms.get(name, (None, None)) for name in self._directories}
        return [
            {"name": name, "free_bytes": free, "size_bytes": size}
            for name, (free, size) in known.items()
        ]

    async def _run(self) -> None:
        thread = self._make_thread("console-disks")
        try:
            while True:
                self._rooms = await thread.call(self._look)
                await asyncio.sleep(ROOM_INTERVAL_MS / 1000)
        finally:
            thread.abandon()

    def _look(self) -> dict[str, tuple[int, int]]:
        found = {}
        for name, path in self._directories.items():
            try:
                room = os.statvfs(path)
            except OSError:
                continue  # it has no known room
            found[name] = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        return found
