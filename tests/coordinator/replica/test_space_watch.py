"""Room in the journal: full when no segment can be made, free again when one can."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.journal.errors import NoSpace
from coordinator.journal.journal import SPARE_SEGMENTS
from coordinator.journal.segments import JournalSpace
from coordinator.replica import space as module
from coordinator.replica.ports import JournalRoom
from coordinator.replica.space import MARGIN_RECORDS, RECORD_BYTES_MAX, SpaceWatch
from viewstamp.format.record import SECTOR_BYTES

MARGIN_BYTES = MARGIN_RECORDS * RECORD_BYTES_MAX


class FullJournal:
    """A journal that can make segments or not."""

    segment_bytes = SECTOR_BYTES + MARGIN_BYTES

    def __init__(self) -> None:
        """Begin with a full disk and little room."""
        self.disk_is_full = True
        self.free_bytes = MARGIN_BYTES - 1

    def space(self) -> JournalSpace:
        """Return the room in the journal."""
        return JournalSpace(self.free_bytes, SPARE_SEGMENTS - 1, True)

    def prepare_spares(self) -> int:
        """Make a segment, if the disk allows it."""
        if self.disk_is_full:
            raise NoSpace("free space on its file system")
        self.free_bytes += 10 * MARGIN_BYTES
        return 1


async def test_full_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is SOON until it was tried, FULL with one alarm while it fails, FREE once it works."""
    monkeypatch.setattr(module, "RETRY_DELAY_MS", 1)
    journal, alarms = FullJournal(), list[str]()
    tried = asyncio.Event()
    watch = SpaceWatch(journal, alarms.append, tried.set)
    running = asyncio.create_task(watch.run())
    assert watch.room() is JournalRoom.SOON
    for _ in range(3):
        await tried.wait()
        tried.clear()
        assert watch.room() is JournalRoom.FULL
    assert alarms == ["free space on its file system"]
    journal.disk_is_full = False
    # An earlier attempt may be reported once more.
    while watch.room() is not JournalRoom.FREE:
        await tried.wait()
        tried.clear()
    running.cancel()


async def test_what_is_on_its_way_counts() -> None:
    """Prepares that are not written yet already take their room."""
    journal = FullJournal()
    journal.free_bytes = MARGIN_BYTES + RECORD_BYTES_MAX
    watch = SpaceWatch(journal, lambda _: None, lambda: None)
    assert watch.room() is JournalRoom.FREE
    watch.sent([None, None])
    assert watch.room() is JournalRoom.SOON
    watch.written([None, None])
    assert watch.room() is JournalRoom.FREE


def test_segments_without_room_are_refused() -> None:
    """A watch that could only ever answer SOON is not made; with the least segment it is."""
    journal = FullJournal()
    SpaceWatch(journal, lambda _: None, lambda: None)
    journal.segment_bytes -= SECTOR_BYTES
    with pytest.raises(ValueError, match="never have room"):
        SpaceWatch(journal, lambda _: None, lambda: None)
    SpaceWatch(journal, lambda _: None, lambda: None, RECORD_BYTES_MAX - SECTOR_BYTES)
