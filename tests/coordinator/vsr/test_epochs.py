"""Who has a vote changes from epoch to epoch, while the cluster serves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.vsr import (
    ReadIndexRefused,
    ReadIndexRequested,
    RefusalReason,
    Refused,
    ReplicaStatus,
)
from coordinator.vsr.errors import CallerError
from coordinator.vsr.membership import Membership, epoch_of, view_in
from coordinator.vsr.messages import CommitMessage, StartViewChangeMessage, StartViewMessage
from tests.coordinator.vsr.cluster_harness import bootstrapped
from tests.coordinator.vsr.epoch_steps import JOIN_MS, change, primary_of, serves
from tests.coordinator.vsr.epoch_storm import changing_weather
from viewstamp.limits import SUSPICION_JITTER_MS, SUSPICION_MS


def test_a_standby_is_added_gets_a_vote_and_replaces_the_first_replica() -> None:
    """Three replicas become four, and three again, without the one that led."""
    cluster = bootstrapped(3, newcomer_count=1)

    change(cluster, (0, 1, 2), (3,))
    assert serves(cluster)
    change(cluster, (0, 1, 2, 3))
    assert serves(cluster)
    change(cluster, (1, 2, 3))
    assert serves(cluster)
    assert cluster.membership.epoch == 3
    assert cluster.machines[0].replica.status is ReplicaStatus.REMOVED
    assert cluster.machines[3].replica.is_voter


def test_a_cluster_grows_from_one_replica_to_seven_and_shrinks_to_one() -> None:
    """Every size is reached by adding and removing one replica after the other."""
    cluster = bootstrapped(1, newcomer_count=6)

    for newcomer in range(1, 7):
        change(cluster, tuple(range(newcomer)), (newcomer,))
        change(cluster, tuple(range(newcomer + 1)))
        assert serves(cluster)
    for removed in range(6):
        change(cluster, tuple(range(removed + 1, 7)))
        assert serves(cluster)
    assert cluster.membership.voters == (6,)


def test_the_primary_goes_on_without_an_election() -> None:
    """The first view of an epoch has the primary that the change names; nobody votes."""
    cluster = bootstrapped(3, newcomer_count=1)

    change(cluster, (0, 1, 2), (3,))

    assert primary_of(cluster) == 0
    assert {machine.replica.view for machine in cluster.machines} == {cluster.membership.first_view}


def test_nothing_is_admitted_behind_a_change() -> None:
    """The change is the last entry of its epoch: batches and reads wait for the next one."""
    cluster = bootstrapped(3, newcomer_count=1)
    cluster.change(0, cluster.next_epoch((0, 1, 2), (3,)))

    refused = [*cluster.batch(0), *cluster.step(0, ReadIndexRequested(1))]

    assert [
        effect.reason for effect in refused if isinstance(effect, Refused | ReadIndexRefused)
    ] == [RefusalReason.EPOCH_ENDING] * 2
    cluster.settle()
    cluster.start(3)
    cluster.pass_time(JOIN_MS)
    assert serves(cluster)


@pytest.mark.parametrize("primary_dies", [False, True])
def test_who_missed_the_change_is_told(primary_dies: bool) -> None:
    """A replica that was cut off in the old epoch enters the new one, also where it is removed."""
    cluster = bootstrapped(4)
    cluster.change(0, cluster.next_epoch((0, 1, 2)))
    cluster.settle(lambda to, message: to != 3)
    assert epoch_of(cluster.machines[3].replica.view) == 0

    if primary_dies:
        cluster.stop(0)
    cluster.pass_time(4 * (SUSPICION_MS + SUSPICION_JITTER_MS))

    assert cluster.machines[3].replica.status is ReplicaStatus.REMOVED
    cluster.batch(primary_of(cluster))
    cluster.pass_time(JOIN_MS)
    assert cluster.machines[1].applied_op == max(cluster.history) == 3


def test_a_removed_replica_remembers_that_over_a_restart() -> None:
    """Its superblock has the epoch in which it is no member, and it stays away."""
    cluster = bootstrapped(3)
    change(cluster, (1, 2))
    assert cluster.machines[0].replica.status is ReplicaStatus.REMOVED

    cluster.start(0)
    cluster.pass_time(JOIN_MS)

    assert cluster.machines[0].replica.status is ReplicaStatus.REMOVED
    assert serves(cluster)


def test_a_newcomer_that_lost_the_disk_which_the_change_names_gets_no_vote_by_it() -> None:
    """What it vouched for on the lost disk is forgotten: it asks for admission, as all do."""
    cluster = bootstrapped(3, newcomer_count=1)
    change(cluster, (0, 1, 2), (3,))
    change(cluster, (0, 1, 2, 3))
    cluster.stop(3)
    cluster.machines[3].lose_disk()
    began = cluster.membership.first_view

    cluster.start(3)
    cluster.pass_time(JOIN_MS)

    superblock = cluster.machines[3].superblock
    assert superblock is not None
    assert superblock.voting_view > began
    assert serves(cluster)


def test_all_members_are_in_the_next_epoch_without_waiting_for_a_timer() -> None:
    """The primary tells its members at once that the change is committed; its new log is not needed
    for that."""
    cluster = bootstrapped(4)

    cluster.change(0, cluster.next_epoch((0, 1, 2)))
    hints = StartViewChangeMessage | StartViewMessage | CommitMessage
    cluster.settle(lambda to, message: not isinstance(message, hints))

    assert {epoch_of(machine.replica.view) for machine in cluster.machines} == {1}
    assert [machine.replica.status for machine in cluster.machines] == [
        *3 * [ReplicaStatus.NORMAL],
        ReplicaStatus.REMOVED,
    ]


def test_a_change_for_another_epoch_is_refused() -> None:
    """A change that was made before another one ended the epoch has no effect."""
    cluster = bootstrapped(3)
    late = cluster.next_epoch((0, 1))
    change(cluster, (1, 2))

    effects = cluster.change(primary_of(cluster), late)

    assert [each.reason for each in effects if isinstance(each, Refused)] == [
        RefusalReason.OTHER_EPOCH
    ]


NOT_ONE_STEP = [
    ((0, 1, 2, 3), (), (), "names the disk"),
    ((0,), (), (), "at a time"),
    ((0, 1), (2,), (), "never becomes a standby"),
]


@pytest.mark.parametrize(("voters", "standbys", "disks", "reason"), NOT_ONE_STEP)
def test_a_change_that_is_not_one_step_is_a_defect_of_the_driver(
    voters: tuple[int, ...], standbys: tuple[int, ...], disks: tuple[()], reason: str
) -> None:
    """Votes are given and taken one at a time, with the disk, and no voter becomes a standby."""
    cluster = bootstrapped(3)

    with pytest.raises(CallerError, match=reason):
        cluster.change(0, Membership(view_in(1, 0), voters, standbys, disks))


def test_a_removed_replica_gives_the_entries_that_nobody_else_has() -> None:
    """It answers after a restart, too: a survivor may need the change, and find it nowhere else."""
    cluster = bootstrapped(3)
    cluster.change(0, cluster.next_epoch((1, 2)))
    cluster.settle(lambda to, message: to != 2)
    cluster.stop(1)
    assert cluster.machines[0].replica.status is ReplicaStatus.REMOVED

    cluster.start(0)
    cluster.pass_time(4 * (SUSPICION_MS + SUSPICION_JITTER_MS))

    assert epoch_of(cluster.machines[2].replica.view) == 1
    assert cluster.machines[2].replica.marks.commit_max == 2


def test_a_standby_that_missed_its_removal_asks() -> None:
    """It has no vote to ask for another view with, so it asks what became of its view."""
    cluster = bootstrapped(3, standby_count=1)
    cluster.change(0, cluster.next_epoch((0, 1, 2)))
    cluster.settle(lambda to, message: to != 3)
    assert epoch_of(cluster.machines[3].replica.view) == 0

    cluster.pass_time(4 * (SUSPICION_MS + SUSPICION_JITTER_MS))

    assert cluster.machines[3].replica.status is ReplicaStatus.REMOVED


def test_a_vote_is_given_through_a_snapshot_that_reaches_beyond_the_change() -> None:
    """The snapshot names the disk. A disk of an earlier epoch has promised nothing in this one."""
    cluster = bootstrapped(3, newcomer_count=1)
    change(cluster, (0, 1, 2), (3,))
    cluster.stop(3)
    cluster.change(0, cluster.next_epoch((0, 1, 2, 3)))
    cluster.pass_time(JOIN_MS)
    newcomer = cluster.machines[3]

    newcomer.told, newcomer.journal = cluster.membership, cluster.machines[0].journal[:]
    cluster.start(3, base_op=max(cluster.history))
    cluster.pass_time(JOIN_MS)

    assert newcomer.superblock is not None
    assert newcomer.superblock.voting_view == cluster.membership.first_view
    assert serves(cluster)


STEPS = 2000


@settings(max_examples=15)
@given(st.sampled_from([1, 2, 3, 3, 4, 5]), st.integers(min_value=0, max_value=2**32))
def test_no_storm_forks_or_loses_while_members_change(replica_count: int, seed: int) -> None:
    """Loss, partitions, crashes, and changes: one history, and all members agree afterwards."""
    storm = changing_weather(replica_count, seed, STEPS)

    assert max(storm.cluster.history) >= 1


@settings(max_examples=15)
@given(st.sampled_from([3, 4, 5]), st.integers(min_value=0, max_value=2**32))
def test_a_disk_may_be_lost_while_members_change(replica_count: int, seed: int) -> None:
    """With three voters or more a lost disk comes back with a vote, or is removed."""
    storm = changing_weather(replica_count, seed, STEPS, voters_min=3)

    assert max(storm.cluster.history) >= 1


def test_storms_end_epochs() -> None:
    """The storms change members many times, and give votes to replicas that had none."""
    storms = [changing_weather(count, seed, STEPS) for count in (1, 2, 3) for seed in range(8)]
    epochs = [epoch for storm in storms for epoch in storm.cluster.memberships.values()]

    assert len(epochs) - len(storms) > 24
    assert sum(bool(epoch.disks) for epoch in epochs) > 5
