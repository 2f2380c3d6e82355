"""Statements of "Viewstamped Replication Revisited" (Liskov, Cowling 2012) that are built.

Each test is named after a statement of section 4.1, normal operation, or of section 3.
"""

from __future__ import annotations

import pytest

from coordinator.vsr import Commit, Dropped, DropRule, PersistPrepares, Refused, ReplicaStatus, Send
from coordinator.vsr.effects import Effect
from coordinator.vsr.messages import (
    CommitMessage,
    CommitOkMessage,
    PrepareMessage,
    PrepareOkMessage,
)
from coordinator.vsr.quorum import QUORUMS
from tests.coordinator.vsr.cluster_harness import CoreCluster, bootstrapped
from viewstamp.limits import HEARTBEAT_MS, PIPELINE_PREPARES_MAX, TICK_MS


def messages(effects: list[Effect], kind: type) -> list[Send]:
    """Return the sends among the effects whose message is of `kind`."""
    return [e for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def commits(effects: list[Effect]) -> list[int]:
    """The ops that the effects hand out for execution."""
    return [effect.op for effect in effects if isinstance(effect, Commit)]


def deliver_between(cluster: CoreCluster, source: int, target: int) -> list[Effect]:
    """Deliver all that is in flight from one replica to another."""
    effects = []
    for item in list(cluster.network):
        if (item[0], item[1].to_replica) == (source, target):
            effects += cluster.deliver(cluster.network.index(item))
    return effects


def test_the_primary_is_chosen_round_robin_from_the_view_number() -> None:
    """Of three replicas the first leads views 0 and 3, the second view 1, the third view 2."""
    cluster = bootstrapped(3)
    primaries = []
    for view in range(4):
        cluster.enter_view_by_force(1, view=view)
        primaries.append(cluster.machines[1].replica.primary)

    assert primaries == [0, 1, 2, 0]


def test_replicas_process_requests_only_in_status_normal() -> None:
    """A batch that comes before status normal is refused, and leaves no trace."""
    cluster = CoreCluster(1)
    cluster.start(0)

    effects = cluster.batch(0)

    assert [type(effect) for effect in effects] == [Refused]
    assert cluster.machines[0].replica.marks.op == 0


def test_a_request_sent_to_a_backup_is_dropped_and_names_the_primary() -> None:
    """Only the primary sequences; a backup names it."""
    (refused,) = bootstrapped(3).batch(2)

    assert isinstance(refused, Refused)
    assert refused.primary == 0


def test_the_primary_advances_op_number_and_sends_prepare_to_the_other_replicas() -> None:
    """One batch is one op, and goes to each backup once, together with the local write."""
    cluster = bootstrapped(3)

    effects = cluster.batch(0)

    assert cluster.machines[0].replica.marks.op == 2
    assert [send.to_replica for send in messages(effects, PrepareMessage)] == [1, 2]
    assert sum(isinstance(effect, PersistPrepares) for effect in effects) == 1


def test_backups_process_prepare_messages_in_order() -> None:
    """A backup does not accept an entry before it has all earlier ones."""
    cluster = bootstrapped(2)
    cluster.batch(0)
    cluster.batch(0)

    cluster.deliver(1)
    assert cluster.machines[1].replica.marks.op == 1

    cluster.deliver(0)
    assert cluster.machines[1].replica.marks.op == 2


def test_a_backup_sends_prepare_ok_once_the_entry_is_in_its_durable_log() -> None:
    """A received entry is acknowledged only once it is durable, and only to the primary."""
    cluster = bootstrapped(3)
    cluster.batch(0)

    received = deliver_between(cluster, 0, 1)
    synced = cluster.sync(1)

    assert messages(received, PrepareOkMessage) == []
    assert [send.to_replica for send in messages(synced, PrepareOkMessage)] == [0]


@pytest.mark.parametrize("replica_count", list(QUORUMS))
def test_the_primary_waits_for_a_quorum_of_durable_copies_then_commits(replica_count: int) -> None:
    """The entry commits with the copy that completes the replication quorum, not one earlier."""
    cluster = bootstrapped(replica_count)
    cluster.batch(0)
    needed = QUORUMS[replica_count].replication

    effects = cluster.sync(0)
    for backup in range(1, needed):
        assert commits(effects) == []
        deliver_between(cluster, 0, backup)
        cluster.sync(backup)
        effects = deliver_between(cluster, backup, 0)

    assert commits(effects) == [2]


def test_backups_alone_can_make_the_quorum() -> None:
    """The primary's own disk is one copy like any other, and may be the slow one."""
    cluster = bootstrapped(3)
    cluster.batch(0)
    for backup in (1, 2):
        deliver_between(cluster, 0, backup)
        cluster.sync(backup)

    assert commits(deliver_between(cluster, 1, 0)) == []
    assert commits(deliver_between(cluster, 2, 0)) == [2]


def test_an_operation_commits_only_after_all_earlier_ones() -> None:
    """A later entry with a quorum waits for an earlier one without."""
    cluster = bootstrapped(3)
    cluster.batch(0)
    cluster.batch(0)
    for backup in (1, 2):
        deliver_between(cluster, 0, backup)
        cluster.sync(backup)
    acks = [s.message for _, s in cluster.network if isinstance(s.message, PrepareOkMessage)]

    later = [e for ack in acks if ack.op == 3 for e in cluster.receive(0, ack)]
    earlier = [e for ack in acks if ack.op == 2 for e in cluster.receive(0, ack)]

    assert commits(later) == []
    assert commits(earlier) == [2, 3]


def test_the_primary_informs_backups_of_the_commit_with_the_next_prepare() -> None:
    """The commit point travels in the next entry."""
    cluster = bootstrapped(2)
    cluster.batch(0)
    cluster.sync(0)
    deliver_between(cluster, 0, 1)
    cluster.sync(1)
    deliver_between(cluster, 1, 0)

    cluster.batch(0)

    assert commits(deliver_between(cluster, 0, 1)) == [2]


def test_an_idle_primary_informs_backups_of_the_commit_with_a_commit_message() -> None:
    """Without a next entry the heartbeat carries the commit."""
    cluster = bootstrapped(2)
    cluster.now_ticks += HEARTBEAT_MS // TICK_MS

    effects = cluster.tick(0)

    assert [send.to_replica for send in messages(effects, CommitMessage)] == [1]
    assert commits(deliver_between(cluster, 0, 1)) == [1]


def test_a_backup_executes_a_commit_only_as_far_as_its_log_reaches() -> None:
    """The primary may be ahead of what a backup has received."""
    cluster = bootstrapped(3)
    cluster.batch(0)
    cluster.sync(0)
    deliver_between(cluster, 0, 2)
    cluster.sync(2)
    deliver_between(cluster, 2, 0)
    cluster.network.clear()
    cluster.now_ticks += HEARTBEAT_MS // TICK_MS
    cluster.tick(0)

    assert commits(deliver_between(cluster, 0, 1)) == [1]
    assert cluster.machines[1].replica.marks.commit_max == 1


def test_messages_of_an_earlier_view_are_dropped_by_a_replica_in_a_later_one() -> None:
    """The view rule drops an old primary's entry and an old acknowledgement."""
    cluster = bootstrapped(2)
    cluster.batch(0)
    entry = cluster.network[0][1].message
    cluster.enter_view_by_force(1, view=2)

    (dropped,) = cluster.receive(1, entry)

    assert isinstance(dropped, Dropped)
    assert dropped.rule is DropRule.OLDER_VIEW


def test_no_replica_acknowledges_an_entry_of_a_view_that_it_has_left() -> None:
    """An entry journaled in one view and durable in the next is not vouched for (P11)."""
    cluster = bootstrapped(2)
    cluster.batch(0)
    deliver_between(cluster, 0, 1)
    cluster.enter_view_by_force(1, view=2)

    effects = cluster.sync(1)

    assert messages(effects, PrepareOkMessage) == []


def test_requests_are_pipelined() -> None:
    """Several entries are under way at once, up to the pipeline's depth, and no more."""
    cluster = bootstrapped(3)

    results = [cluster.batch(0) for _ in range(PIPELINE_PREPARES_MAX + 1)]

    assert [bool(messages(effects, PrepareMessage)) for effects in results] == [
        *[True] * PIPELINE_PREPARES_MAX,
        False,
    ]


def test_a_heartbeat_is_confirmed_only_in_status_normal() -> None:
    """A replica that restarted does not vouch for a primary that it no longer follows."""
    cluster = bootstrapped(2)
    cluster.now_ticks += HEARTBEAT_MS // TICK_MS
    cluster.tick(0)
    cluster.start(1)

    effects = deliver_between(cluster, 0, 1)

    assert cluster.machines[1].replica.status is ReplicaStatus.RECOVERING
    assert messages(effects, CommitOkMessage) == []
