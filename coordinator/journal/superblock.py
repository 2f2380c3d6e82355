"""The superblock: the little that a replica must never forget, in four copies.

`viewstamp.format.superblock` has the bytes.

**Writing** puts one copy after the other and syncs each, so that at most one copy is incomplete at
any moment; afterwards three of four must read back as written. **Opening** takes the newest state
on which two copies agree. A newer state with a single copy was never reported as written, and is
overwritten before another state takes its number. All copies are then brought to the chosen state
and synced, the deviating ones first, because a page cache may have shown copies that never reached
the disk. The file never grows, so a full disk cannot stop a view change.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from coordinator.journal.errors import (
    SuperblockExists,
    SuperblockFailed,
    SuperblockFork,
    SuperblockNotConnected,
    SuperblockNotFound,
    SuperblockNotMonotonic,
    SuperblockQuorumLost,
)
from coordinator.journal.segment import TEMPORARY_SUFFIX, no_space_or_same
from coordinator.storage import Storage, StorageFile
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.superblock import (
    COPIES,
    COPY_BYTES,
    NO_PARENT,
    OPEN_QUORUM,
    SuperblockCopy,
    SuperblockState,
    decode_copy,
    encode_copy,
    invalid_state,
    newest_agreed,
    regression,
    seal_state,
)

WRITE_QUORUM: Final = 3

# Every quorum that a state was written to shares a copy with every quorum that opens.
assert WRITE_QUORUM + OPEN_QUORUM > COPIES


@dataclass(frozen=True, slots=True)
class SuperblockMark:
    """Which superblock this is, and the last durable record of the journal that it knows of.

    Both are 0 if there is no superblock.
    """

    sequence: int = 0
    journal_sequence: int = 0


NO_SUPERBLOCK: Final = SuperblockMark()


def choose(copies: Sequence[SuperblockCopy | None], path: str) -> SuperblockCopy:
    """Return the state to continue from, given the verified copies; raise why there is none."""
    intact = sorted((c for c in copies if c is not None), key=lambda c: c.sequence)
    by_sequence: dict[int, list[SuperblockCopy]] = {}
    for copy in intact:
        by_sequence.setdefault(copy.sequence, []).append(copy)
    for sequence, same in by_sequence.items():
        if len({copy.checksum for copy in same}) > 1:
            raise SuperblockFork(
                f"{path} holds two different states of sequence {sequence}: two processes wrote "
                f"it, or a copy of this directory was in use. Do not start this replica; remove "
                f"its directory and let it rejoin the cluster, or restore a snapshot"
            )
    chosen = newest_agreed(copies)
    if chosen is None or intact[-1].sequence > chosen.sequence + 1:
        raise _quorum_lost(copies, path)
    _check_history([same[0] for same in by_sequence.values()], path)
    return chosen


def _quorum_lost(copies: Sequence[SuperblockCopy | None], path: str) -> SuperblockQuorumLost:
    found = ", ".join("damaged" if c is None else f"sequence {c.sequence}" for c in copies)
    return SuperblockQuorumLost(
        f"{path} needs {OPEN_QUORUM} equal copies of its newest state, its copies are: {found}. "
        f"One of several replicas must start with an empty directory, and never with an older copy "
        f"of this file; a lone replica needs superblock and journal from one backup"
    )


def _check_history(states: Sequence[SuperblockCopy], path: str) -> None:
    """Check that every state is possible, and that older copies are ancestors of newer ones."""
    for copy in states:
        reason = invalid_state(copy.state)
        if reason is not None:
            raise SuperblockNotMonotonic(f"{path}: sequence {copy.sequence} says that {reason}")
    for old, new in pairwise(states):
        if new.sequence == old.sequence + 1 and new.parent != old.checksum:
            raise SuperblockNotConnected(
                f"{path}: sequence {new.sequence} names {new.parent.hex()} as its parent, sequence "
                f"{old.sequence} is {old.checksum.hex()}; its copies are of different files"
            )
        reason = regression(old.state, new.state)
        if reason is not None:
            raise SuperblockNotMonotonic(
                f"{path}: from sequence {old.sequence} to {new.sequence} {reason}"
            )


class Superblock:
    """An open superblock. After SuperblockFailed the process must end."""

    def __init__(
        self, file: StorageFile, current: SuperblockCopy, repaired_copies: tuple[int, ...]
    ) -> None:
        """Use `Superblock.open` or `Superblock.create`."""
        self._file = file
        self._current = current
        self._failure: str | None = None
        self.repaired_copies = repaired_copies
        """The numbers of the copies that differed from the chosen state when opened."""

    @classmethod
    def create(cls, storage: Storage, path: str, state: SuperblockState) -> Superblock:
        """Make the superblock of a replica that is being bootstrapped.

        Raises SuperblockExists, NoSpace, and ValueError for an impossible state. A crash leaves
        either no superblock or a complete one.
        """
        reason = invalid_state(state)
        if reason is not None:
            raise ValueError(f"cannot create a superblock: {reason}")
        if storage.exists(path):
            raise SuperblockExists(f"{path} exists: this replica was bootstrapped already; open it")
        temporary = path + TEMPORARY_SUFFIX
        if storage.exists(temporary):
            storage.unlink(temporary)
        sealed = seal_state(state, 1, NO_PARENT)
        try:
            file = storage.create(temporary)
            try:
                file.write(0, b"".join(encode_copy(sealed, copy) for copy in range(COPIES)))
                file.sync()
            finally:
                file.close()
        except OSError as error:
            raise no_space_or_same(error, path) from error
        storage.rename(temporary, path)
        storage.sync_directory(path.rpartition("/")[0])
        return cls.open(storage, path)

    @classmethod
    def open(cls, storage: Storage, path: str) -> Superblock:
        """Open, choose the state to continue from, and bring all copies to it.

        Raises SuperblockNotFound, SuperblockQuorumLost, SuperblockFork, SuperblockNotConnected,
        SuperblockNotMonotonic, FormatVersionError, and SuperblockFailed if the repair fails.
        """
        if not storage.exists(path):
            raise SuperblockNotFound(f"{path} does not exist: no replica was bootstrapped here")
        file = storage.open(path)
        try:
            copies = [_read_copy(file, copy) for copy in range(COPIES)]
            chosen = choose(copies, path)
            deviating = tuple(copy for copy in range(COPIES) if copies[copy] != chosen)
            agreeing = tuple(copy for copy in range(COPIES) if copies[copy] == chosen)
            superblock = cls(file, chosen, deviating)
            superblock._sync_name(storage)
            superblock._put(chosen, (*deviating, *agreeing))
        except BaseException:
            file.close()
            raise
        return superblock

    @staticmethod
    def read(storage: Storage, path: str) -> SuperblockState:
        """Return the state to continue from, and write nothing. Raises what `open` raises."""
        with closing(storage.open(path)) as file:
            return choose([_read_copy(file, copy) for copy in range(COPIES)], path).state

    @property
    def sequence(self) -> int:
        """The number of states written, this one included."""
        return self._current.sequence

    @property
    def state(self) -> SuperblockState:
        """The durable state."""
        return self._current.state

    def write(self, state: SuperblockState) -> None:
        """Return once `state` is durable. Raises SuperblockFailed, and SuperblockNotMonotonic,
        before anything is written, for a state that takes something back."""
        if self._failure is not None:
            raise SuperblockFailed(self._failure)
        reason = regression(self._current.state, state) or invalid_state(state)
        if reason is not None:
            raise SuperblockNotMonotonic(f"refused to write {self._file.path}: {reason}")
        sealed = seal_state(state, self._current.sequence + 1, self._current.checksum)
        self._put(sealed, range(COPIES))
        self._current = sealed

    def deviating(self) -> tuple[int, ...]:
        """Return the numbers of the copies that the disk, not memory, has otherwise than they were
        written. A write under way deviates, too."""
        self._file.drop_cached(0, COPIES * COPY_BYTES)
        return tuple(copy for copy in range(COPIES) if not self._is_whole(copy))

    def _is_whole(self, copy: int) -> bool:
        try:
            return _read_copy(self._file, copy) == self._current
        except FormatVersionError:
            return False

    def mend(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rewrite the deviating copies; return their numbers, and those that deviate even now.

        Never beside a `write`. Raises SuperblockFailed if the disk refuses.
        """
        if self._failure is not None:
            raise SuperblockFailed(self._failure)
        found = self.deviating()
        self._write_copies(self._current, found)
        return found, self.deviating() if found else ()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _sync_name(self, storage: Storage) -> None:
        """Make the file's name durable: its creator may have been killed before doing so."""
        directory = self._file.path.rpartition("/")[0]
        try:
            storage.sync_directory(directory)
        except OSError as error:
            raise self._fail(f"syncing {directory}: {error}") from error

    def _put(self, sealed: SuperblockCopy, order: Sequence[int]) -> None:
        """Write the copies one by one, then check that enough of them can be read."""
        self._write_copies(sealed, order)
        verified = sum(_read_copy(self._file, copy) == sealed for copy in range(COPIES))
        if verified < WRITE_QUORUM:
            raise self._fail(
                f"only {verified} copies of sequence {sealed.sequence} read back as written, "
                f"{WRITE_QUORUM} are needed"
            )

    def _write_copies(self, sealed: SuperblockCopy, order: Sequence[int]) -> None:
        try:
            for copy in order:
                self._file.write(copy * COPY_BYTES, encode_copy(sealed, copy))
                self._file.sync()
        except OSError as error:
            raise self._fail(f"writing sequence {sealed.sequence}: {error}") from error

    def _fail(self, what: str) -> SuperblockFailed:
        self._failure = f"superblock {self._file.path}: {what}. This process must end"
        return SuperblockFailed(self._failure)


def _read_copy(file: StorageFile, copy: int) -> SuperblockCopy | None:
    """Return a copy, or None if it is damaged. Raises FormatVersionError for a newer format."""
    try:
        return decode_copy(file.read(copy * COPY_BYTES, COPY_BYTES), copy)
    except FormatVersionError as error:
        raise FormatVersionError(f"{file.path}: {error}") from error
    except (FormatError, OSError):
        return None
