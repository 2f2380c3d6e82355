"""Room in a ring: full until a snapshot frees some, with one alarm, and never a busy wait."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.journal.segments import JournalSpace
from coordinator.replica import ring_room as module
from coordinator.replica.ports import JournalRoom
from coordinator.replica.ring_room import MARGIN_RECORDS, RingWatch
from coordinator.replica.space import RECORD_BYTES_MAX
from testkit.journal_builders import chain
from testkit.memory_storage import MemoryStorage
from testkit.ring_builders import RECORD_BYTES_MAX as RING_RECORD_BYTES_MAX
from testkit.ring_builders import create_ring
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.limits import PIPELINE_PREPARES_MAX

# Each is a mark of one sector and another entry of two sectors.
MARKS = 9
MARGIN_BYTES = MARGIN_RECORDS * RECORD_BYTES_MAX


class FullRing:
    """A ring with as much room as it is told."""

    segment_bytes = 64 * SECTOR_BYTES
    is_snapshot_due = True

    def __init__(self, free_bytes: int, *, reserve_intact: bool = True) -> None:
        self.free_bytes = free_bytes
        self.reserve_intact = reserve_intact

    @property
    def entry_bytes(self) -> int:
        """Return the room, and a band of the size of a margin."""
        return self.free_bytes + MARGIN_BYTES

    def space(self) -> JournalSpace:
        """Return the room."""
        return JournalSpace(self.free_bytes, 0, self.reserve_intact)


async def test_a_full_ring_is_told_once_and_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Room is FULL with one alarm until something is freed, and then whoever waits is told."""
    monkeypatch.setattr(module, "RETRY_DELAY_MS", 1)
    ring, alarms, looked = FullRing(MARGIN_BYTES - 1), list[str](), asyncio.Event()
    watch = RingWatch(ring, alarms.append, looked.set)
    running = asyncio.create_task(watch.run())
    for _ in range(3):
        assert watch.room() is JournalRoom.FULL
        await looked.wait()
        looked.clear()
    assert watch.full
    assert len(alarms) == 1
    ring.free_bytes = MARGIN_BYTES
    await watch.look_again()
    assert (watch.room(), watch.full) == (JournalRoom.FREE, False)
    ring.reserve_intact, ring.free_bytes = False, 0
    assert watch.room() is JournalRoom.EXHAUSTED
    assert len(alarms) == 2
    running.cancel()


def test_entries_of_another_primary_have_more_room_than_commands() -> None:
    """What a primary with a little more room has admitted fits here, too, up to the reserve."""
    ring = FullRing(0)
    watch = RingWatch(ring, lambda _: None, lambda: None)
    assert (watch.room(), watch.entry_room()) == (JournalRoom.FULL, JournalRoom.FREE)
    watch.sent([None])
    assert watch.entry_room() is JournalRoom.FULL


def test_a_backup_with_much_more_beside_the_log_takes_what_its_primary_admits() -> None:
    """A discarded pipeline of the largest entries and dozens of marks keep no entry out."""
    prepares = chain(240, bodies={op: bytes(6_000) for op in range(4, 4 + PIPELINE_PREPARES_MAX)})
    rings = [
        create_ring(MemoryStorage(), replica_count=3, ring_bytes=256 * SECTOR_BYTES)
        for _ in range(2)
    ]
    primary, backup = (
        RingWatch(ring, lambda _: None, lambda: None, RING_RECORD_BYTES_MAX) for ring in rings
    )
    for ring in rings:
        ring.append(prepares[:3])
    rings[1].append(prepares[3 : 3 + PIPELINE_PREPARES_MAX])
    for _ in range(MARKS):
        rings[1].append(prepares[3:4])
        rings[1].discard_after(3)
    later = chain(230, after=prepares[2], view=1)
    admitted = 0
    while primary.room() is JournalRoom.FREE:
        assert backup.entry_room() is JournalRoom.FREE
        for ring in rings:
            ring.append([later[admitted]])
        admitted += 1
    assert admitted > 100
    assert backup.entry_room() is JournalRoom.FREE


def test_entries_on_their_way_take_room() -> None:
    """An entry that is not written yet is counted as large as it can be."""
    watch = RingWatch(FullRing(MARGIN_BYTES + RECORD_BYTES_MAX), lambda _: None, lambda: None)
    assert watch.room() is JournalRoom.FREE
    watch.sent([None, None])
    assert watch.room() is JournalRoom.FULL
    watch.written([None])
    assert watch.room() is JournalRoom.FREE
    assert watch.frees_by_snapshot
    assert watch.is_snapshot_due
