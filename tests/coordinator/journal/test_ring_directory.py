"""A data directory whose journal is a ring: its kind and its size are fixed when it is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.base.errors import ConfigError
from coordinator.journal import CorruptJournal, SuperblockOlder
from coordinator.replica.data_directory import DirectoryOptions, ReplicaFiles, open_replica
from coordinator.replica.journal_opening import RingSettings
from coordinator.storage import FileStorage
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES, chain
from testkit.ring_builders import FILE_BYTES, RECORD_BYTES_MAX, RING_BYTES
from tests.coordinator.journal.directories import (
    FIRST_STATE,
    LEVEL,
    SUPERBLOCK,
    adopt_view,
    append,
    content,
)
from viewstamp.format.record import SECTOR_BYTES

RING = Path("journal", "ring.log")
SETTINGS = RingSettings(RING_BYTES, RECORD_BYTES_MAX)


def opened_ring(path: Path, ring: RingSettings | None = SETTINGS) -> ReplicaFiles:
    """Open the directory of replica 0 of three."""
    options = DirectoryOptions(path, 0, 3, CLUSTER_ID, SEGMENT_BYTES, ring=ring)
    return open_replica(options, FileStorage())


def begun_ring(path: Path, ring: RingSettings | None = SETTINGS) -> ReplicaFiles:
    """Journal op 1 and write the first superblock, as a bootstrap does."""
    files = opened_ring(path, ring)
    files.journal.append(chain(1, feature_level=LEVEL))
    files.superblock.write_core(FIRST_STATE)
    return files


def test_a_directory_keeps_its_ring(tmp_path: Path) -> None:
    """What was journaled is there after a restart, and there is one file, of the size asked for."""
    files = begun_ring(tmp_path)
    append(files)
    files.close()
    files = opened_ring(tmp_path)
    head = files.journal.head
    assert head is not None
    assert head.op == 2
    files.close()
    assert [path.name for path in (tmp_path / "journal").glob("*.log")] == [RING.name]
    assert (tmp_path / RING).stat().st_size == FILE_BYTES


@pytest.mark.parametrize(
    ("made", "wanted", "says"),
    [
        (SETTINGS, None, "made as ring, .*start this replica with --journal ring"),
        (None, SETTINGS, "made as segments, .*start this replica with --journal segments"),
        (
            SETTINGS,
            replace(SETTINGS, ring_bytes=2 * RING_BYTES),
            f"start this replica with --journal-ring-bytes {RING_BYTES}",
        ),
    ],
)
def test_another_kind_or_size_is_refused(
    tmp_path: Path, made: RingSettings | None, wanted: RingSettings | None, says: str
) -> None:
    """The message says what to do, and nothing is changed, with or without a superblock."""
    opened_ring(tmp_path / "blank", made).close()
    begun_ring(tmp_path / "begun", made).close()
    for path in (tmp_path / "blank", tmp_path / "begun"):
        before = content(path)
        with pytest.raises(ConfigError, match=says):
            opened_ring(path, wanted)
        assert content(path) == before
        opened_ring(path, made).close()


def test_a_directory_with_both_kinds_names_the_other_one(tmp_path: Path) -> None:
    """Whichever kind is asked for, the message names the one that was found beside it."""
    begun_ring(tmp_path / "ring").close()
    begun_ring(tmp_path / "both", None).close()
    (tmp_path / "both" / RING).write_bytes((tmp_path / "ring" / RING).read_bytes())
    for wanted, found in ((None, "ring"), (SETTINGS, "segments")):
        with pytest.raises(ConfigError, match=f"made as {found}"):
            opened_ring(tmp_path / "both", wanted)


def test_a_ring_names_its_cluster_before_there_is_a_superblock(tmp_path: Path) -> None:
    """A bootstrap that was cut short goes on with the cluster id that its ring has."""
    options = DirectoryOptions(tmp_path, 0, 1, None, SEGMENT_BYTES, ring=SETTINGS)
    files = open_replica(options, FileStorage())
    first = files.cluster_id
    files.journal.append(chain(1, feature_level=LEVEL)[:0])
    files.close()
    damaged = bytearray((tmp_path / RING).read_bytes())
    damaged[3] ^= 1  # each copy of the floor says the same
    (tmp_path / RING).write_bytes(damaged)
    files = open_replica(options, FileStorage())
    assert files.cluster_id == first
    files.close()


def test_an_older_superblock_beside_a_ring_is_refused(tmp_path: Path) -> None:
    """Records name their superblock in a ring, too."""
    begun_ring(tmp_path).close()
    older = (tmp_path / SUPERBLOCK).read_bytes()
    files = opened_ring(tmp_path)
    adopt_view(files)
    append(files)
    files.close()
    (tmp_path / SUPERBLOCK).write_bytes(older)
    with pytest.raises(SuperblockOlder):
        opened_ring(tmp_path)


def test_a_ring_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    """A file of another size than it says is no ring."""
    begun_ring(tmp_path).close()
    data = (tmp_path / RING).read_bytes()
    (tmp_path / RING).write_bytes(data[:-SECTOR_BYTES])
    with pytest.raises((CorruptJournal, ConfigError)):
        opened_ring(tmp_path)
