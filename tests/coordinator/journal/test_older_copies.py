"""An older superblock is refused, and an older journal is known to have lost its end.

Nobody may vote with what it has forgotten.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator import vsr
from coordinator.journal import CorruptJournal, JournalError, SuperblockOlder
from coordinator.replica.data_directory import ReplicaFiles
from testkit.journal_builders import chain
from tests.coordinator.journal.directories import (
    LEVEL,
    SUPERBLOCK,
    adopt_view,
    append,
    begun,
    content,
    opened,
)
from viewstamp.format.record import SECTOR_BYTES


def refused(
    path: Path,
    match: str,
    replica_count: int = 3,
    error: type[JournalError] = SuperblockOlder,
) -> None:
    """Opening is refused, twice, and leaves every byte as it was."""
    before = content(path)
    for _ in range(2):
        with pytest.raises(error, match=match):
            opened(path, replica_count)
    assert content(path) == before


def another_view(files: ReplicaFiles) -> None:
    """A view change, and an entry of the new view."""
    adopt_view(files)
    append(files)


def a_vote(files: ReplicaFiles) -> None:
    """A view that the replica voted in without its log, and an entry fetched there."""
    view = files.superblock.state.view + 1
    files.superblock.write_core(vsr.CoreState(view=view, log_view=1, commit_max=0))
    append(files)


def a_discard(files: ReplicaFiles) -> None:
    """A view change that took entries out of the log, and wrote none."""
    adopt_view(files)
    files.journal.discard_after(2)


def a_snapshot(files: ReplicaFiles) -> None:
    """A snapshot to restart from, and an entry behind it; the views are the same."""
    files.superblock.record_generation(1, 1)
    append(files)


@pytest.mark.parametrize("later", [another_view, a_vote, a_discard, a_snapshot])
def test_a_member_is_refused_with_an_older_superblock(
    tmp_path: Path, later: Callable[[ReplicaFiles], None]
) -> None:
    """Whatever the later superblock recorded, the journal's next record names that superblock."""
    files = begun(tmp_path)
    append(files)
    append(files)
    older = (tmp_path / SUPERBLOCK).read_bytes()
    later(files)
    files.close()
    (tmp_path / SUPERBLOCK).write_bytes(older)

    refused(tmp_path, "start the replica with an empty one")


def test_a_copy_from_before_the_last_start_is_refused(tmp_path: Path) -> None:
    """Each start writes the superblock, so a record shows that a start was forgotten."""
    begun(tmp_path).close()
    older = (tmp_path / SUPERBLOCK).read_bytes()
    files = opened(tmp_path)
    append(files)
    files.close()
    (tmp_path / SUPERBLOCK).write_bytes(older)

    refused(tmp_path, "is an older copy")


def test_a_lone_replica_is_told_to_bring_back_both(tmp_path: Path) -> None:
    """It has nobody who could send it the log."""
    files = begun(tmp_path, replica_count=1)
    older = (tmp_path / SUPERBLOCK).read_bytes()
    files.record_commit(1)
    append(files)
    files.close()
    (tmp_path / SUPERBLOCK).write_bytes(older)

    refused(tmp_path, "from one backup", replica_count=1)


def test_a_damaged_record_still_names_its_superblock(tmp_path: Path) -> None:
    """The frame alone proves that the superblock is older."""
    files = begun(tmp_path)
    older = (tmp_path / SUPERBLOCK).read_bytes()
    another_view(files)
    files.close()
    segment = next((tmp_path / "journal").glob("*1.log"))
    damaged = bytearray(segment.read_bytes())
    damaged[2 * SECTOR_BYTES + 200] ^= 0xFF
    segment.write_bytes(damaged)
    (tmp_path / SUPERBLOCK).write_bytes(older)

    refused(tmp_path, "is an older copy")


def test_a_record_that_went_astray_still_names_its_superblock(tmp_path: Path) -> None:
    """The only record under the later superblock lies elsewhere, and proves as much there."""
    files = begun(tmp_path)
    append(files)
    older = (tmp_path / SUPERBLOCK).read_bytes()
    another_view(files)
    files.close()
    segment = next((tmp_path / "journal").glob("*1.log"))
    astray = bytearray(segment.read_bytes())
    place, elsewhere = 3 * SECTOR_BYTES, 2 * SECTOR_BYTES
    astray[elsewhere : elsewhere + SECTOR_BYTES] = astray[place : place + SECTOR_BYTES]
    astray[place : place + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    segment.write_bytes(astray)
    (tmp_path / SUPERBLOCK).write_bytes(older)

    refused(tmp_path, "is an older copy")


@pytest.mark.parametrize("replica_count", [1, 3])
def test_the_own_superblock_is_never_refused(tmp_path: Path, replica_count: int) -> None:
    """Starts, views, entries and discards in any number leave a directory that opens."""
    begun(tmp_path, replica_count).close()
    for _ in range(3):
        files = opened(tmp_path, replica_count)
        append(files)
        adopt_view(files)
        append(files)
        if replica_count > 1:
            files.journal.discard_after(2)
        files.close()
    opened(tmp_path, replica_count).close()


def test_entries_of_lower_levels_are_written_as_before(tmp_path: Path) -> None:
    """Builds that know no named superblock may read them, so such a directory tells nothing."""
    level = LEVEL - 1
    files = begun(tmp_path, level=level)
    older = (tmp_path / SUPERBLOCK).read_bytes()
    adopt_view(files)
    append(files, level)
    files.close()
    segment = next((tmp_path / "journal").glob("*1.log")).read_bytes()
    versions = [segment[place * SECTOR_BYTES + 20] for place in (1, 2)]
    assert versions == [2, 2]
    (tmp_path / SUPERBLOCK).write_bytes(older)
    opened(tmp_path).close()


def test_a_directory_grows_into_the_level(tmp_path: Path) -> None:
    """Entries from before the level and from it on lie in one journal, which opens."""
    files = begun(tmp_path, level=LEVEL - 1)
    append(files, LEVEL - 1)
    append(files)
    files.close()
    again = opened(tmp_path)
    assert again.journal.head is not None
    assert again.journal.head.op == 3
    again.close()


def test_a_lost_superblock_is_told_as_such(tmp_path: Path) -> None:
    """Without a superblock the core decides, and does not start a longer journal."""
    files = begun(tmp_path)
    append(files)
    files.close()
    (tmp_path / SUPERBLOCK).unlink()
    again = opened(tmp_path)
    assert again.start.superblock is None
    again.close()


# --- An older journal ---


def with_lost_end(tmp_path: Path, kept: int, *, replica_count: int = 3) -> Path:
    """Return a directory whose journal lost its last record, which the superblock of a later view
    knows: `kept` records are left."""
    path, copy = tmp_path / "data", tmp_path / "copy"
    files = begun(path, replica_count)
    for _ in range(kept - 1):
        append(files)
    shutil.copytree(path / "journal", copy)
    append(files)
    adopt_view(files)
    files.close()
    put_back_journal(path, copy)
    return path


def damage(path: Path, sector: int, after: int = 0) -> None:
    """Damage the record at a sector of the first segment, from `after` so many bytes on."""
    segment = next((path / "journal").glob("*1.log"))
    damaged = bytearray(segment.read_bytes())
    place = sector * SECTOR_BYTES + after
    damaged[place : place + 60] = b"\xee" * 60
    segment.write_bytes(damaged)


def append_repaired(files: ReplicaFiles) -> None:
    """Journal the entry anew whose record is damaged."""
    head = files.journal.head
    assert head is not None
    last = files.journal.read(head.op)
    files.journal.append(chain(1, after=last, feature_level=LEVEL))


def put_back_journal(path: Path, copy: Path) -> None:
    """Replace the journal by an earlier copy."""
    shutil.rmtree(path / "journal")
    shutil.copytree(copy, path / "journal")


def test_a_member_knows_that_its_journal_lost_its_end(tmp_path: Path) -> None:
    """The superblock knows of a record that is gone without a trace: the member denies nothing."""
    path = with_lost_end(tmp_path, kept=2)

    for _ in range(2):
        again = opened(path)
        assert [(fault.first_sequence, fault.op) for fault in again.recovery.faults] == [(3, None)]
        assert again.recovery.head_uncertain
        # Entries before the loss may have been replaced by it.
        assert again.recovery.doubtful == (1, 2)
        again.close()


def test_a_journal_from_before_the_last_start_has_lost_its_end(tmp_path: Path) -> None:
    """Each start writes the superblock, which names the last record that the start found."""
    path, copy = tmp_path / "data", tmp_path / "copy"
    files = begun(path)
    shutil.copytree(path / "journal", copy)
    append(files)
    files.close()
    opened(path).close()
    put_back_journal(path, copy)

    again = opened(path)
    assert again.recovery.head_uncertain
    again.close()


def test_damage_elsewhere_does_not_hide_a_lost_end(tmp_path: Path) -> None:
    """One rotten record and one that is gone are two losses, and the second is at the end."""
    path = with_lost_end(tmp_path, kept=3)
    damage(path, 2, after=200)

    again = opened(path)
    assert [fault.first_sequence for fault in again.recovery.faults] == [2, 4]
    assert again.recovery.head_uncertain
    again.close()


def test_a_lone_replica_is_refused_without_the_end_of_its_journal(tmp_path: Path) -> None:
    """It has nobody who could send it what is lost."""
    path = with_lost_end(tmp_path, kept=2, replica_count=1)

    refused(path, "a record is missing", 1, CorruptJournal)


def test_a_torn_record_is_not_told_as_durable(tmp_path: Path) -> None:
    """A record whose write was cut short may be gone after the next loss of power."""
    files = begun(tmp_path)
    append(files)
    append(files)
    files.close()
    damage(tmp_path, 3, after=100)
    again = opened(tmp_path)
    assert (again.journal.durable_sequence, again.journal.last_sequence) == (2, 3)
    assert again.superblock.state.journal_sequence == 2
    append_repaired(again)
    assert again.journal.durable_sequence == 4
    again.close()


def test_records_since_the_last_superblock_are_not_missed(tmp_path: Path) -> None:
    """What came after the superblock can be lost without a trace: nothing on the disk is newer."""
    path, copy = tmp_path / "data", tmp_path / "copy"
    files = begun(path)
    append(files)
    adopt_view(files)
    shutil.copytree(path / "journal", copy)
    append(files)
    files.close()
    put_back_journal(path, copy)

    again = opened(path)
    assert again.journal.head is not None
    assert again.journal.head.op == 2
    again.close()


def test_a_damaged_end_is_noted(tmp_path: Path) -> None:
    """Others excuse a journal that is shorter since a start that found its end damaged."""
    files = begun(tmp_path)
    append(files)
    append(files)
    adopt_view(files)
    files.close()
    damage(tmp_path, 3)

    for _ in range(2):
        again = opened(tmp_path)
        assert again.recovery.head_uncertain
        assert again.superblock.state.damaged_start == again.superblock.sequence
        again.close()


def test_a_lone_replica_does_not_cut_a_record_that_was_durable(tmp_path: Path) -> None:
    """Rot of the last record looks like a torn write, unless the superblock knows of the record."""
    files = begun(tmp_path, replica_count=1)
    append(files)
    adopt_view(files)
    files.close()
    damage(tmp_path, 2)

    refused(tmp_path, "op 2", 1, CorruptJournal)


def test_damage_is_noted_while_the_entries_of_the_level_are_in_doubt(tmp_path: Path) -> None:
    """A record that names its superblock shows that the superblock may name a record."""
    level = LEVEL - 1
    files = begun(tmp_path, level=level)
    append(files)
    append(files)
    assert files.superblock.state.journal_sequence == 0
    files.close()
    damage(tmp_path, 3)

    again = opened(tmp_path)
    assert again.journal.head is None
    assert again.superblock.state.journal_sequence == 2
    assert again.superblock.state.damaged_start == again.superblock.sequence
    again.close()


def test_superblocks_of_lower_levels_are_written_as_before(tmp_path: Path) -> None:
    """Builds that know no named record may read them, so such a superblock names none."""
    level = LEVEL - 1
    files = begun(tmp_path, level=level)
    append(files, level)
    adopt_view(files)
    assert files.superblock.state.journal_sequence == 0
    append(files)
    adopt_view(files)
    assert files.superblock.state.journal_sequence == 3
    files.close()
