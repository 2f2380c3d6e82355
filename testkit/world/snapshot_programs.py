"""The processes that write and merge snapshots for a coordinator on files, as threads of this one.

They run their whole programs over real sockets and pipes. Whoever calls them waits for each answer,
so that never two of them run at once: a run stays one run. SQLite works in the lanes of its
coordinator.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import aiosqlite

from coordinator.app import main
from coordinator.snapshot import compaction, files, writer_process, writer_server

if TYPE_CHECKING:
    from testkit.world.world import World

# Chains of a world are short. Longer ones than this go to the program of low priority.
_SMALL_CHAIN_BYTES_MAX: Final = 2_000
_PROCESS_ID: Final = 2
_KILLED: Final = -signal.SIGKILL


class SnapshotPrograms:
    """All such processes of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.running: list[WriterThread] = []
        """The writers that live, in the order in which they began."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the coordinators of the run start these."""
        merging = partial(compaction.ProcessCompactor, small_bytes_max=_SMALL_CHAIN_BYTES_MAX)
        with ExitStack() as stack:
            for owner, name, replacement in (
                (subprocess, "Popen", self._start),
                (files, "ProcessCompactor", merging),
                (aiosqlite, "connect", _LaneConnection),
                (main, "collect_when_quiet", _collect_nothing),
                (os, "nice", lambda _: 0),
                (signal, "signal", lambda *_: None),
            ):
                stack.enter_context(mock.patch.object(owner, name, replacement))
            try:
                yield
            finally:
                self.kill_all()

    def kill_all(self) -> None:
        """Kill all writers."""
        for writer in list(self.running):
            writer.kill()

    def _start(self, command: Sequence[str], **options: Any) -> WriterThread | _MergingRun:
        module = command[2]
        if module == compaction.MODULE:
            return _MergingRun()
        assert module == writer_process.MODULE, f"nobody else is started, but {command} was"
        process = self._world.current
        assert process is not None, "a process starts it"
        writer = WriterThread(command[4], options["pass_fds"], self.running.remove)
        self.running.append(writer)
        process.killed.append(writer.kill)
        return writer


class WriterThread:
    """A writer process, in the shape of `Popen`."""

    pid = _PROCESS_ID

    def __init__(
        self, directories: str, descriptors: Sequence[int], ended: Callable[[WriterThread], None]
    ) -> None:
        """Inherit the end of a socket and the descriptors of locks."""
        end, *self._locks = map(os.dup, descriptors)
        self._socket = socket.socket(fileno=os.dup(end))
        self._ended = ended
        self._status: int | None = None
        arguments = (str(end), directories)
        self._thread = Thread(target=writer_server.main, args=(arguments,), daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> int:
        """Return the status once its other end has closed the socket."""
        self._thread.join()
        if self._status is None:
            self._status = 0
            self._socket.close()
            for lock in self._locks:
                os.close(lock)
            self._ended(self)
        return self._status

    def kill(self) -> None:
        """End it between two calls."""
        if self._status is None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self.wait()
            self._status = _KILLED


class _MergingRun:
    """A process that merges one chain, in the shape of `Popen`."""

    returncode = 0

    def communicate(self, text: str) -> tuple[str, str]:
        """Return what the program writes when it reads this."""
        output, errors = io.StringIO(), io.StringIO()
        with (
            mock.patch("sys.stdin", io.StringIO(text)),
            redirect_stdout(output),
            redirect_stderr(errors),
        ):
            compaction.main()
        return output.getvalue(), errors.getvalue()

    def kill(self) -> None:
        """Do nothing: it has ended by the time that anybody asks."""


class _LaneConnection:
    """A connection of `aiosqlite`, whose thread is a lane of the process."""

    def __init__(self, path: Path, isolation_level: None) -> None:
        self._path = path
        self._isolation_level = isolation_level
        self._connection: sqlite3.Connection | None = None

    async def __aenter__(self) -> _LaneConnection:
        self._connection = await _in_lane(
            partial(sqlite3.connect, self._path, isolation_level=self._isolation_level)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_lane(self._open.close)

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "it was entered"
        return self._connection

    async def executescript(self, script: str) -> None:
        """Execute statements."""
        await _in_lane(partial(self._open.executescript, script))

    async def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each row."""
        await _in_lane(partial(self._open.executemany, statement, rows))

    async def commit(self) -> None:
        """Make it visible."""
        await _in_lane(self._open.commit)


async def _in_lane(call: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call)


async def _collect_nothing(_: Callable[[], int]) -> None:
    """Leave garbage to the world, which collects it at fixed steps."""
