"""A replica that is behind catches up, whatever else it is missing."""

from __future__ import annotations

from coordinator.vsr import Message, ReplicaStatus
from coordinator.vsr.messages import CommittedMessage, RepairMessage
from tests.coordinator.vsr.cluster_harness import CoreCluster, bootstrapped
from viewstamp.limits import CATCH_UP_OPS, REPAIR_RESEND_MS

PRIMARY, BEHIND = 0, 2
DAMAGED_OP = 2
HELD_OPS = 5
MISSED_OPS = 5 * CATCH_UP_OPS


def without_the_damaged(to: int, message: Message) -> bool:
    """Lose every copy of one entry."""
    if isinstance(message, CommittedMessage | RepairMessage):
        return message.prepare.header.op != DAMAGED_OP
    return True


def behind_with_damage() -> CoreCluster:
    """A backup was down for five windows of entries, and one of its records is damaged."""
    cluster = bootstrapped(3)
    write(cluster, HELD_OPS)
    cluster.pass_time(100)
    cluster.stop(BEHIND)
    write(cluster, MISSED_OPS)
    return cluster


def write(cluster: CoreCluster, count: int) -> None:
    """Let the primary commit entries, one by one."""
    for _ in range(count):
        cluster.batch(PRIMARY)
        cluster.pass_time(10)


def test_an_entry_that_nobody_gives_does_not_slow_catching_up() -> None:
    """Window follows window before a second timeout, though a damaged entry finds no answer."""
    cluster = behind_with_damage()
    machine = cluster.machines[BEHIND]
    machine.damaged = {DAMAGED_OP}
    cluster.start(BEHIND)

    cluster.pass_time(2 * REPAIR_RESEND_MS, without_the_damaged)

    assert machine.replica.marks.op == len(cluster.machines[PRIMARY].journal)
    assert machine.executed_op < DAMAGED_OP
    cluster.pass_time(1_000)
    assert machine.executed_op == 1 + HELD_OPS + MISSED_OPS
    assert machine.replica.status is ReplicaStatus.NORMAL
