"""Logs of a view that come too late, to a replica that has caught up with more and restarted."""

from __future__ import annotations

from dataclasses import replace

from coordinator.vsr import Dropped, DropRule, ReplicaStatus
from coordinator.vsr.effects import Effect
from coordinator.vsr.messages import CommittedMessage, StartViewChangeMessage, StartViewMessage
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, CoreCluster, bootstrapped
from viewstamp.format.prepare import SealedHeader
from viewstamp.limits import SUSPICION_JITTER_MS, SUSPICION_MS, TICK_MS

NONCE = bytes(16)
PATIENCE_MS = SUSPICION_MS + SUSPICION_JITTER_MS


def rules(effects: list[Effect]) -> list[DropRule]:
    """The rules by which messages were dropped."""
    return [effect.rule for effect in effects if isinstance(effect, Dropped)]


def leave(cluster: CoreCluster, index: int) -> None:
    """Let a backup suspect the primary of view 0, and hear that the others do, too."""
    cluster.now_ticks += 2 * PATIENCE_MS // TICK_MS
    cluster.tick(index)
    for other in {0, 1, 2} - {index}:
        cluster.receive(index, StartViewChangeMessage(CLUSTER_ID, other, 1))


def caught_up_before_the_view(*, enters: bool) -> tuple[CoreCluster, SealedHeader]:
    """Commit entry 2 of view 1 without replica 2, which has it only by catching up.

    Then replica 2 restarts, and no longer knows of the commit. It is in view 0, or on the way to
    the log of view 1 if it `enters`.
    """
    cluster = bootstrapped(3)
    cluster.pass_time(50)
    cluster.stopped.add(2)
    leave(cluster, 1)
    cluster.pass_time(PATIENCE_MS)
    cluster.batch(1)
    cluster.settle()
    cluster.stopped.discard(2)
    entry = cluster.machines[1].journal[1]
    if enters:
        leave(cluster, 2)
        cluster.sync_superblock(2)
    cluster.receive(2, CommittedMessage(CLUSTER_ID, 1, entry, 2))
    cluster.sync(2)
    cluster.machines[2].superblock_write = None
    cluster.network.clear()
    cluster.start(2)
    assert isinstance(entry.header, SealedHeader)
    assert entry.view == 1
    assert cluster.machines[2].replica.marks.commit_max == 1
    return cluster, entry.header


def test_a_start_view_with_less_than_this_replica_caught_up_with_is_stale() -> None:
    """An old StartView of a view does not take away its committed entries after a restart."""
    cluster, entry = caught_up_before_the_view(enters=True)

    effects = cluster.receive(2, StartViewMessage(CLUSTER_ID, 1, 1, NONCE, 1, 1, ()))

    assert rules(effects) == [DropRule.STALE_START_VIEW]
    cluster.pass_time(PATIENCE_MS)
    assert cluster.machines[2].replica.marks.applied_op == entry.op, "the primary was asked"
    assert cluster.machines[2].replica.status is ReplicaStatus.NORMAL


def test_a_start_view_of_a_view_before_an_own_entry_is_stale() -> None:
    """The primary of view 0 does not know that view 1 began; the replica with an entry of it
    does."""
    cluster, entry = caught_up_before_the_view(enters=False)
    other = replace(entry, view=0, checksum=bytes(len(entry.checksum)))

    effects = cluster.receive(2, StartViewMessage(CLUSTER_ID, 0, 0, NONCE, 1, 2, (other,)))

    assert rules(effects) == [DropRule.STALE_START_VIEW]
    cluster.pass_time(PATIENCE_MS)
    assert cluster.machines[2].replica.marks.applied_op == entry.op, "it follows in view 1"
    assert cluster.machines[2].replica.view == 1
