"""The one thread that writes: groups of prepares into the journal, states into the superblock.

It also reads the journal for peers, a chunk at a time, so that no write waits for long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from coordinator.journal.errors import CorruptRecord, NoSpace
from viewstamp.limits import KIB, MIB
from viewstamp.worker_thread import DaemonThread, WorkerThread

# The most that one answer to a peer carries, except a single prepare that is larger.
REPAIR_BYTES_MAX: Final = 1 * MIB
# The most that is read between two writes, except a single prepare that is larger.
READ_CHUNK_BYTES: Final = 256 * KIB

Result = TypeVar("Result")
State = TypeVar("State")


class WritableJournal(Protocol):
    """What the writer needs of a journal."""

    def append(self, group: Sequence[Any], *, use_reserve: bool) -> None:
        """Write the group and return once it is durable."""

    def discard_after(self, op: int) -> None:
        """Durably take every op above `op` out of the log."""

    def mark_repaired(self) -> bool:
        """Durably note that every loss is repaired, if it is."""

    def read(self, op: int) -> Any | None:
        """Return the prepare of an op; raises CorruptRecord."""

    def header(self, op: int) -> Any | None:
        """Return the header of an op, or None if it is not held."""

    @property
    def first_available_op(self) -> int:
        """The lowest op that the journal can hold."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left for `mark_repaired`; any thread may ask."""

    @property
    def records_copied(self) -> int:
        """How many records were copied, which is progress in a call; any thread may ask."""


class WritableSuperblock(Protocol):
    """What the writer needs of a superblock."""

    def write_core(self, state: Any) -> None:
        """Return once the core's part is durable."""


@dataclass(frozen=True, slots=True)
class HeldEntries:
    """The journal's entries from an op on: as many as fit into one answer, perhaps none.

    `damaged_op` is the op at which reading found damage, None if there was none.
    """

    prepares: tuple[Any, ...]
    damaged_op: int | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """The journal no longer holds the entry asked for, only those from `first_held_op` on."""

    first_held_op: int


Reading: TypeAlias = HeldEntries | Gone


def _nobody_listens(op: int) -> None:
    raise AssertionError(f"a discard after op {op}, and nobody is told")


class JournalWriter(Generic[State]):
    """Runs journal and superblock calls one at a time, in the order of the requests.

    Prepares that arrive while a write is under way form the next group, with one sync for all.
    """

    def __init__(
        self,
        journal: WritableJournal,
        superblock: WritableSuperblock,
        make_thread: Callable[[str], WorkerThread] = DaemonThread,
    ) -> None:
        self._journal = journal
        self._superblock = superblock
        self._thread = make_thread("journal")
        self._queue: deque[_Prepares | _Discard | _Superblock[State]] = deque()
        self._wake = asyncio.Event()
        self._is_normal = False
        self.is_writing = False
        """Whether anything is being written. On a disk that hangs it stays true for ever."""
        self._jobs_done = 0

    @property
    def writes_done(self) -> int:
        """How much was written: on a disk that hangs it stands still."""
        return self._jobs_done + self._journal.records_copied

    def persist_prepares(self, prepares: Sequence[Any], *, use_reserve: bool = False) -> None:
        """Append prepares to the journal; snapshot commands may use the reserve."""
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _Prepares):
            last.prepares.extend(prepares)
            last.use_reserve |= use_reserve
        else:
            self._queue.append(_Prepares(list(prepares), use_reserve))
        self._wake.set()

    def persist_superblock(self, state: State) -> None:
        """Write the core's part of the superblock; then `superblock_durable` is called."""
        self._queue.append(_Superblock(state))
        self._wake.set()

    def discard_after(self, op: int) -> None:
        """Take every op above `op` out of the journal, in the order of requests; `discarded` is
        called when that is durable."""
        self._queue.append(_Discard(op))
        self._wake.set()

    def status_changed(self, *, is_normal: bool) -> None:
        """Say whether the replica is in status normal.

        In status normal it holds the cluster's log. So once every loss that recovery found is
        journaled again, the journal is told that it is repaired.
        """
        self._is_normal = is_normal
        self._wake.set()

    async def read_held(self, op: int, checksum: bytes) -> Any | None:
        """Return exactly the prepare with this checksum, or None; raises CorruptRecord."""
        return await self.call(lambda: _read_held(self._journal, op, checksum))

    async def read_committed(self, first_op: int, last_op: int) -> Reading:
        """Return the prepares from `first_op` on, as many as one answer carries.

        Every chunk waits its turn among the writes. An op that is damaged or not held ends the
        answer.
        """
        first_available_op = await self.call(lambda: self._journal.first_available_op)
        if first_op < first_available_op:
            return Gone(first_available_op)
        prepares: list[Any] = []
        room_bytes = REPAIR_BYTES_MAX
        while first_op <= last_op and room_bytes > 0:
            chunk = await self.call(lambda: _read_chunk(self._journal, first_op, last_op))  # noqa: B023
            for prepare in chunk.prepares:
                room_bytes -= prepare.header.size
                if prepares and room_bytes < 0:
                    return HeldEntries(tuple(prepares))
                prepares.append(prepare)
            if chunk.damaged_op is not None or not chunk.prepares:
                return HeldEntries(tuple(prepares), chunk.damaged_op)
            first_op += len(chunk.prepares)
        return HeldEntries(tuple(prepares))

    async def read(self, op: int) -> Any | None:
        """Return the prepare of an op from the journal. Raises what the journal raises."""
        return await self.call(lambda: self._journal.read(op))

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run any other journal call between the writes."""
        return await self._thread.call(function)

    async def run(
        self,
        prepares_durable: Callable[[Sequence[Any]], None],
        superblock_durable: Callable[[State], None],
        discarded: Callable[[int], None] = _nobody_listens,
    ) -> None:
        """Write until cancelled, and report what became durable.

        Raises any failure to write, which must end the process.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            self.is_writing = True
            while self._queue:
                job = self._queue.popleft()
                if isinstance(job, _Prepares):
                    await self._append(job)
                    prepares_durable(job.prepares)
                elif isinstance(job, _Discard):
                    await self._discard(job.op)
                    discarded(job.op)
                else:
                    await self._write_superblock(job.state)
                    superblock_durable(job.state)
                self._jobs_done += 1
            await self._settle()
            self.is_writing = False

    async def _settle(self) -> None:
        if self._is_normal and not self._journal.is_settled:
            # Without space for it the next start reports the faults again, which does no harm.
            with suppress(NoSpace):
                await self.call(self._journal.mark_repaired)

    async def _append(self, job: _Prepares) -> None:
        await self.call(lambda: self._journal.append(job.prepares, use_reserve=job.use_reserve))

    async def _discard(self, op: int) -> None:
        await self.call(lambda: self._journal.discard_after(op))

    async def _write_superblock(self, state: State) -> None:
        await self.call(lambda: self._superblock.write_core(state))

    def close(self) -> None:
        """Wait for the write under way and end the thread. Raises DiskHangsError."""
        self._thread.close()


def _read_held(journal: WritableJournal, op: int, checksum: bytes) -> Any | None:
    header = journal.header(op)
    return journal.read(op) if header is not None and header.checksum == checksum else None


def _read_chunk(journal: WritableJournal, first_op: int, last_op: int) -> HeldEntries:
    prepares: list[Any] = []
    chunk_bytes = 0
    for op in range(first_op, last_op + 1):
        try:
            prepare = journal.read(op)
        except CorruptRecord:
            return HeldEntries(tuple(prepares), op)
        if prepare is None:
            break
        prepares.append(prepare)
        chunk_bytes += prepare.header.size
        if chunk_bytes >= READ_CHUNK_BYTES:
            break
    return HeldEntries(tuple(prepares))


class _Prepares:
    __slots__ = ("prepares", "use_reserve")

    def __init__(self, prepares: list[Any], use_reserve: bool) -> None:
        self.prepares = prepares
        self.use_reserve = use_reserve


class _Discard:
    __slots__ = ("op",)

    def __init__(self, op: int) -> None:
        self.op = op


class _Superblock(Generic[State]):
    __slots__ = ("state",)

    def __init__(self, state: State) -> None:
        self.state = state
