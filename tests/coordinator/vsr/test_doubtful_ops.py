"""Doubtful ops above the primary's head: the record that took them out of the log was lost."""

from __future__ import annotations

from coordinator.vsr import ReplicaStatus
from tests.coordinator.vsr.cluster_harness import CoreCluster, bootstrapped
from tests.coordinator.vsr.test_damage_and_restarts import child

PRIMARY, DOUBTFUL = 0, 2
LONG_MS = 5_000


def with_doubtful_ops() -> CoreCluster:
    """Restart replica 2 with damaged ops 5 and 6, which no other replica ever had."""
    cluster = bootstrapped(3)
    for _ in range(3):
        cluster.batch(PRIMARY)
        cluster.pass_time(50)
    machine = cluster.machines[DOUBTFUL]
    for _ in range(2):
        machine.journal.append(child(machine.journal[-1], 0))
    machine.damaged = {5, 6}
    cluster.stop(DOUBTFUL)
    cluster.start(DOUBTFUL)
    return cluster


def test_an_idle_cluster_frees_a_replica_of_its_doubts() -> None:
    """The primary's log proves that nobody acknowledged the doubtful ops, and they are
    discarded."""
    cluster = with_doubtful_ops()

    cluster.pass_time(LONG_MS)

    machine = cluster.machines[DOUBTFUL]
    assert machine.replica.status is ReplicaStatus.NORMAL
    assert machine.replica.marks.op == len(machine.journal) == 4


def test_the_freed_replica_helps_to_elect() -> None:
    """When the primary dies while the cluster is idle, the two others go on without it."""
    cluster = with_doubtful_ops()
    cluster.pass_time(LONG_MS)

    cluster.stop(PRIMARY)
    cluster.pass_time(LONG_MS)

    others = [cluster.machines[1].replica, cluster.machines[DOUBTFUL].replica]
    assert [each.status for each in others] == [ReplicaStatus.NORMAL] * 2
    assert {each.marks.view for each in others} == {1}
