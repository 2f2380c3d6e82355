"""The process that writes snapshot files for a coordinator: see `writer_process`.

`python -m coordinator.snapshot.writer_server <descriptor> <directories>`. It answers calls over the
socket of that descriptor, one at a time, and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

from coordinator.snapshot.compaction import answer_of
from coordinator.snapshot.local_writer import LocalWriter
from coordinator.snapshot.writer_process import RAISED
from coordinator.storage import FileStorage

# Below the processes that answer commands, above compaction: what frees the journal must not
# starve.
NICENESS: Final = 10
# Of `LocalWriter`; `merge` may be called, too.
METHODS: Final = frozenset({"write", "stage", "append", "place", "discard", "delete"})


def answer(writer: LocalWriter, request: tuple[str, tuple[Any, ...]]) -> tuple[str | None, Any]:
    """Carry out a call; return the name of an error of RAISED, if there was one, and its text or
    the result."""
    method, arguments = request
    if method == "merge":
        return None, answer_of(*arguments)
    assert method in METHODS, f"{method!r} is not to be asked for"
    try:
        return None, getattr(writer, method)(*arguments)
    except tuple(RAISED.values()) as error:
        return type(error).__name__, str(error)


def main(arguments: Sequence[str]) -> None:
    """Answer until the other end of the socket is closed: descriptor and directories are given."""
    descriptor, directories = arguments
    # The coordinator is told to stop, and closes the socket once nothing is left to write.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    connection = Connection(int(descriptor))
    # Keys of an earlier process are unknown here, since each has its own tag.
    writer = LocalWriter(FileStorage(), json.loads(directories), f"writer-{os.getpid()}")
    # The coordinator may die at any time.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            connection.send(answer(writer, connection.recv()))


if __name__ == "__main__":
    main(sys.argv[1:])
