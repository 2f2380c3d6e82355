"""An initial member that missed op 1 helps to elect once another replica has lost its disk."""

from __future__ import annotations

import pytest

from coordinator.vsr import Abdicate, Message, ReplicaStatus
from coordinator.vsr.log import LOG_TAIL_PREPARES
from tests.coordinator.vsr.cluster_harness import Arrives, CoreCluster

LATE = 2
LONG_MS = 5_000


def cut_off(late: int) -> Arrives:
    """Nothing reaches this replica."""

    def arrives(to: int, message: Message) -> bool:
        return late not in (to, message.from_replica)

    return arrives


def bootstrapped_without(late: int, entries: int) -> CoreCluster:
    """A cluster of three, one of which said that it was blank and heard nothing since."""
    cluster = CoreCluster(3)
    for machine in reversed(cluster.machines):
        cluster.start(machine.index)
    cluster.settle()
    cluster.found(0)
    cluster.settle(cut_off(late))
    for _ in range(entries):
        cluster.batch(0)
        cluster.pass_time(100, cut_off(late))
    return cluster


def lose_disk(cluster: CoreCluster, index: int) -> None:
    """Give a replica an empty disk, and start it."""
    cluster.stop(index)
    cluster.machines[index].lose_disk()
    cluster.start(index)


def statuses(cluster: CoreCluster) -> list[ReplicaStatus]:
    """Where all replicas stand."""
    return [machine.replica.status for machine in cluster.machines]


@pytest.mark.parametrize("entries", [3, LOG_TAIL_PREPARES + 5], ids=["in memory", "in the journal"])
def test_the_founder_lost_its_disk(entries: int) -> None:
    """The replica that is left and the late initial member elect, and admit the one without memory.

    Nobody but a primary sends heartbeats, and the bootstrap primary is blank.
    """
    cluster = bootstrapped_without(LATE, entries)
    head_op = max(cluster.history)
    lose_disk(cluster, 0)
    cluster.pass_time(LONG_MS)

    assert statuses(cluster) == [ReplicaStatus.NORMAL] * 3
    assert all(machine.replica.is_voter for machine in cluster.machines)
    assert [machine.executed_op for machine in cluster.machines] == [head_op] * 3


def test_a_later_primary_lost_its_disk() -> None:
    """The same holds where the primary that is gone is not the one that founded the cluster."""
    cluster = bootstrapped_without(LATE, 3)
    cluster.step(0, Abdicate("asked to"))
    cluster.pass_time(1_000, cut_off(LATE))
    assert cluster.machines[1].replica.primary == 1
    cluster.batch(1)
    cluster.pass_time(100, cut_off(LATE))
    head_op = max(cluster.history)
    lose_disk(cluster, 1)
    cluster.pass_time(LONG_MS)

    assert statuses(cluster) == [ReplicaStatus.NORMAL] * 3
    assert max(cluster.history) == head_op
    assert [machine.executed_op for machine in cluster.machines] == [head_op] * 3


def test_a_late_member_that_started_anew_has_no_vote() -> None:
    """Op 1 names its earlier boot: it may have forgotten something, and the cluster waits."""
    cluster = bootstrapped_without(LATE, 3)
    lose_disk(cluster, 0)
    cluster.start(LATE)
    cluster.pass_time(LONG_MS)

    blank = ReplicaStatus.BLANK
    assert [statuses(cluster)[index] for index in (0, LATE)] == [blank, blank]
    assert not cluster.machines[LATE].journal


def test_a_truncated_op_1_changes_nothing() -> None:
    """Where a snapshot took the place of op 1 nothing proves that the late replica may vote."""
    cluster = bootstrapped_without(LATE, LOG_TAIL_PREPARES + 5)
    cluster.machines[1].first_held_op = 8
    lose_disk(cluster, 0)
    cluster.pass_time(LONG_MS)

    assert statuses(cluster)[LATE] is ReplicaStatus.BLANK
