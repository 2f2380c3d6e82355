"""The writer of a replica: discards in order, reads for peers, and settles faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import pytest

from coordinator.journal import CorruptRecord, Journal
from coordinator.replica.writer import (
    READ_CHUNK_BYTES,
    REPAIR_BYTES_MAX,
    Gone,
    HeldEntries,
    JournalWriter,
)
from testkit.journal_builders import chain, create, filled, place, reopen
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from viewstamp.limits import MIB

Result = TypeVar("Result")


class NoSuperblock:
    """A superblock that only notes its writes."""

    def __init__(self, told: list[object]) -> None:
        self._told = told

    def write_core(self, state: str) -> None:
        """Note the state."""
        self._told.append(f"written {state}")


Until: TypeAlias = Callable[[int], Awaitable[None]]
Use: TypeAlias = Callable[[JournalWriter[str], Until], Awaitable[None]]


def with_writer(journal: Journal, use: Use) -> list[object]:
    """Run `use` with a writer under way; return all events of the writer, in order."""
    told: list[object] = []

    async def run() -> None:
        writer: JournalWriter[str] = JournalWriter(journal, NoSuperblock(told))
        changed = asyncio.Event()

        def tell(what: object) -> None:
            told.append(what)
            changed.set()

        async def until(count: int) -> None:
            while len(told) < count:
                changed.clear()
                await changed.wait()

        running = asyncio.create_task(
            writer.run(
                lambda prepares: tell([prepare.op for prepare in prepares]),
                tell,
                lambda op: tell(f"discarded {op}"),
            )
        )
        await use(writer, until)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        writer.close()

    asyncio.run(run())
    return told


def test_discards_keep_their_place_among_appends() -> None:
    """Entries before a discard and after it never share a group; replaced ops are the new ones."""
    journal = create(MemoryStorage(), replica_count=3)
    old = chain(4)
    new = chain(3, after=old[1], view=2)

    async def use(writer: JournalWriter[str], until: Until) -> None:
        writer.persist_prepares(old[:2])
        writer.persist_prepares(old[2:])
        writer.discard_after(2)
        writer.persist_prepares(new[:1])
        writer.persist_prepares(new[1:])
        writer.persist_superblock("log view 2")
        await until(5)

    told = with_writer(journal, use)

    assert told == [[1, 2, 3, 4], "discarded 2", [3, 4, 5], "written log view 2", "log view 2"]
    assert list(entries(journal, 1)) == [*old[:2], *new]


def test_an_entry_is_not_replaced_without_a_discard() -> None:
    """The journal refuses, and the writer with it, because such a core has a defect."""
    journal = create(MemoryStorage(), replica_count=3)
    old = chain(3)
    journal.append(old)
    for wrong in (chain(1, after=old[1], view=2), chain(1, after=old[0], view=2), chain(5)[4:]):
        with pytest.raises(ValueError, match=r"would replace|does not continue"):
            journal.append(wrong)
    journal.append(old[1:2])
    assert list(entries(journal, 1)) == old


def test_peers_read_exactly_the_record_they_name() -> None:
    """An entry is found by op and checksum: no other entry is given, and damage is reported."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    prepares = chain(3)
    journal.append(prepares)
    path, offset = place(2)
    storage.flip(path, offset + 200)

    async def use(writer: JournalWriter[str], until: Until) -> None:
        assert await writer.read_held(2, prepares[1].checksum) == prepares[1]
        assert await writer.read_held(2, prepares[0].checksum) is None
        assert await writer.read_held(9, prepares[1].checksum) is None
        with pytest.raises(CorruptRecord, match="op 3"):
            await writer.read_held(3, prepares[2].checksum)
        assert await writer.read_committed(1, 9) == HeldEntries(tuple(prepares[:2]), 3)
        assert await writer.read_committed(2, 2) == HeldEntries((prepares[1],))
        assert await writer.read_committed(4, 9) == HeldEntries(())

    with_writer(journal, use)


def test_one_answer_carries_a_limited_number_of_bytes() -> None:
    """A read returns entries up to the limit, and at least one, however large it is."""
    large = bytes(range(256)) * (300 * 1024 // 256)
    bodies = dict.fromkeys(range(1, 7), large) | {7: bytes(range(256)) * 4096}
    prepares = chain(8, bodies=bodies)
    journal = create(MemoryStorage(), replica_count=3, segment_bytes=4 * MIB)
    journal.append(prepares)
    assert READ_CHUNK_BYTES < len(large) < REPAIR_BYTES_MAX <= len(prepares[6].body)

    async def use(writer: JournalWriter[str], until: Until) -> None:
        for first_op, count in ((1, 3), (4, 3), (7, 1), (8, 1)):
            found = await writer.read_committed(first_op, 8)
            assert found == HeldEntries(tuple(prepares[first_op - 1 : first_op - 1 + count])), (
                first_op
            )

    with_writer(journal, use)


def test_reading_for_peers_lets_writes_pass() -> None:
    """An append that comes while a long answer is read finishes before the answer does."""
    large = bytes(range(256)) * (280 * 1024 // 256)
    prepares = chain(4, bodies={1: large, 2: large, 3: large})
    journal = create(MemoryStorage(), replica_count=3, segment_bytes=4 * MIB)
    journal.append(prepares[:3])

    async def use(writer: JournalWriter[str], until: Until) -> None:
        reading = asyncio.create_task(writer.read_committed(1, 3))
        writer.persist_prepares(prepares[3:])
        await until(1)
        assert not reading.done()
        assert await reading == HeldEntries(tuple(prepares[:3]))

    assert with_writer(journal, use) == [[4]]


def test_what_was_truncated_is_said_to_be_gone() -> None:
    """A peer that is too far behind learns the first op that the journal still has."""
    journal = create(MemoryStorage(), replica_count=3)
    prepares = chain(40)
    for prepare in prepares:
        journal.append([prepare])
    journal.truncate_before(20)
    empty = create(MemoryStorage(), replica_count=3)
    empty.append(prepares[:3])
    empty.restart_at(30, prepares[29].checksum)

    async def use(writer: JournalWriter[str], until: Until) -> None:
        assert await writer.read_committed(18, 20) == Gone(19)
        assert await writer.read_committed(19, 20) == HeldEntries(tuple(prepares[18:20]))

    async def restarted(writer: JournalWriter[str], until: Until) -> None:
        assert await writer.read_committed(2, 3) == Gone(31)

    with_writer(journal, use)
    with_writer(empty, restarted)


def test_faults_are_settled_once_the_log_is_whole_and_the_status_normal() -> None:
    """Faults are settled only once the log is whole and the status normal; a restart reports
    none."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(2), chain(2, after=chain(2)[-1])], replica_count=3)
    path, offset = place(3)
    storage.flip(path, offset + 30)
    journal, recovery = reopen(storage, replica_count=3)
    assert (recovery.holes, recovery.head_uncertain) == ((1, 2, 3), True)

    async def use(writer: JournalWriter[str], until: Until) -> None:
        writer.status_changed(is_normal=True)
        writer.persist_superblock("a")
        await until(2)
        assert not journal.is_settled
        writer.status_changed(is_normal=False)
        writer.persist_prepares(prepares)
        await until(3)
        assert not journal.is_settled
        writer.status_changed(is_normal=True)
        writer.persist_superblock("b")
        writer.persist_superblock("c")
        await until(7)
        await writer.read(1)

    with_writer(journal, use)
    journal.close()

    journal, recovery = reopen(storage, replica_count=3)
    assert (recovery.holes, recovery.head_uncertain, recovery.faults) == ((), False, ())
    assert list(entries(journal, 1)) == prepares


class CallerThread:
    """Runs each call at once, in the caller's thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Return a future that is done."""
        self.calls += 1
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        future.set_result(function())
        return future

    def abandon(self) -> None:
        """Do nothing: nothing is under way."""

    def close(self) -> None:
        """Do nothing: nothing is under way."""


async def test_calls_run_on_the_thread_that_was_given() -> None:
    """A writer that is given another thread makes none of its own."""
    made: list[CallerThread] = []

    def make_thread(name: str) -> CallerThread:
        made.append(CallerThread(name))
        return made[-1]

    journal = create(MemoryStorage(), replica_count=3)
    journal.append(chain(3))
    writer: JournalWriter[str] = JournalWriter(journal, NoSuperblock([]), make_thread)
    assert await writer.read(2) == journal.read(2)
    writer.close()
    assert [(thread.name, thread.calls) for thread in made] == [("journal", 1)]
