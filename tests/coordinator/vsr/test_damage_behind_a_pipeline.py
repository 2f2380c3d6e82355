"""Damage more than a pipeline below the head, known to be committed only by its own replica."""

from __future__ import annotations

import pytest

from coordinator.vsr import Abdicate, PersistPrepares, RecordFaulty, ReplicaStatus, Send
from coordinator.vsr.log import LOG_TAIL_PREPARES
from coordinator.vsr.messages import (
    CommitMessage,
    DoViewChangeMessage,
    PrepareMessage,
    StartViewMessage,
)
from tests.coordinator.vsr.cluster_harness import CoreCluster, bootstrapped
from viewstamp.limits import (
    FORFEIT_LAG_OPS,
    PIPELINE_PREPARES_MAX,
    REPAIR_RESEND_MS,
    VIEW_CHANGE_MS_MAX,
)

LATER_VIEW = 2
NEWS = (DoViewChangeMessage, StartViewMessage, PrepareMessage, CommitMessage)
"""What would let replica 1 lead view 1, follow in view 2, or learn what is committed."""


def fill_pipeline(cluster: CoreCluster) -> None:
    """Have replica 0 sequence as many entries as may be uncommitted."""
    for _ in range(PIPELINE_PREPARES_MAX):
        cluster.batch(0)


def is_lost(send: Send) -> bool:
    """Whether it is one of the messages that replica 1 is not to get."""
    return send.to_replica == 1 and isinstance(send.message, NEWS)


def settle(cluster: CoreCluster) -> None:
    """Let everything under way happen, except what is lost."""
    cluster.network = [item for item in cluster.network if not is_lost(item[1])]
    for machine in cluster.machines:
        while machine.can_apply:
            cluster.apply(machine.index)
        if machine.writes:
            cluster.sync(machine.index)
        if machine.superblock_write is not None:
            cluster.sync_superblock(machine.index)
    while cluster.network:
        cluster.deliver()
        settle(cluster)


def one_behind_in_an_earlier_view() -> CoreCluster:
    """Ops 1 to 10 are committed, and on both disks; replica 1 knows so of 2 of them.

    Replica 0 took over the log of view 2, which replica 1 is only on its way to, and has sequenced
    a whole pipeline of entries since.
    """
    cluster = bootstrapped(2)
    cluster.batch(0)
    cluster.pass_time(100)
    fill_pipeline(cluster)
    cluster.settle()
    cluster.network.clear()
    cluster.step(0, Abdicate("asked to"))
    first = cluster.machines[0]
    while (
        first.replica.marks.log_view < LATER_VIEW
        or first.replica.status is not ReplicaStatus.NORMAL
    ):
        settle(cluster)
        cluster.now_ticks += 1
        for machine in cluster.machines:
            cluster.tick(machine.index)
    fill_pipeline(cluster)
    settle(cluster)
    return cluster


@pytest.mark.parametrize("damaged", [{3}, {7}, {8, 9}, {5, 10}])
def test_a_peer_that_knows_of_no_commit_gives_what_is_damaged(damaged: set[int]) -> None:
    """The peer is asked by checksum, which the entry after the damaged one tells; both go on."""
    cluster = one_behind_in_an_earlier_view()
    first, second = cluster.machines
    assert (first.replica.marks.op, first.replica.marks.commit_max) == (18, 10)
    assert (second.replica.marks.op, second.replica.marks.commit_max) == (10, 2)
    assert (first.replica.marks.log_view, second.replica.marks.log_view) == (LATER_VIEW, 0)

    first.damaged = set(damaged)
    cluster.start(0)
    cluster.pass_time(VIEW_CHANGE_MS_MAX)

    assert first.damaged == set()
    assert [each.replica.status for each in cluster.machines] == [ReplicaStatus.NORMAL] * 2
    assert [each.replica.marks.applied_op for each in cluster.machines] == [10, 10]


@pytest.mark.parametrize("damaged", [{5}, {3, 10}, {5, 6, 7}, {3, 4, 5, 6, 7, 8, 9, 10}])
def test_the_chain_tells_what_is_damaged_far_below_the_head(damaged: set[int]) -> None:
    """One member is gone for good; the other has the entries, and cannot know they are committed.

    It learns of commits only from the damaged replica, only up to the damage, and its log is that
    of an earlier view. So it is asked by checksum. The entry after the damaged one tells the
    checksum, though it is no longer in memory.
    """
    cluster = bootstrapped(3)
    cluster.batch(0)
    cluster.pass_time(100)
    fill_pipeline(cluster)
    while cluster.network:
        cluster.deliver()
    cluster.sync(1)
    cluster.stop(1)
    first, second, third = cluster.machines
    cluster.step(0, Abdicate("asked to"))
    cluster.pass_time(VIEW_CHANGE_MS_MAX)
    assert (third.replica.status, third.replica.primary) == (ReplicaStatus.NORMAL, 2)
    for _ in range(LOG_TAIL_PREPARES + 8):
        cluster.settle()
        cluster.batch(2)
    cluster.pass_time(100)
    head_op = first.replica.marks.op
    assert head_op - LOG_TAIL_PREPARES > max(damaged)
    assert head_op - len(second.journal) <= FORFEIT_LAG_OPS

    cluster.stop(2)
    first.damaged = set(damaged)
    cluster.start(1)
    assert second.replica.marks.commit_max == 2
    cluster.start(0)
    cluster.pass_time(2 * VIEW_CHANGE_MS_MAX)

    assert first.damaged == set()
    assert [each.replica.status for each in (first, second)] == [ReplicaStatus.NORMAL] * 2
    assert second.replica.marks.applied_op >= head_op


def test_a_damaged_record_is_not_held() -> None:
    """Rewriting a damaged record takes room, even if memory still has the entry."""
    cluster = bootstrapped(3)
    cluster.batch(0)
    cluster.settle()
    machine = cluster.machines[1]
    entry, other = machine.journal[1], machine.journal[0].checksum
    assert machine.replica.holds(2, entry.checksum)
    assert not machine.replica.holds(2, other)
    assert not machine.replica.holds(3, entry.checksum)

    cluster.step(1, RecordFaulty(2))

    assert not machine.replica.holds(2, entry.checksum)
    cluster.settle()
    assert machine.replica.holds(2, entry.checksum)


@pytest.mark.parametrize("index", [0, 1], ids=["primary", "backup"])
def test_a_damaged_record_without_room_comes_from_a_peer(index: int) -> None:
    """A full disk is not written to, even if memory has the entry; a peer's copy is admitted
    once there is room, and does not count before."""
    cluster = bootstrapped(3)
    cluster.batch(0)
    cluster.settle()
    machine = cluster.machines[index]
    entry = machine.journal[1]
    machine.damaged.add(2)

    effects = cluster.step(index, RecordFaulty(2, has_room=False))

    assert not [effect for effect in effects if isinstance(effect, PersistPrepares)]
    assert not machine.replica.holds(2, entry.checksum)
    cluster.pass_time(REPAIR_RESEND_MS)
    assert machine.replica.holds(2, entry.checksum)
    assert machine.damaged == set()
    # Nothing is left behind that would hold up the log.
    for _ in range(2 * LOG_TAIL_PREPARES):
        cluster.batch(0)
        cluster.settle()
    assert [each.replica.marks.op for each in cluster.machines] == [2 + 2 * LOG_TAIL_PREPARES] * 3
