"""A standby's directory remembers its kind: it never starts as a replica that votes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator import vsr
from coordinator.journal.errors import SuperblockNotMonotonic
from coordinator.replica.data_directory import DirectoryOptions, ReplicaFiles, open_replica
from coordinator.replica.start import WrongDirectoryError
from coordinator.snapshot.errors import TransferFailed
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES
from viewstamp.format.superblock import NOT_ADMITTED


def opened(path: Path, replica_id: int, replica_count: int) -> ReplicaFiles:
    """Open the directory as a process with these flags does."""
    return open_replica(
        DirectoryOptions(path, replica_id, replica_count, CLUSTER_ID, SEGMENT_BYTES)
    )


def written(path: Path, replica_id: int, voting_view: int) -> None:
    """Leave the directory of a replica of three whose core wrote its first superblock."""
    files = opened(path, replica_id, 3)
    files.superblock.write_core(vsr.CoreState(0, 0, 0, voting_view))
    files.close()


def test_a_standby_starts_again_as_one(tmp_path: Path) -> None:
    """A standby's superblock comes back with a number beyond the voters, and without a vote."""
    written(tmp_path, 3, NOT_ADMITTED)

    files = opened(tmp_path, 3, 3)

    assert files.superblock.state.is_standby
    assert files.start.superblock == vsr.CoreState(0, 0, 0, NOT_ADMITTED)
    files.close()


@pytest.mark.parametrize(("replica_id", "replica_count"), [(3, 4), (0, 3), (2, 3)])
def test_a_standby_never_starts_as_a_voter(
    tmp_path: Path, replica_id: int, replica_count: int
) -> None:
    """A standby never starts as a voter, whatever count and number it is given."""
    written(tmp_path, 3, NOT_ADMITTED)

    with pytest.raises(WrongDirectoryError, match="belongs to standby 3 beside 3 replicas, and a"):
        opened(tmp_path, replica_id, replica_count)


@pytest.mark.parametrize(("replica_id", "replica_count"), [(2, 2), (3, 3)])
def test_a_voter_never_starts_as_a_standby(
    tmp_path: Path, replica_id: int, replica_count: int
) -> None:
    """A voter never starts as a standby: its acknowledgements would vanish from quorums."""
    written(tmp_path, 2, 0)

    with pytest.raises(WrongDirectoryError, match=r"belongs to replica 2 of 3, which has a vote"):
        opened(tmp_path, replica_id, replica_count)


def test_another_count_beside_a_standby_is_refused(tmp_path: Path) -> None:
    """A standby belongs beside the number of replicas that its cluster was bootstrapped with."""
    written(tmp_path, 3, NOT_ADMITTED)

    with pytest.raises(WrongDirectoryError, match="bootstrapped for 3 replicas, not 2"):
        opened(tmp_path, 3, 2)


def test_no_superblock_of_a_standby_says_that_it_votes(tmp_path: Path) -> None:
    """Only its core writes a standby's first superblock, and never one that votes."""
    files = opened(tmp_path, 3, 3)

    assert files.superblock.state.voting_view == NOT_ADMITTED
    with pytest.raises(TransferFailed):
        files.record_transferred(1, 5)
    with pytest.raises(ValueError, match="replica 3 is a standby, but may vote from 0 on"):
        files.superblock.update(lambda state: replace(state, voting_view=0))
    assert not files.superblock.exists
    files.close()


def test_a_standby_is_never_admitted(tmp_path: Path) -> None:
    """A standby's superblock takes no view to vote in; that of a replica without its disk does."""
    written(tmp_path, 3, NOT_ADMITTED)
    files = opened(tmp_path, 3, 3)

    with pytest.raises(SuperblockNotMonotonic, match="replica 3 is a standby, but may vote from 4"):
        files.superblock.write_core(vsr.CoreState(4, 4, 0, 4))
    files.close()
