"""Snapshot files written by another process, so that the event loop shares no interpreter with it.

Writing a generation takes dozens of small file calls. In threads of the coordinator they take the
interpreter from the event loop, call by call, and processors from commands: the p99 of commands
rose four- to sixfold. So a process of lower priority (`coordinator.snapshot.writer_server`) makes
the calls; finished files, or pieces of large ones, are sent to it.

The process is started with the first call, and does one at a time. It holds the locks of the copy
directories together with this process: a restarted coordinator never meets a writer of the one
before. It ends when this process does, since the socket between them ends then.

**Errors** are raised here as they were there. A failed sync there ends this process, too. If the
process dies, the call fails with CopyNotWritten, which fails the generation, and the next call
starts another process: a file has its final name only once it is durable and verified, so a dead
process leaves temporary files, and names of intact files.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias

from coordinator.snapshot.errors import CopiesFailed, CopyNotWritten, SnapshotNoSpace
from coordinator.snapshot.layout import DigestCheck
from coordinator.snapshot.local_writer import LocalWriter
from viewstamp.telemetry import fields

MODULE: Final = "coordinator.snapshot.writer_server"
STOP_GRACE_S: Final = 5.0
# What the other process may raise; any other error is a defect, and ends it.
RAISED: Final = {each.__name__: each for each in (SnapshotNoSpace, CopyNotWritten, CopiesFailed)}

_log = logging.getLogger(__name__)


class WriterProcess:
    """The other process, started on demand. It has the methods of `LocalWriter`."""

    def __init__(self, local: LocalWriter, descriptors: Sequence[int]) -> None:
        """Write where `local` does, which refuses all work once a sync has failed there.

        `descriptors` are those of the locks, which the process holds, too.
        """
        self._local = local
        self._descriptors = tuple(descriptors)
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_stopped = False

    @property
    def pid(self) -> int | None:
        """Its process id, None before the first call."""
        return None if self._process is None else self._process.pid

    def write(self, name: str, data: bytes, use_reserve: bool) -> None:
        """As `LocalWriter.write`."""
        self._call("write", name, data, use_reserve)

    def stage(self, label: str, use_reserve: bool) -> str:
        """As `LocalWriter.stage`."""
        return str(self._call("stage", label, use_reserve))

    def append(self, key: str, data: bytes) -> None:
        """As `LocalWriter.append`."""
        self._call("append", key, data)

    def place(self, key: str, name: str, check: DigestCheck) -> None:
        """As `LocalWriter.place`."""
        self._call("place", key, name, check)

    def discard(self, key: str) -> None:
        """As `LocalWriter.discard`."""
        try:
            self._call("discard", key)
        except (CopyNotWritten, CopiesFailed) as error:
            _log.warning(
                "temporary files could not be deleted and stay until the next start: %s", error
            )

    def delete(self, names: Sequence[str]) -> None:
        """As `LocalWriter.delete`."""
        self._call("delete", list(names))

    def merge(self, job: str) -> str:
        """Have a small chain merged: job and answer are those of `compaction.answer_of`."""
        return str(self._call("merge", job))

    def stop(self) -> None:
        """End the process once its call is done, and start no other."""
        with self._mutex:
            self._is_stopped = True
            self._end()

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method there. Raises what is in RAISED."""
        self._local.check_usable()
        with self._mutex:
            connection = self._connected()
            try:
                connection.send((method, arguments))
                error, value = connection.recv()
            except (EOFError, OSError) as lost:
                raise self._died(method) from lost
        if error == CopiesFailed.__name__:
            # The kernel reports a failed write once, and it told the other process.
            self._local.fail(f"in the process that writes them: {value}")
        if error is not None:
            raise RAISED[error](value)
        return value

    def _connected(self) -> Connection:
        if self._is_stopped:
            raise CopyNotWritten("snapshot files are closed: the replica is stopping")
        if self._connection is None:
            self._connection = self._start()
        return self._connection

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            directories = json.dumps(self._local.directories)
            command = [sys.executable, "-m", MODULE, str(theirs.fileno()), directories]
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *self._descriptors),
                )
            except OSError as error:
                ours.close()
                raise CopyNotWritten(
                    f"the process that writes snapshot files cannot be started: {error}"
                ) from error
        _log.info("writer of snapshot files started", extra=fields(process=self._process.pid))
        return Connection(ours.detach())

    def _died(self, method: str) -> CopyNotWritten:
        status = self._end()
        return CopyNotWritten(
            f"the process that writes snapshot files ended with status {status} before it had done"
            f" {method!r}: see the log of the coordinator, and whether memory ran out; the next"
            " snapshot starts another one"
        )

    def _end(self) -> int | None:
        """Close the connection, and wait for the end."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is None:
            return None
        try:
            return self._process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._process = None


# The writer of new files: this process on a simulated disk, otherwise the other one.
FileWriter: TypeAlias = LocalWriter | WriterProcess
