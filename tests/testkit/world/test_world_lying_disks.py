"""Disks of the world that do something else than they say, and superblocks that are put back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from coordinator.journal import plan
from testkit.memory_storage import Loss
from testkit.world.branches import OLDER_SUPERBLOCK, REFUSED, REFUSED_AT_START, VANISHED
from testkit.world.disk import WorldDisk
from testkit.world.options import WorldOptions
from testkit.world.run import WorldRun
from testkit.world.seeds import good_until
from viewstamp.format.record import SECTOR_BYTES

SMALL = WorldOptions(clients=2, callers=2, keys=2, seconds=5, every_ms=(50, 600))
SEGMENT = "data/journal/segment-0000000000000001.log"
FIRST, SECOND = bytes([1]) * SECTOR_BYTES, bytes([2]) * SECTOR_BYTES


def segment(disk: WorldDisk) -> bytes:
    """Write two records into a segment, each with its sync, and lose power."""
    disk.make_directory("data/journal")
    file = disk.create(SEGMENT)
    file.preallocate(4 * SECTOR_BYTES)
    disk.sync_directory("data/journal")
    file.sync()
    for number, record in enumerate((FIRST, SECOND), start=1):
        file.write(number * SECTOR_BYTES, record)
        file.sync()
    disk.crash(Loss.DROP)
    return disk.content(SEGMENT)


def test_a_record_vanishes_before_another_one() -> None:
    """A loss of power shows that the first of two synced records is not there."""
    disk = WorldDisk()
    disk.next_record_vanishes = True
    empty = bytes(SECTOR_BYTES)
    assert segment(disk) == empty + empty + SECOND + empty
    assert disk.vanished == 1


def test_the_last_record_does_not_vanish() -> None:
    """No loss of power shows a journal that only looks shorter."""
    disk = WorldDisk()
    segment(disk)
    file = disk.open(SEGMENT)
    disk.next_record_vanishes = True
    file.write(3 * SECTOR_BYTES, FIRST)
    file.sync()
    disk.crash(Loss.DROP)
    assert disk.content(SEGMENT)[3 * SECTOR_BYTES :] == FIRST
    assert disk.vanished == 0


def test_a_record_is_written_elsewhere() -> None:
    """The next record lands so many sectors behind its place, and those after it at theirs."""
    disk = WorldDisk()
    disk.sectors_misdirected = 2
    empty = bytes(SECTOR_BYTES)
    assert segment(disk) == empty + empty + SECOND + FIRST


def test_syncs_lie() -> None:
    """A sync that lies returns, and a loss of power takes what it should have kept."""
    disk = WorldDisk()
    segment(disk)
    disk.syncs_that_lie = 1
    file = disk.open(SEGMENT)
    for place in (0, 3):
        file.write(place * SECTOR_BYTES, FIRST)
    file.sync()
    disk.crash(Loss.DROP)
    empty = bytes(SECTOR_BYTES)
    assert disk.content(SEGMENT) == empty + FIRST + SECOND + empty


def ran(kinds: tuple[str, ...], branch: str, seeds: int = 40) -> Counter[str]:
    """Run seeds until a branch was reached; nothing may go wrong that is not planned."""
    return good_until(range(1, seeds + 1), replace(SMALL, faults=kinds), branch)


@pytest.mark.long
def test_lost_writes_are_repaired() -> None:
    """A victim whose synced records vanish gets them from the others."""
    assert ran(("lost_write", "kill"), VANISHED)[VANISHED] > 0


@pytest.mark.long
def test_misdirected_writes_are_repaired() -> None:
    """A victim whose records land elsewhere starts again, and all promises hold."""
    assert ran(("misdirected", "power"), "power")["misdirected"] > 0


@pytest.mark.long
def test_an_older_superblock_is_refused() -> None:
    """A victim with a superblock of before does not start, and comes back with an empty disk."""
    assert ran(("older_superblock", "step_down"), OLDER_SUPERBLOCK)[OLDER_SUPERBLOCK] > 0


@pytest.mark.long
def test_an_older_superblock_that_is_not_refused_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the product did not compare journal and superblock, the world would notice."""
    monkeypatch.setattr(plan, "check_superblock_is_newest", lambda *_: None)
    options = replace(SMALL, faults=("older_superblock", "step_down"))
    found = (WorldRun(seed, options).run().violations for seed in range(1, 41))
    complaint = "started with an older superblock"
    assert any(complaint in each for violations in found for each in violations)


@pytest.mark.long
def test_a_stalled_disk_goes_on() -> None:
    """A primary whose disk stands still for seconds neither loses anything nor stays behind."""
    assert ran(("stalled_disk",), "stalled_disk")["stalled_disk"] > 0


LYING = replace(SMALL, faults=("lost_syncs", "isolate", "step_down"), seconds=6)


@pytest.mark.long
def test_a_journal_that_lost_its_end_is_refused() -> None:
    """A victim whose confirmed writes are gone does not go on with what is left."""
    shown = good_until(range(1, 61), LYING, REFUSED_AT_START, REFUSED)
    assert shown[REFUSED_AT_START] > 0
    assert shown[REFUSED] > 0
