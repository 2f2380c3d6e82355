"""A start whose snapshot is fetched from peers first, and what shows that it may not go on.

A snapshot that is gone is just what an older superblock names, and a newer one covers whatever an
older journal has lost. So all of that is compared with what the disk said before.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.journal import Journal, JournalNotFound, SuperblockOlder
from coordinator.replica.data_directory import DamagedSnapshot, Mend, ReplicaFiles
from coordinator.replica.start import WrongDirectoryError
from coordinator.snapshot.errors import NoIntactCopy
from coordinator.storage import DescriptorFile
from testkit.generation_builders import Sections, entities
from testkit.journal_builders import chain
from tests.coordinator.journal.directories import (
    LEVEL,
    SUPERBLOCK,
    adopt_view,
    append,
    begun,
    opened,
)
from viewstamp.format.record import SECTOR_BYTES, UNIT_BYTES

GONE, PRESENT, NEWEST = 1, 2, 4
OPS_BETWEEN_CUTS = 10


def cut_op_of(generation: int) -> int:
    """Return the op at which a generation of these tests is cut."""
    return OPS_BETWEEN_CUTS * generation


def brings(generation: int) -> Mend:
    """Return what makes a generation whole here, as peers do, and chooses it."""

    def mend(damaged: DamagedSnapshot) -> None:
        Sections(damaged.files).write(generation, entities(generation, 2))
        damaged.choose(generation, cut_op_of(generation))

    return mend


def transferred(path: Path, generation: int) -> ReplicaFiles:
    """Open the directory after peers gave it a generation; the journal continues behind its cut."""
    files = opened(path)
    Sections(files.snapshots).write(generation, entities(generation, 2))
    files.record_transferred(generation, cut_op_of(generation))
    files.close()
    return opened(path)


def older_with_a_record(path: Path) -> None:
    """Put an older superblock in place, which a record of the journal shows."""
    files = begun(path)
    append(files)
    files.superblock.record_generation(GONE, 1)
    older = (path / SUPERBLOCK).read_bytes()
    adopt_view(files)
    append(files)
    files.close()
    (path / SUPERBLOCK).write_bytes(older)


def older_with_a_restart(path: Path, level: int = LEVEL - 1) -> None:
    """Put an older superblock in place. No record names a later one, but one continues the log
    behind a cut that only a later one can have named."""
    begun(path, level=level).close()
    transferred(path, GONE).close()
    older = (path / SUPERBLOCK).read_bytes()
    files = transferred(path, PRESENT)
    files.snapshots.collect_garbage([], PRESENT)
    files.close()
    (path / SUPERBLOCK).write_bytes(older)


def older_with_a_restart_of_an_empty_log(path: Path) -> None:
    """As before at a level whose records name superblocks, except where the log is empty."""
    older_with_a_restart(path, LEVEL)


@pytest.mark.parametrize(
    "older", [older_with_a_record, older_with_a_restart, older_with_a_restart_of_an_empty_log]
)
def test_an_older_superblock_is_refused_before_its_snapshot_is_mended(
    tmp_path: Path, older: Callable[[Path], None]
) -> None:
    """Peers may be long in coming, and what they send would hide that the superblock is older."""
    older(tmp_path)
    superblock = (tmp_path / SUPERBLOCK).read_bytes()
    mended: list[DamagedSnapshot] = []

    for _ in range(2):
        with pytest.raises(SuperblockOlder, match="is an older copy"):
            opened(tmp_path, mend=mended.append)
    (tmp_path / "journal").rename(tmp_path / "elsewhere")
    with pytest.raises(JournalNotFound):
        opened(tmp_path, mend=mended.append)
    assert not mended
    assert (tmp_path / SUPERBLOCK).read_bytes() == superblock


def test_a_journal_that_is_read_late_still_refuses_an_older_superblock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sector that could not be read before the snapshot was fetched may show it afterwards."""
    older_with_a_record(tmp_path)
    superblock = (tmp_path / SUPERBLOCK).read_bytes()
    read = DescriptorFile.read

    def unreadable(file: DescriptorFile, offset: int, size: int) -> bytes:
        if file.path.endswith("1.log") and offset <= 3 * SECTOR_BYTES < offset + size:
            raise OSError(errno.EIO, "a bad sector")
        return read(file, offset, size)

    def mend(damaged: DamagedSnapshot) -> None:
        monkeypatch.setattr(DescriptorFile, "read", read)
        brings(NEWEST)(damaged)

    for _ in range(2):
        monkeypatch.setattr(DescriptorFile, "read", unreadable)
        with pytest.raises(SuperblockOlder, match="is an older copy"):
            opened(tmp_path, mend=mend)
        assert (tmp_path / SUPERBLOCK).read_bytes() == superblock


def test_the_superblock_names_the_snapshot_that_was_fetched(tmp_path: Path) -> None:
    """A newer generation than the damaged one is chosen, and the log continues behind its cut."""
    files = begun(tmp_path)
    append(files)
    files.record_generation(GONE, 1)
    files.close()
    with pytest.raises(NoIntactCopy):
        opened(tmp_path, mend=lambda _: None)

    for mend in (brings(NEWEST), None):
        files = opened(tmp_path, mend=mend)
        assert files.base is not None
        assert files.base.manifest.generation == NEWEST
        state = files.superblock.state
        assert (state.generation, state.commit_max) == (NEWEST, cut_op_of(NEWEST))
        assert files.journal.restart_op == cut_op_of(NEWEST)
        files.close()


def stopped(files: ReplicaFiles, op: int) -> None:
    """Note at a stop how far the log is committed."""
    files.record_commit(op)


def snapshotted(files: ReplicaFiles, op: int) -> None:
    """Choose a snapshot that this replica took itself."""
    files.record_generation(GONE, op)


@pytest.mark.parametrize("known_by", [stopped, snapshotted])
def test_a_fetched_snapshot_does_not_hide_that_the_journal_lost_its_end(
    tmp_path: Path, known_by: Callable[[ReplicaFiles, int], None]
) -> None:
    """It covers the commit that the superblock knows of, but not what was acknowledged behind it:
    whatever notes a commit also names the journal's last record."""
    path, copy = tmp_path / "data", tmp_path / "copy"
    files = begun(path)
    shutil.copytree(path / "journal", copy)
    for _ in range(3):
        append(files)
    known_by(files, 2)
    files.superblock.record_generation(GONE, 2)
    files.close()
    shutil.rmtree(path / "journal")
    shutil.copytree(copy, path / "journal")

    for mend in (brings(NEWEST), None):
        again = opened(path, mend=mend)
        assert again.start.base_op == cut_op_of(NEWEST)
        assert again.start.head_uncertain
        assert again.superblock.state.damaged_start == again.superblock.sequence
        again.close()


@pytest.mark.parametrize("mend", [None, brings(NEWEST)])
def test_a_fetched_snapshot_does_not_have_a_committed_record_cut_off(
    tmp_path: Path, mend: Mend | None
) -> None:
    """The last record looks torn, and the superblock knows its op to be committed: it was durable,
    and others may follow. A snapshot that the superblock does not know excuses nothing of that.
    At a level where the superblock names no record, only the commit tells.
    """
    files = begun(tmp_path, level=LEVEL - 1)
    if mend is not None:
        files.record_generation(GONE, 1)
    append(files, LEVEL - 1)
    append(files, LEVEL - 1)
    files.record_commit(3)
    files.close()
    segment = next((tmp_path / "journal").glob("*1.log"))
    torn = bytearray(segment.read_bytes())
    torn[3 * SECTOR_BYTES : 4 * SECTOR_BYTES] = bytes(UNIT_BYTES) + bytes(
        [1] * (SECTOR_BYTES - UNIT_BYTES)
    )
    segment.write_bytes(torn)

    again = opened(tmp_path, mend=mend)
    assert again.recovery.cut is None
    assert again.start.head_uncertain
    again.close()
    assert segment.read_bytes()[3 * SECTOR_BYTES + UNIT_BYTES] == 1


def test_a_start_that_is_refused_after_mending_leaves_the_superblock(tmp_path: Path) -> None:
    """The fetched snapshot contradicts entries that this replica knows to be committed."""
    files = begun(tmp_path)
    first = files.journal.read(1)
    for prepare in chain(45, after=first, commit=44, feature_level=LEVEL):
        files.journal.append([prepare])
    files.record_generation(GONE, 1)
    files.close()
    superblock = (tmp_path / SUPERBLOCK).read_bytes()

    for _ in range(2):
        with pytest.raises(WrongDirectoryError, match="of different histories"):
            opened(tmp_path, mend=brings(NEWEST))
        assert (tmp_path / SUPERBLOCK).read_bytes() == superblock


def test_another_snapshot_of_the_same_number_is_refused(tmp_path: Path) -> None:
    """The superblock knows the cut of its snapshot to be committed; this one is cut above that, and
    whoever starts from it would be told for good that its superblock is older."""
    files = begun(tmp_path)
    files.record_generation(GONE, 1)
    files.close()
    superblock = (tmp_path / SUPERBLOCK).read_bytes()

    for mend in (brings(GONE), None):
        with pytest.raises(WrongDirectoryError, match="snapshot 1 was cut at op 10"):
            opened(tmp_path, mend=mend)
        assert (tmp_path / SUPERBLOCK).read_bytes() == superblock


def test_the_superblock_names_the_snapshot_before_the_log_restarts_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that ends just after the restart of the log is not taken for an older superblock."""
    files = begun(tmp_path)
    files.record_generation(GONE, 1)
    files.close()
    restart_at = Journal.restart_at

    def killed(journal: Journal, op: int, checksum: bytes) -> int:
        restart_at(journal, op, checksum)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "restart_at", killed)
        opened(tmp_path, mend=brings(NEWEST))

    files = opened(tmp_path)
    assert files.superblock.state.generation == NEWEST
    assert files.journal.restart_op == cut_op_of(NEWEST)
    files.close()


def test_a_start_that_ended_after_mending_may_be_repeated(tmp_path: Path) -> None:
    """The superblock still names the damaged snapshot, and a newer one is brought again."""

    def killed(damaged: DamagedSnapshot) -> None:
        brings(NEWEST)(damaged)
        raise KeyboardInterrupt

    files = begun(tmp_path)
    files.record_generation(GONE, 1)
    files.close()
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, mend=killed)

    files = opened(tmp_path, mend=brings(NEWEST + 1))
    assert files.superblock.state.generation == NEWEST + 1
    files.close()
