"""A replica's directory survives as a whole: journal and superblock are judged together."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator import vsr
from coordinator.journal import CorruptJournal
from coordinator.journal.errors import JournalError
from coordinator.replica.data_directory import DirectoryOptions, ReplicaFiles, open_replica
from coordinator.storage import FileStorage
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES, chain
from testkit.memory_storage import MemoryStorage
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import FRAME_BYTES, SECTOR_BYTES

SEGMENT = Path("journal", "segment-0000000000000001.log")
# The record of op 3, each record here being one sector.
LAST_OFFSET = 3 * SECTOR_BYTES


def opened(path: Path) -> ReplicaFiles:
    """Open the directory of a lone replica of the cluster that the builders use."""
    return open_replica(DirectoryOptions(path, 0, 1, CLUSTER_ID, SEGMENT_BYTES), FileStorage())


def closed(files: ReplicaFiles) -> None:
    """Close the directory, as a process that ends does."""
    files.close()


def bootstrapped(path: Path, prepares: list[SealedPrepare]) -> ReplicaFiles:
    """Journal op 1, write the first superblock, then journal the others, one group each."""
    files = opened(path)
    files.journal.append(prepares[:1])
    files.superblock.update(lambda state: replace(state, view=1, log_view=1))
    for prepare in prepares[1:]:
        files.journal.append([prepare])
    return files


def damage(path: Path, offset: int) -> None:
    """Flip one byte of the first segment."""
    file = path / SEGMENT
    content = bytearray(file.read_bytes())
    content[offset] ^= 0xFF
    file.write_bytes(content)


def content(path: Path) -> dict[str, bytes]:
    """Return everything below the directory, except who holds it."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != "LOCK")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def refused(path: Path, match: str) -> None:
    """Opening is refused, twice, and leaves every byte as it was."""
    before = content(path)
    for _ in range(2):
        with pytest.raises(CorruptJournal, match=match):
            opened(path)
    assert content(path) == before


@pytest.mark.parametrize("within", [0, 20, FRAME_BYTES, FRAME_BYTES + 130, SECTOR_BYTES - 1])
def test_after_a_graceful_stop_the_last_record_is_never_taken_for_torn(
    tmp_path: Path, within: int
) -> None:
    """The superblock knows the last commit, so one flipped byte is refused and not cut away."""
    files = bootstrapped(tmp_path, chain(3))
    files.record_commit(3)
    closed(files)
    damage(tmp_path, LAST_OFFSET + within)

    refused(tmp_path, "op 3")


def test_a_commit_is_recorded_once_and_never_before_the_bootstrap(tmp_path: Path) -> None:
    """A blank replica stays blank at a stop, and a known commit is not written again."""
    blank = opened(tmp_path)
    blank.record_commit(0)
    assert not blank.superblock.exists
    closed(blank)

    files = bootstrapped(tmp_path, chain(2))
    files.record_commit(2)
    written = files.superblock.sequence
    files.record_commit(2)
    files.record_commit(1)
    assert files.superblock.sequence == written
    assert files.superblock.state.commit_max == 2
    closed(files)


def test_a_lost_superblock_is_noticed_before_a_tail_is_cut(tmp_path: Path) -> None:
    """The lost superblock may know that the damaged record was committed, so the record stays."""
    files = bootstrapped(tmp_path, chain(3))
    files.record_commit(3)
    closed(files)
    superblock = (tmp_path / "superblock").read_bytes()
    damage(tmp_path, LAST_OFFSET + 200)
    (tmp_path / "superblock").unlink()
    refused(tmp_path, "there is no superblock")

    (tmp_path / "superblock").write_bytes(superblock)
    refused(tmp_path, "op 3")
    damage(tmp_path, LAST_OFFSET + 200)
    mended = opened(tmp_path)
    assert mended.journal.head is not None
    assert mended.journal.head.op == 3
    closed(mended)


def test_an_older_superblock_is_noticed_before_a_tail_is_cut(tmp_path: Path) -> None:
    """A superblock that never reached the journal's view says nothing about commits."""
    first = chain(1)
    files = bootstrapped(tmp_path, first)
    older = (tmp_path / "superblock").read_bytes()
    files.superblock.update(lambda state: replace(state, view=4, log_view=4))
    for prepare in chain(2, after=first[0], view=4):
        files.journal.append([prepare])
    closed(files)
    (tmp_path / "superblock").write_bytes(older)
    damage(tmp_path, LAST_OFFSET + 200)

    refused(tmp_path, "never reached its view")


def test_the_bootstrap_entry_is_not_torn_once_there_is_a_superblock(tmp_path: Path) -> None:
    """The superblock is written after op 1, so a damaged op 1 was complete, and is refused."""
    closed(bootstrapped(tmp_path, chain(1)))
    damage(tmp_path, SECTOR_BYTES + 200)

    refused(tmp_path, "op 1")


def test_a_bootstrap_that_was_cut_short_is_finished_or_begun_again(tmp_path: Path) -> None:
    """Without a superblock a whole op 1 is kept, and a torn one is cut: nobody was told of it."""
    files = opened(tmp_path)
    files.journal.append(chain(1))
    closed(files)
    kept = opened(tmp_path)
    assert kept.start.superblock is None
    assert [header.op for header in kept.start.suffix] == [1]
    closed(kept)

    damage(tmp_path, SECTOR_BYTES + 200)
    begun = opened(tmp_path)
    nonce, disk_id = begun.start.boot_nonce, begun.journal.public_id
    assert begun.start == vsr.Start(None, (), nonce, disk_id=disk_id)
    closed(begun)


def test_a_refused_start_writes_no_superblock(tmp_path: Path) -> None:
    """The opening write comes after the journal was examined."""
    files = bootstrapped(tmp_path, chain(3))
    closed(files)
    (tmp_path / SEGMENT).unlink()
    before = content(tmp_path)

    with pytest.raises(JournalError):
        opened(tmp_path)

    assert content(tmp_path) == before


class UnreadableHeader(MemoryStorage):
    """Cannot read the first sector of the first segment."""

    def check_read(self, path: str, offset: int, size: int) -> None:
        if path.endswith(SEGMENT.name) and offset == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_header_that_cannot_be_read_is_no_reason_to_end() -> None:
    """The start does without the header of the first segment, as without a damaged one."""
    storage = UnreadableHeader()
    options = DirectoryOptions(Path("data"), 0, 1, CLUSTER_ID, SEGMENT_BYTES)
    files = open_replica(options, storage)
    files.journal.append(chain(1))
    files.superblock.update(lambda state: replace(state, view=1, log_view=1))
    files.close()
    again = open_replica(options, storage)
    assert [header.op for header in again.start.suffix] == [1]
    assert again.recovery.repaired_headers
    again.close()
