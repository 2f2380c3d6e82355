"""Committed entries reach the mux once each and in order, whatever the journal's records hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from coordinator import vsr
from coordinator.base.errors import HaltedError
from coordinator.base.slices import SLICE_MS, Steps
from coordinator.journal import CorruptRecord
from coordinator.replica.apply_queue import RUN_PREPARES_MAX, ApplyQueue, ApplyQueuePorts
from coordinator.replica.ports import Progress
from viewstamp.format.prepare import SealedPrepare, seal
from viewstamp.limits import FEATURE_LEVEL_MAX


def prepare(op: int, feature_level: int = FEATURE_LEVEL_MAX) -> SealedPrepare:
    """Return an entry of an op; these tests ignore its parent."""
    return seal(
        parent=bytes([min(op - 1, 1)]) * 16,
        cluster_id=bytes(16),
        view=0,
        op=op,
        commit=0,
        first_revision=op,
        command_count=1,
        feature_level=feature_level,
        timestamp=op,
        body=b"",
    )


class Journal:
    """Entries by op; some of them damaged."""

    def __init__(self, ops: range, damaged: frozenset[int] = frozenset()) -> None:
        self.ops = ops
        self.damaged = damaged
        self.handed_over: list[int] = []
        self.faulty: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.is_urgent = True
        self.steps = 0  # the next entries that are decoded
        self.all_due = asyncio.Event()
        self.queue = ApplyQueue(
            ApplyQueuePorts(
                self.read,
                self.take_apart,
                lambda entry, _: self.handed_over.append(entry.header.op),
                lambda op, _: self.faulty.append(op),
                self.start,
                self.guard,
                lambda: self.is_urgent,
            ),
            Progress(),
        )

    def guard(self, action: Callable[[], None]) -> None:
        action()
        self.all_due.set()

    def take_apart(self, entry: vsr.Prepare) -> Steps[None]:
        for _ in range(self.steps):
            time.sleep(SLICE_MS / 1000)  # a slice lasts this long; the sleep waits for no condition
            yield

    async def read(self, op: int) -> SealedPrepare | None:
        is_damaged = op in self.damaged
        await self.may_read.wait()
        if is_damaged:
            raise CorruptRecord("segment", 0, op, "planted")
        return prepare(op) if op in self.ops else None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def settle(self) -> None:
        while self.tasks:
            await self.tasks.pop(0)

    def commit(self, op: int, entry: Callable[[int], SealedPrepare] | None = None) -> None:
        self.queue.add(vsr.Commit(op, None if entry is None else entry(op)))


async def test_bodies_from_memory_wait_for_those_from_the_journal() -> None:
    """An entry with a body does not overtake one that must be read."""
    journal = Journal(range(1, 3))
    for op, entry in ((1, None), (2, prepare), (3, prepare)):
        journal.commit(op, entry)
    assert journal.handed_over == []
    assert journal.queue.next_op == 1
    await journal.settle()
    assert journal.handed_over == [1, 2, 3]
    assert journal.queue.next_op is None


async def test_a_damaged_entry_comes_again_and_holds_up_what_follows() -> None:
    """The core is told of the damage; its second commit of the op fills the gap."""
    journal = Journal(range(1, 4), frozenset({2}))
    for op in (1, 2, 3):
        journal.commit(op)
    await journal.settle()
    assert (journal.handed_over, journal.faulty) == ([1], [2])
    journal.commit(2, prepare)
    await journal.settle()
    assert journal.handed_over == [1, 2, 3]


async def test_an_entry_that_takes_long_is_taken_apart_in_slices() -> None:
    """The loop turns while an entry is decoded, and the entries behind it wait."""
    journal = Journal(range(1, 3))
    journal.steps = 5
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while not journal.handed_over:
            turns += 1
            await asyncio.sleep(0)

    journal.commit(1, prepare)
    journal.steps = 0
    journal.commit(2, prepare)
    assert (journal.handed_over, journal.queue.next_op) == ([], 1)
    await asyncio.gather(turn(), journal.settle())
    assert turns >= 4
    assert journal.handed_over == [1, 2]


async def test_an_entry_that_comes_again_while_it_is_taken_apart_is_handed_over_once() -> None:
    """A damaged record is committed anew: the decoding that began for it no longer counts."""
    journal = Journal(range(1, 3))
    journal.steps = 3
    journal.commit(1, prepare)
    journal.commit(1, prepare)
    journal.commit(2, prepare)
    await journal.settle()
    assert journal.handed_over == [1, 2]


@pytest.mark.parametrize("ending", ["read", "damaged", "missing"])
async def test_a_read_of_an_entry_that_came_again_meanwhile_counts_no_more(ending: str) -> None:
    """A read of an entry that came again changes no order, reports no damage and loses nothing."""
    ops = range(7, 8) if ending == "missing" else range(5, 8)
    journal = Journal(ops, frozenset({5} if ending == "damaged" else ()))
    journal.may_read.clear()
    journal.commit(5)
    await asyncio.sleep(0)
    journal.commit(6, prepare)
    journal.commit(5, prepare)
    assert journal.handed_over == [5, 6]
    journal.commit(7)
    journal.may_read.set()
    await journal.settle()
    assert (journal.handed_over, journal.faulty) == ([5, 6, 7], [])


async def test_a_read_that_ends_behind_the_queue_is_forgotten() -> None:
    """An entry that came again while it was read may have been the last one waiting."""
    journal = Journal(range(5, 6))
    journal.may_read.clear()
    journal.commit(5)
    await asyncio.sleep(0)
    journal.commit(5, prepare)
    journal.may_read.set()
    await journal.settle()
    assert journal.handed_over == [5]


async def test_what_was_handed_over_is_not_handed_over_again() -> None:
    """A read for a peer may find damage in an entry that the mux has, and repeat its commit."""
    journal = Journal(range(1, 3))
    journal.commit(1, prepare)
    journal.commit(1, prepare)
    journal.commit(2, prepare)
    await journal.settle()
    assert journal.handed_over == [1, 2]


async def test_an_entry_that_waits_is_replaced_by_its_second_commit() -> None:
    """Damage found behind an entry in the making changes neither order nor number."""
    journal = Journal(range(1, 4), frozenset({1, 2}))
    for op in (1, 2, 3):
        journal.commit(op)
    await journal.settle()
    journal.commit(2, prepare)
    assert journal.handed_over == []
    journal.commit(1, prepare)
    await journal.settle()
    assert journal.handed_over == [1, 2, 3]


async def test_a_committed_entry_that_is_nowhere_ends_the_process() -> None:
    """A committed entry that is missing from the journal cannot be replaced here."""
    journal = Journal(range(0))
    journal.commit(1)
    with pytest.raises(HaltedError, match="committed op 1 is not in the journal"):
        await journal.settle()


async def test_a_run_waits_until_time_is_up_or_somebody_hurries() -> None:
    """Entries that nobody waits for are handed over by the timer, as a run, or on request."""
    journal = Journal(range(1, 6))
    journal.is_urgent = False
    journal.commit(1, prepare)
    journal.commit(2, prepare)
    assert (journal.handed_over, journal.queue.next_op) == ([], 1)
    await asyncio.wait_for(journal.all_due.wait(), 20)
    assert (journal.handed_over, journal.queue.next_op) == ([1, 2], None)
    journal.commit(3, prepare)
    journal.queue.hurry()
    assert journal.handed_over == [1, 2, 3]
    journal.commit(4, prepare)
    journal.is_urgent = True
    journal.commit(5, prepare)
    assert journal.handed_over == [1, 2, 3, 4, 5]


async def test_a_run_is_bounded() -> None:
    """At most half as many entries wait as the core hands out before it waits itself."""
    journal = Journal(range(1, 2 * RUN_PREPARES_MAX))
    journal.is_urgent = False
    for op in range(1, RUN_PREPARES_MAX):
        journal.commit(op, prepare)
        assert journal.handed_over == []
    journal.commit(RUN_PREPARES_MAX, prepare)
    assert journal.handed_over == list(range(1, RUN_PREPARES_MAX + 1))


async def test_what_is_read_back_does_not_wait() -> None:
    """Entries read back from the journal, as after a restart, are handed over at once, together
    with those that waited before them."""
    journal = Journal(range(1, 4))
    journal.is_urgent = False
    journal.commit(1, prepare)
    journal.commit(2)
    await journal.settle()
    assert journal.handed_over == [1, 2]


async def test_hurry_does_not_overtake_what_is_being_read() -> None:
    """A caller that hurries while an entry is read gets nothing out of order."""
    journal = Journal(range(1, 3))
    journal.is_urgent = False
    journal.commit(1)
    journal.commit(2, prepare)
    journal.queue.hurry()
    assert journal.handed_over == []
    await journal.settle()
    assert journal.handed_over == [1, 2]


async def test_an_entry_of_a_newer_build_is_not_executed() -> None:
    """An entry above this build's feature level halts the replica, after the entries before it."""
    journal = Journal(range(0))
    journal.queue.add(vsr.Commit(1, prepare(1)))
    with pytest.raises(
        HaltedError, match=f"level {FEATURE_LEVEL_MAX + 1}.*up to {FEATURE_LEVEL_MAX}:"
    ):
        journal.queue.add(vsr.Commit(2, prepare(2, FEATURE_LEVEL_MAX + 1)))
    assert journal.handed_over == [1]
