"""A newcomer that lost its disk, and a StartView that was sent to its previous life."""

from __future__ import annotations

from coordinator.vsr import Dropped, DropRule, ReplicaStatus
from coordinator.vsr.messages import (
    CommittedMessage,
    Message,
    PrepareMessage,
    RepairMessage,
    StartViewMessage,
)
from tests.coordinator.vsr.cluster_harness import CoreCluster, bootstrapped

PRIMARY, FULL, LOST = 0, 1, 2
ACKNOWLEDGED_OPS = 6


def op_of(message: Message) -> int:
    """Return the op of the entry in a message; 0 if it has none."""
    if isinstance(message, PrepareMessage | RepairMessage | CommittedMessage):
        return message.prepare.header.op
    return 0


def while_one_disk_is_full(to: int, message: Message) -> bool:
    """Let FULL hear its primary and confirm heartbeats, without taking an entry."""
    return to != FULL or op_of(message) == 0


def while_answers_are_late(to: int, message: Message) -> bool:
    """Let LOST hear of the cluster, but of neither its log nor the newest entries."""
    is_late = isinstance(message, StartViewMessage) or op_of(message) > 3
    return while_one_disk_is_full(to, message) and not (to == LOST and is_late)


def question_answered(cluster: CoreCluster) -> StartViewMessage:
    """Return the answers to LOST about the log, of which a second copy is late."""
    answers: list[StartViewMessage] = []

    def arrives(to: int, message: Message) -> bool:
        if to == LOST and isinstance(message, StartViewMessage):
            answers.append(message)
        return True

    cluster.pass_time(200, arrives)
    return answers[0]


def lost_its_disk() -> tuple[CoreCluster, StartViewMessage]:
    """LOST vouched for three entries that FULL has not, and then lost its disk.

    Return a StartView without them that was sent to LOST before.
    """
    cluster = bootstrapped(3)
    for _ in range(2):
        cluster.batch(PRIMARY)
        cluster.pass_time(50)
    cluster.start(LOST)
    late = question_answered(cluster)
    for _ in range(3):
        cluster.batch(PRIMARY)
        cluster.pass_time(20, while_one_disk_is_full)
    assert max(cluster.history) == ACKNOWLEDGED_OPS
    cluster.machines[LOST].lose_disk()
    cluster.start(LOST)
    cluster.pass_time(60, while_answers_are_late)
    assert late.head_op == 3
    return cluster, late


def test_a_late_start_view_of_the_previous_life_is_dropped() -> None:
    """A newcomer takes no log that it did not ask for in this boot."""
    cluster, late = lost_its_disk()

    effects = cluster.receive(LOST, late)

    (dropped,) = (effect for effect in effects if isinstance(effect, Dropped))
    assert dropped.rule is DropRule.UNASKED_START_VIEW
    assert cluster.machines[LOST].replica.status is ReplicaStatus.RECOVERING


def test_what_a_newcomers_previous_life_vouched_for_survives_the_primary() -> None:
    """A newcomer elects nobody before it has all acknowledged entries again.

    It is not admitted while its answers are late. Once they come, it is admitted with all entries,
    which survive the end of the only other replica that has them.
    """
    cluster, late = lost_its_disk()
    acknowledged = dict(cluster.history)
    cluster.receive(LOST, late)

    primary = cluster.machines[PRIMARY].replica
    for arrives in (while_answers_are_late, while_one_disk_is_full):
        for _ in range(200):
            if primary.view == 0:  # until it resigns for the newcomer
                cluster.pass_time(10, arrives)
    assert primary.view > 0
    cluster.stop(PRIMARY)
    cluster.pass_time(3_000)
    leader = next(
        machine.index
        for machine in cluster.machines[FULL:]
        if machine.replica.primary == machine.index
    )
    cluster.batch(leader)
    cluster.pass_time(300)
    assert {op: cluster.history[op] for op in acknowledged} == acknowledged
    assert max(cluster.history) > ACKNOWLEDGED_OPS
