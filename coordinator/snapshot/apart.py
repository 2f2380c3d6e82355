"""Snapshot files written by another process, so that the event loop shares no interpreter with it.

To write a generation takes dozens of small file calls. Done by threads of the coordinator they take
the interpreter from the event loop, call by call, and processors from whoever answers commands: the
p99 of commands rose four- to sixfold. So the calls are made over there, in a process of lower
priority (`coordinator.snapshot.apart_process`); what crosses is finished files, or pieces of large
ones.

The process is started with the first call, and does one at a time. It holds the locks of the copy
directories together with this process: a coordinator that is started anew never meets a writer of
the one before. It ends when this process does, since the socket between them ends then.

**Errors** come back as they were raised. A failed sync over there ends this process, too. If the
process dies, the call fails with CopyNotWritten, which fails the generation, and the next call
starts another one: a file has its final name only once it is durable and verified, so what the dead
process left are temporary files, and names that are intact.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from coordinator.snapshot.copies import (
    Check,
    Copies,
    MakeRoom,
    Report,
    Staged,
    no_room,
)
from coordinator.snapshot.errors import CopiesFailed, CopyNotWritten, SnapshotNoSpace
from coordinator.snapshot.layout import DigestCheck
from coordinator.storage import Storage
from viewstamp.telemetry import fields

MODULE: Final = "coordinator.snapshot.apart_process"
STOP_GRACE_S: Final = 5.0
# What the other process may raise; anything else is a defect, and its end.
RAISED: Final = {each.__name__: each for each in (SnapshotNoSpace, CopyNotWritten, CopiesFailed)}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """What the other process works with: the copy directories, and the least reserve to give up."""

    directories: tuple[str, ...]
    reserve_bytes_min: int

    def to_json(self) -> str:
        """The options as an argument of a command line."""
        return json.dumps([list(self.directories), self.reserve_bytes_min])


def options_from_json(text: str) -> WriterOptions:
    """Read back what `to_json` wrote."""
    directories, reserve_bytes_min = json.loads(text)
    return WriterOptions(tuple(directories), reserve_bytes_min)


class WriterProcess:
    """The other process, started when it is needed. Any thread may call."""

    def __init__(self, options: WriterOptions, descriptors: Sequence[int]) -> None:
        """`descriptors` are of the locks that it holds, too."""
        self._options = options
        self._descriptors = tuple(descriptors)
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_stopped = False

    @property
    def pid(self) -> int | None:
        """Its process id, None before the first call."""
        return None if self._process is None else self._process.pid

    def call(self, method: str, *arguments: Any) -> Any:
        """Have a method of `apart_process.Hand` called, and return what it returns.

        Raises what is in RAISED; CopyNotWritten if the process dies meanwhile.
        """
        with self._mutex:
            connection = self._connected()
            try:
                connection.send((method, arguments))
                error, value = connection.recv()
            except (EOFError, OSError) as lost:
                raise self._died(method) from lost
        if error is not None:
            raise RAISED[error](value)
        return value

    def stop(self) -> None:
        """End the process once its call is done, and start no other."""
        with self._mutex:
            self._is_stopped = True
            self._end()

    def _connected(self) -> Connection:
        if self._is_stopped:
            raise CopyNotWritten("snapshot files are closed: the replica is stopping")
        if self._connection is None:
            self._connection = self._start()
        return self._connection

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", MODULE, str(theirs.fileno()), self._options.to_json()]
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


class CopiesApart(Copies):
    """Copies whose new files are written, and old ones removed, by the other process.

    Reading and repairing, which are rare, stay here.
    """

    def __init__(
        self,
        storage: Storage,
        directories: Sequence[str],
        report: Report,
        tag: str,
        process: WriterProcess,
    ) -> None:
        """As `Copies`, of the directories that `process` was given."""
        super().__init__(storage, directories, report, tag)
        self._process = process

    def stage(self, label: str, make_room: MakeRoom) -> Staged:
        """Begin a file whose name is not known yet; `label` begins with its final folder."""
        return _StagedApart(self, self.call("stage", label, make_room is not no_room))

    def write(self, name: str, data: bytes, check: Check, make_room: MakeRoom) -> None:
        """Return once a small file is durable and equal to `data` in every directory."""
        self.call("write", name, data, make_room is not no_room)

    def delete(self, names: Sequence[str]) -> None:
        """Return once no directory has any of these files, durably."""
        self.call("delete", list(names))

    def merge(self, job: str) -> str:
        """Have a small chain merged; job and answer are as those of a compaction process."""
        return str(self.call("merge", job))

    def call(self, method: str, *arguments: Any) -> Any:
        """Call the other process; a failed sync there is one here."""
        self.check_usable()
        try:
            return self._process.call(method, *arguments)
        except CopiesFailed as error:
            # The kernel tells of a failed write once, and it told the other process.
            self.fail(f"in the process that writes them: {error}")


class _StagedApart:
    """A file in the making, over there."""

    def __init__(self, copies: CopiesApart, key: str) -> None:
        self._copies = copies
        self._key = key
        self._is_open = True

    def append(self, data: bytes) -> None:
        """Put bytes behind those before; raises SnapshotNoSpace, CopyNotWritten, CopiesFailed."""
        self._copies.call("append", self._key, data)

    def place(self, name: str, check: Check) -> None:
        """Return once the file has its final name everywhere, durable and read back."""
        assert isinstance(check, DigestCheck), "what is staged is named by its digest"
        self._copies.call("place", self._key, name, check.digest, check.size_bytes)

    def discard(self) -> None:
        """Remove what has not got its final name. What cannot be removed goes at the next open."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._copies.call("discard", self._key)
        except (CopyNotWritten, CopiesFailed) as error:
            _log.warning("temporary files stay until the next start: %s", error)
