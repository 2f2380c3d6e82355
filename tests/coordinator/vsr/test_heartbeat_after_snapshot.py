"""A primary whose journal begins right behind the last committed entry, after a snapshot."""

from __future__ import annotations

from coordinator.vsr import ReplicaStatus
from coordinator.vsr.messages import PrepareOkMessage
from tests.coordinator.vsr.cluster_harness import CoreCluster, bootstrapped
from viewstamp.limits import TICK_MS


def pass_time_without_acks(cluster: CoreCluster, duration_ms: int) -> None:
    """Let time pass for those that run, while every acknowledgement of an entry is lost."""
    running = [machine for machine in cluster.machines if machine.index not in cluster.stopped]
    for _ in range(duration_ms // TICK_MS):
        cluster.now_ticks += 1
        for machine in running:
            cluster.tick(machine.index)
        while cluster.network or any(m.writes or m.superblock_write for m in running):
            if cluster.network and isinstance(cluster.network[0][1].message, PrepareOkMessage):
                cluster.network.pop(0)
            elif cluster.network:
                cluster.deliver()
            else:
                for machine in running:
                    cluster.settle_disk(machine)


def test_a_heartbeat_names_an_entry_that_only_the_snapshot_has() -> None:
    """The next entry tells its checksum; otherwise all backups, which hold the entry, would end."""
    cluster = bootstrapped(3)
    cluster.pass_time(50)
    for _ in range(3):
        cluster.batch(0)
        cluster.settle()
    cluster.pass_time(50)
    cluster.batch(0)
    cluster.deliver(0)
    cluster.deliver(0)
    for index in (1, 2):
        cluster.sync(index)
    cluster.stop(0)
    first, second = cluster.machines[1:]
    first.damaged = {1, 2, 3, 4}
    cluster.start(1, base_op=4)

    pass_time_without_acks(cluster, 2_000)

    assert first.replica.marks.log_view == second.replica.marks.log_view == 1
    assert (first.replica.marks.op, first.replica.marks.commit_max) == (5, 4)
    assert second.replica.status is ReplicaStatus.NORMAL
    cluster.pass_time(500)
    assert [each.replica.marks.applied_op for each in (first, second)] == [5, 5]
