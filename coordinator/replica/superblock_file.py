"""The superblock of a data directory, which several threads write, each its own part."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from coordinator import vsr
from coordinator.journal.superblock import NO_SUPERBLOCK, Superblock, SuperblockMark
from coordinator.replica.epoch_membership import to_superblock
from coordinator.storage import Storage
from viewstamp.format.superblock import SuperblockState


class SuperblockFile:
    """The superblock, created by its first write. Threads may share it."""

    def __init__(self, storage: Storage, path: str, identity: SuperblockState) -> None:
        self._storage = storage
        self._path = path
        self._identity = identity
        self._superblock: Superblock | None = None
        # Held from reading the state to the end of a write that depends on it.
        self._mutex = threading.Lock()
        if storage.exists(path):
            self._superblock = Superblock.open(storage, path)

    @property
    def exists(self) -> bool:
        """Whether it was ever written."""
        return self._superblock is not None

    @property
    def is_in_place(self) -> bool:
        """Whether the file that was written still has its name; asks the disk."""
        return self._storage.exists(self._path)

    @property
    def sequence(self) -> int:
        """The number of writes; 0 before the first."""
        return 0 if self._superblock is None else self._superblock.sequence

    @property
    def state(self) -> SuperblockState:
        """The state; before the first write, the identity that it will be written with."""
        return self._identity if self._superblock is None else self._superblock.state

    def mark(self) -> SuperblockMark:
        """Return what the journal is to know of this superblock; any thread may ask."""
        superblock = self._superblock
        if superblock is None:
            return NO_SUPERBLOCK
        return SuperblockMark(superblock.sequence, superblock.state.journal_sequence)

    def deviating(self) -> tuple[int, ...]:
        """Return the copies that the disk has otherwise than written, or that are being written."""
        superblock = self._superblock
        return () if superblock is None else superblock.deviating()

    def mend(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rewrite the copies that deviate, while nobody writes; return their numbers, and those
        that deviate even now. Raises SuperblockFailed."""
        with self._mutex:
            return ((), ()) if self._superblock is None else self._superblock.mend()

    def begin(self, journal_sequence: int, *, is_damaged: bool) -> None:
        """Note a start, and whether it found the end of the journal damaged.

        Damage is not noted in a superblock that must not name a record of the journal.
        """

        def begun(state: SuperblockState) -> SuperblockState:
            named = max(state.journal_sequence, journal_sequence)
            is_noted = is_damaged and named > 0
            damaged_start = self.sequence + 1 if is_noted else state.damaged_start
            return replace(state, journal_sequence=named, damaged_start=damaged_start)

        self.update(begun)

    def write_core(self, state: vsr.CoreState, journal_sequence: int = 0) -> None:
        """Replace the core's part, and name a durable record of the journal, if it is known.

        What others have written is kept.
        """
        self.update(
            lambda found: replace(
                found,
                view=state.view,
                log_view=state.log_view,
                commit_max=max(found.commit_max, state.commit_max),
                voting_view=state.voting_view,
                members=to_superblock(state.membership),
                journal_sequence=max(found.journal_sequence, journal_sequence),
            )
        )

    def record_generation(self, generation: int, cut_op: int, journal_sequence: int = 0) -> None:
        """Durably choose the snapshot to restart from, and name a durable record of the journal.

        An older snapshot than the present one changes nothing.
        """

        def recorded(state: SuperblockState) -> SuperblockState | None:
            if generation <= state.generation:
                return None
            return replace(_committed(state, cut_op, journal_sequence), generation=generation)

        self.update(recorded)

    def record_commit(self, committed_op: int, journal_sequence: int = 0) -> None:
        """Durably note how far the log is committed, and name a durable record of the journal.

        A lower op than the one known changes nothing, and neither does it make a superblock.
        """

        def recorded(state: SuperblockState) -> SuperblockState | None:
            if committed_op <= state.commit_max or not self.exists:
                return None
            return _committed(state, committed_op, journal_sequence)

        self.update(recorded)

    def update(self, change: Callable[[SuperblockState], SuperblockState | None]) -> None:
        """Return once the state that `change` makes is durable; None changes nothing.

        Raises what the superblock raises.
        """
        with self._mutex:
            state = change(self.state)
            if state is None:
                return
            if self._superblock is None:
                self._superblock = Superblock.create(self._storage, self._path, state)
            else:
                self._superblock.write(state)


def _committed(state: SuperblockState, op: int, journal_sequence: int) -> SuperblockState:
    """Return the state that knows this op to be committed, and names this record.

    A snapshot that covers all that the journal lost would hide the loss from whoever knows the
    commit alone. So whatever raises the commit names the record that was the last one then.
    """
    return replace(
        state,
        commit_max=max(state.commit_max, op),
        journal_sequence=max(state.journal_sequence, journal_sequence),
    )
