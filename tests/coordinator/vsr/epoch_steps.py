"""Changes of members in the test cluster, step by step."""

from __future__ import annotations

from coordinator.vsr import ReplicaStatus
from tests.coordinator.vsr.cluster_harness import CoreCluster

JOIN_MS = 1_000


def primary_of(cluster: CoreCluster) -> int:
    """The one replica that leads the last epoch."""
    (leader,) = (
        machine.index
        for machine in cluster.voters
        if machine.replica.status is ReplicaStatus.NORMAL
        and machine.replica.primary == machine.index
    )
    return leader


def change(cluster: CoreCluster, voters: tuple[int, ...], standbys: tuple[int, ...] = ()) -> None:
    """Change the members, start those that are new, and let all settle."""
    leader = primary_of(cluster)
    place = voters.index(leader) if leader in voters else 0
    cluster.change(leader, cluster.next_epoch(voters, standbys, place))
    cluster.settle()
    for replica in (*voters, *standbys):
        if replica in cluster.stopped:
            cluster.start(replica)
    cluster.pass_time(JOIN_MS)


def serves(cluster: CoreCluster) -> bool:
    """Whether a batch is executed by every member of the last epoch."""
    leader = primary_of(cluster)
    cluster.batch(leader)
    cluster.pass_time(JOIN_MS)
    members = [cluster.machines[each] for each in cluster.membership.members]
    return all(machine.applied_op == max(cluster.history) for machine in members)
