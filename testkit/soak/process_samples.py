"""What the processes of a cluster use, from time to time: memory, files, threads, and disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from testkit.soak.slopes import Point

RESIDENT: Final = "resident_bytes"
FILES: Final = "open_files"
THREADS: Final = "threads"
DISK: Final = "disk_bytes"
# What the kernel counts room in, whatever the file system.
BLOCK_BYTES: Final = 512
PROCESS_FIGURES: Final = (RESIDENT, FILES, THREADS)


@dataclass(slots=True)
class ProcessLife:
    """One process from its start to its end, or the data directory of a replica (`pid` 0)."""

    replica: int
    name: str
    pid: int
    figures: dict[str, list[Point]] = field(default_factory=dict)

    def add(self, at_s: float, figures: Mapping[str, float]) -> None:
        """Add what it uses at a moment."""
        for name, value in figures.items():
            self.figures.setdefault(name, []).append((round(at_s, 1), value))

    @property
    def title(self) -> str:
        """Its name in reports."""
        return f"{self.name} of replica {self.replica}"


class ProcessSampler:
    """Looks at all processes of a cluster. `lives` has everything that it saw, in memory."""

    def __init__(
        self, running: Callable[[], Iterable[tuple[int, str, int]]], directories: Iterable[Path]
    ) -> None:
        """`running` yields replica, name and id of each process at the moment."""
        self.lives: dict[tuple[int, str, int], ProcessLife] = {}
        self._running = running
        self._directories = list(directories)

    async def run(self, interval_s: float) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(interval_s)

    async def look(self) -> None:
        """Look once."""
        now_s = time.monotonic()
        for replica, name, pid in self._running():
            used = _used_by(pid)
            if used is not None:
                self._life(replica, name, pid).add(now_s, used)
        for replica, directory in enumerate(self._directories):
            size_bytes = await asyncio.to_thread(bytes_in, directory)
            self._life(replica, "data directory", 0).add(now_s, {DISK: size_bytes})

    def _life(self, replica: int, name: str, pid: int) -> ProcessLife:
        key = replica, name, pid
        return self.lives.setdefault(key, ProcessLife(*key))


def _used_by(pid: int) -> dict[str, float] | None:
    """Return what a process uses; None of one that has just ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return {
                RESIDENT: process.memory_info().rss,
                FILES: process.num_fds(),
                THREADS: process.num_threads(),
            }
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def bytes_in(directory: Path) -> int:
    """Return the room that the files below a directory take, in bytes."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # it has just been removed
            total += path.lstat().st_blocks * BLOCK_BYTES
    return total
