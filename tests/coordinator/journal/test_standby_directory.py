"""A standby's directory remembers its kind: it never starts as a replica that votes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator import vsr
from coordinator.journal.errors import CorruptJournal, SuperblockNotMonotonic
from coordinator.replica.data_directory import DirectoryOptions, ReplicaFiles, open_replica
from coordinator.replica.epoch_membership import from_superblock
from coordinator.replica.start import WrongDirectoryError
from coordinator.snapshot.errors import TransferFailed
from coordinator.vsr import view_in
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES
from viewstamp.format.epoch_members import EpochMembers
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


GROWN = EpochMembers(view_in(3, 0), (0, 3), (7,), ((3, b"d" * 16),), 90, b"c" * 16)


def grown(path: Path, replica_id: int, members: EpochMembers, voting_view: int = 0) -> None:
    """Leave the directory of a replica of three founders' cluster whose members changed."""
    follows = replica_id in members.standbys
    files = open_replica(
        DirectoryOptions(path, replica_id, 3, CLUSTER_ID, SEGMENT_BYTES, follows=follows)
    )
    membership = from_superblock(members)
    vote = NOT_ADMITTED if follows else voting_view
    files.superblock.write_core(vsr.CoreState(members.first_view, 0, 0, vote, membership))
    files.close()


@pytest.mark.parametrize("count", [None, 3])
@pytest.mark.parametrize(("replica_id", "is_standby"), [(0, False), (3, False), (7, True)])
def test_who_was_added_starts_again_by_what_its_directory_says(
    tmp_path: Path, replica_id: int, is_standby: bool, count: int | None
) -> None:
    """A promoted standby has a number beyond the founding count, and a vote. The flags of a
    founder say the count; those of a replica that joined say none."""
    grown(tmp_path, replica_id, GROWN)
    files = opened_by(tmp_path, replica_id, count)
    state = files.superblock.state
    assert (state.is_standby, state.voter_count, state.is_alone) == (is_standby, 2, False)
    assert files.start.superblock is not None
    assert files.start.superblock.membership == from_superblock(GROWN)
    assert not files.journal.is_alone
    files.close()


@pytest.mark.parametrize(("replica_id", "voters"), [(0, (0, 3)), (7, (3,)), (0, (3,))])
def test_what_a_member_lost_comes_from_others(
    tmp_path: Path, replica_id: int, voters: tuple[int, ...]
) -> None:
    """A journal that lacks everything is opened where others have the log, a standby's too."""
    grown(tmp_path, replica_id, with_voters(*voters))
    files = opened_by(tmp_path, replica_id, None)
    assert (files.journal.is_alone, files.superblock.state.is_alone) == (False, False)
    files.close()


def test_what_the_last_voter_lost_is_gone(tmp_path: Path) -> None:
    """Its disk alone has the log, whatever number of replicas once founded the cluster."""
    grown(tmp_path, 3, with_voters(3))
    with pytest.raises(CorruptJournal, match="op 1 was committed"):
        opened_by(tmp_path, 3, None)


def with_voters(*voters: int) -> EpochMembers:
    """Return members of whom these have a vote."""
    disks = tuple(each for each in GROWN.disks if each[0] in voters)
    return replace(GROWN, voters=voters, disks=disks)


def test_a_directory_of_a_newcomer_is_not_that_of_a_lone_founder(tmp_path: Path) -> None:
    """Before its first superblock nothing but its id tells a newcomer of a cluster of one."""
    files = opened(tmp_path, 1, 1)
    assert not files.superblock.state.is_alone
    files.close()


def opened_by(path: Path, replica_id: int, count: int | None) -> ReplicaFiles:
    """Open a directory with the founding count, or without one as a replica that joined."""
    return open_replica(DirectoryOptions(path, replica_id, count, CLUSTER_ID, SEGMENT_BYTES))
