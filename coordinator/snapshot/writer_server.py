"""The process that writes snapshot files for a coordinator: see `writer_process`.

`python -m coordinator.snapshot.writer_server <descriptor> <directories>`. It is asked over the
socket of that descriptor, one call at a time, and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any, Final

from coordinator.snapshot.compaction import answer_of
from coordinator.snapshot.local_writer import LocalWriter
from coordinator.snapshot.writer_process import RAISED
from coordinator.storage import FileStorage

# Below whoever answers commands, above compaction: what frees the journal must not starve.
NICENESS: Final = 10
# Of `LocalWriter`; besides, `merge` is asked for.
METHODS: Final = frozenset({"write", "stage", "append", "place", "discard", "delete"})


def answer(writer: LocalWriter, request: tuple[str, tuple[Any, ...]]) -> tuple[str | None, Any]:
    """Do what is asked; return the name of an error of RAISED, if there was one, and its text or
    what was returned."""
    method, arguments = request
    if method == "merge":
        return None, answer_of(*arguments)
    assert method in METHODS, f"{method!r} is not to be asked for"
    try:
        return None, getattr(writer, method)(*arguments)
    except tuple(RAISED.values()) as error:
        return type(error).__name__, str(error)


def main() -> None:
    """Answer until the other end of the socket is closed."""
    # The coordinator is told to stop, and closes the socket once nothing is left to be written.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    connection = Connection(int(sys.argv[1]))
    # Keys of a process before this one are unknown here, since each has a tag of its own.
    writer = LocalWriter(FileStorage(), json.loads(sys.argv[2]), f"writer-{os.getpid()}")
    # Whoever asks may die at any time.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            connection.send(answer(writer, connection.recv()))


if __name__ == "__main__":
    main()
