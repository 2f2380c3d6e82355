"""The process that writes snapshot files for a coordinator: see `coordinator.snapshot.apart`.

`python -m coordinator.snapshot.apart_process <descriptor> <options>`. It is asked over the socket
of that descriptor, one call at a time, and ends with it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

from coordinator.snapshot.apart import RAISED, WriterOptions, options_from_json
from coordinator.snapshot.compaction import answer_of
from coordinator.snapshot.copies import Copies, CopyVerdict, MakeRoom, Staged, no_room
from coordinator.snapshot.errors import CopyNotWritten
from coordinator.snapshot.layout import DigestCheck, equality_check
from coordinator.snapshot.reserve import Reserve
from coordinator.storage import FileStorage, Storage

# Below whoever answers commands, above compaction: what frees the journal must not starve.
NICENESS: Final = 10
METHODS: Final = frozenset({"write", "stage", "append", "place", "discard", "delete", "merge"})


class Hand:
    """What may be asked for."""

    def __init__(self, storage: Storage, options: WriterOptions, tag: str) -> None:
        """`tag` tells its temporary files from those of others in the directories."""
        self._copies = Copies(storage, options.directories, _told_nothing, tag)
        self._reserve = Reserve(storage, self._copies, options.reserve_bytes_min)
        # Keys of a process before this one are unknown here.
        self._tag = tag
        self._staged: dict[str, Staged] = {}
        self._numbers = itertools.count(1)

    def write(self, name: str, data: bytes, use_reserve: bool) -> None:
        """Return once a file is durable and reads back as `data` in every directory."""
        self._copies.write(name, data, equality_check(data), self._room(use_reserve))

    def stage(self, label: str, use_reserve: bool) -> str:
        """Begin a file whose name is not known yet; return its key."""
        key = f"{self._tag}-{next(self._numbers)}"
        self._staged[key] = self._copies.stage(label, self._room(use_reserve))
        return key

    def append(self, key: str, data: bytes) -> None:
        """Put bytes behind those before."""
        self._of(key).append(data)

    def place(self, key: str, name: str, digest: bytes, size_bytes: int) -> None:
        """Return once the file has its final name everywhere, durable and read back."""
        self._of(key).place(name, DigestCheck(digest, size_bytes))

    def discard(self, key: str) -> None:
        """Remove what has not got its final name, if it is known."""
        staged = self._staged.pop(key, None)
        if staged is not None:
            staged.discard()

    def delete(self, names: Sequence[str]) -> None:
        """Return once no directory has any of these files, durably."""
        self._copies.delete(names)

    def merge(self, job: str) -> str:
        """Merge a chain; job and answer are as those of a compaction process."""
        return answer_of(job)

    def _of(self, key: str) -> Staged:
        staged = self._staged.get(key)
        if staged is None:
            raise CopyNotWritten(f"file {key} was in the making in a process that has ended")
        return staged

    def _room(self, use_reserve: bool) -> MakeRoom:
        return self._reserve.give_up if use_reserve else no_room


def answer(hand: Hand, request: tuple[str, tuple[Any, ...]]) -> tuple[str | None, Any]:
    """Do what is asked; return the name of an error of RAISED, if there was one, and its text or
    what was returned."""
    method, arguments = request
    assert method in METHODS, f"{method!r} is not to be asked for"
    try:
        return None, getattr(hand, method)(*arguments)
    except tuple(RAISED.values()) as error:
        return type(error).__name__, str(error)


def _told_nothing(name: str, verdicts: Sequence[CopyVerdict]) -> None:
    raise AssertionError(f"{name} was repaired by a process that only writes: {verdicts}")


def main() -> None:
    """Answer until the other end of the socket is closed."""
    # The coordinator is told to stop, and closes the socket once nothing is left to be written.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    connection = Connection(int(sys.argv[1]))
    hand = Hand(FileStorage(), options_from_json(sys.argv[2]), f"writer-{os.getpid()}")
    # Whoever asks may die at any time.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            connection.send(answer(hand, connection.recv()))


if __name__ == "__main__":
    main()
