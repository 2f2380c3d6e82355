"""Logs that differ from the own one, or from the entries committed since in a later view."""

from __future__ import annotations

import pytest

from coordinator.vsr import DiscardAfter, DropRule, PersistPrepares, ReplicaStatus
from coordinator.vsr.messages import (
    CommittedMessage,
    DoViewChangeMessage,
    PrepareHeader,
    RepairMessage,
    StartViewMessage,
)
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID
from tests.coordinator.vsr.test_view_change_statements import NONCE, quiet, rules
from viewstamp.format.prepare import SealedPrepare, seal


def another_entry_after(parent: PrepareHeader, view: int) -> SealedPrepare:
    """An entry that the primary of `view` sequenced after `parent`."""
    return seal(
        parent=parent.checksum,
        cluster_id=CLUSTER_ID,
        view=view,
        op=parent.op + 1,
        commit=parent.op,
        first_revision=parent.last_revision + 1,
        command_count=1,
        feature_level=parent.feature_level,
        timestamp=parent.timestamp + 1,
        body=b"another",
    )


def test_an_entry_is_discarded_before_the_chosen_one_in_its_place_is_asked_for() -> None:
    """The order holds even if only the votes told that the earlier entries are committed (seed
    1448)."""
    cluster = quiet(3)
    for _ in range(3):
        cluster.batch(0)
    while cluster.network:
        cluster.deliver()
    cluster.sync(1)
    cluster.sync(2, count=1)
    cluster.network.clear()
    assert cluster.machines[1].replica.marks.commit_max == 1
    kept = cluster.machines[1].journal[1]
    chosen = another_entry_after(kept.header, view=3)
    headers = (kept.header, chosen.header)
    vote = DoViewChangeMessage(CLUSTER_ID, 2, 4, 3, 2, 3, headers, (), head_uncertain=False)

    cluster.receive(1, vote)
    taken_over = cluster.sync_superblock(1)
    repaired = cluster.receive(1, RepairMessage(CLUSTER_ID, 2, chosen))

    assert [e.op for e in taken_over if isinstance(e, DiscardAfter)] == [2]
    assert [e.prepares for e in repaired if isinstance(e, PersistPrepares)] == [(chosen,)]


@pytest.mark.parametrize("head_op", [2, 3])
def test_a_log_without_what_was_committed_since_is_not_taken_over(head_op: int) -> None:
    """A primary that was cut off still answers; a later view replaced its entries (seed 1726).

    Entries after a replaced one, or in the place of a committed one, must not count.
    """
    cluster = quiet(5)
    cluster.batch(0)
    cluster.batch(0)
    cluster.sync(0)
    cluster.network.clear()
    old = cluster.machines[0].journal[1:3]
    cluster.stop(0)
    cluster.stop(4)
    cluster.pass_time(2_000)
    cluster.batch(1)
    cluster.pass_time(100)
    committed = cluster.machines[1].journal[1]
    assert committed.checksum != old[0].checksum
    cluster.start(4)
    cluster.network.clear()
    headers = tuple(entry.header for entry in old[: head_op - 1])

    cluster.receive(4, StartViewMessage(CLUSTER_ID, 0, 0, NONCE, 1, head_op, headers))
    for entry in (cluster.machines[1].journal[0], committed):
        cluster.receive(4, CommittedMessage(CLUSTER_ID, 1, entry, 2))
    effects = cluster.receive(4, RepairMessage(CLUSTER_ID, 0, old[head_op - 2]))
    cluster.sync(4)
    left_at = cluster.machines[4].replica.status
    cluster.pass_time(2_000)

    assert rules(effects) == [DropRule.NOT_LACKING]
    assert left_at is ReplicaStatus.VIEW_CHANGE
    joined, primary = cluster.machines[4].replica, cluster.machines[1].replica
    assert (joined.status, joined.view) == (ReplicaStatus.NORMAL, primary.view)
    assert joined.marks.commit_max == 2
