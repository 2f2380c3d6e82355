"""Faults of single copies of snapshot files, of unreadable sectors, and of transfers under way.

Method: a disk alone, or short runs with one kind of fault. What a transfer meets has its stories.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest

from testkit.world.branches import DAMAGE_MET
from testkit.world.disk import WorldDisk
from testkit.world.options import WorldOptions, flags
from testkit.world.seeds import good_until
from testkit.world.snapshot_copies import (
    ROOT,
    copies_of,
    directory_of,
    may_lose,
    spoil_all,
    spoil_one,
    whole_names,
)
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.limits import SNAPSHOT_COPIES

SMALL = WorldOptions(clients=2, callers=1, keys=2, seconds=4, flags=flags(15), every_ms=(50, 500))
NAME = "layers/a.layer"
OTHER = "manifests/1.manifest"
CONTENT = bytes(range(256)) * 40


def disk_with_copies() -> WorldDisk:
    """Return a disk with a layer and a manifest in three directories."""
    disk = WorldDisk()
    for number in range(SNAPSHOT_COPIES):
        for name in (NAME, OTHER):
            disk.replace(f"{ROOT}{number}/{name}", CONTENT)
    return disk


def test_an_unreadable_sector_fails_each_read_until_it_is_written() -> None:
    """Reads that touch the sector fail, others do not, and a write makes it readable."""
    disk = WorldDisk()
    file = disk.create("a")
    file.write(0, bytes(3 * SECTOR_BYTES))
    disk.make_unreadable("a", SECTOR_BYTES + 7, 1)
    assert not disk.is_readable("a")
    assert file.read(0, SECTOR_BYTES) == file.read(2 * SECTOR_BYTES, SECTOR_BYTES)
    for offset, size in ((0, SECTOR_BYTES + 1), (SECTOR_BYTES, SECTOR_BYTES)):
        with pytest.raises(OSError, match="Input/output") as failed:
            disk.open("a").read(offset, size)
        assert failed.value.errno == errno.EIO
    file.write(SECTOR_BYTES, bytes(SECTOR_BYTES))
    assert disk.is_readable("a")
    assert file.read(0, 3 * SECTOR_BYTES) == bytes(3 * SECTOR_BYTES)


@pytest.mark.parametrize("seed", range(12))
def test_two_whole_copies_are_left(seed: int) -> None:
    """Of a file of which one copy was spoilt, the others are as before, and it counts as bad."""
    disk = disk_with_copies()
    paths = copies_of(disk, NAME)
    told = spoil_one(disk, NAME, Random(seed))
    left = [path for path in paths if disk.exists(path) and disk.content(path) == CONTENT]
    assert len([path for path in left if disk.is_readable(path)]) == SNAPSHOT_COPIES - 1, told
    assert whole_names(disk) == [OTHER]


def test_no_directory_is_lost_whose_files_are_not_whole_elsewhere() -> None:
    """A copy directory may be emptied as long as every file is whole in all of them."""
    disk = disk_with_copies()
    directory = directory_of(copies_of(disk, NAME)[0])
    assert may_lose(disk, directory)
    assert not may_lose(disk, f"{ROOT}9")
    spoil_all(disk, NAME, Random(1))
    assert not may_lose(disk, directory)


@pytest.mark.parametrize("kind", ["bad_copy", "lose_copies"])
def test_single_copies_are_repaired(kind: str) -> None:
    """Whatever replica lacks a copy tells people so, and all promises hold."""
    counts = good_until(range(1, 41), replace(SMALL, replicas=1, faults=(kind,)), kind)
    assert counts[kind] > 0


@pytest.mark.long
def test_unreadable_sectors_are_met_at_starts() -> None:
    """A victim starts from a journal that cannot be read everywhere, and rewrites headers."""
    options = replace(SMALL, faults=("unreadable", "kill"))
    counts = good_until(range(1, 61), options, DAMAGE_MET, "segment header rewritten")
    assert counts["unreadable"] > 0
