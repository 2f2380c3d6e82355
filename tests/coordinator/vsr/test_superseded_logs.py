"""Logs that later views replaced: late messages bring them up, and nothing of them may count."""

from __future__ import annotations

import pytest

from coordinator.vsr import (
    CoreState,
    DiscardAfter,
    DropRule,
    InvariantViolation,
    PersistPrepares,
    RecordFaulty,
    RefusalReason,
    Refused,
    ReplicaStatus,
)
from coordinator.vsr.log import LogEntry, LogTail
from coordinator.vsr.messages import CommittedMessage, Prepare, RepairMessage, StartViewMessage
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, CoreCluster
from tests.coordinator.vsr.test_logs_that_differ import another_entry_after
from tests.coordinator.vsr.test_view_change_statements import NONCE, empty_vote, leave, quiet, rules


def left_behind(*, committed: int, in_vain: int) -> tuple[CoreCluster, list[Prepare], Prepare]:
    """Replica 2 is stopped with entries at the end of its log that view 1 went on without.

    Returns those, and the entry that view 1 committed in the place of the first.
    """
    cluster = quiet(3)
    for _ in range(committed - 1):
        cluster.batch(0)
        cluster.pass_time(100)
    for _ in range(in_vain):
        cluster.batch(0)
    while cluster.network:
        _, send = cluster.network[0]
        if send.to_replica == 2:
            cluster.deliver()
        else:
            cluster.network.pop(0)
    cluster.sync(2)
    cluster.network.clear()
    cluster.stop(2)
    cluster.start(0)
    cluster.pass_time(2_000)
    cluster.batch(1)
    cluster.pass_time(100)
    machines = cluster.machines
    old, new = machines[2].journal[committed:], machines[1].journal[committed]
    assert [entry.op for entry in old] == list(range(committed + 1, committed + 1 + in_vain))
    assert (new.op, new.view, machines[1].replica.marks.commit_max) == (old[0].op, 1, new.op)
    return cluster, old, new


def joins(cluster: CoreCluster, index: int) -> None:
    """Check that the replica has in the end executed everything, in the others' view."""
    cluster.pass_time(4_000)
    joined, other = cluster.machines[index].replica, cluster.machines[(index + 1) % 3].replica
    assert (joined.status, joined.view) == (ReplicaStatus.NORMAL, other.view)
    assert joined.marks.applied_op == other.marks.applied_op


def test_a_committed_entry_is_not_one_that_is_just_written_in_its_place() -> None:
    """The old entry is damaged, and comes again by a late log; then the committed one comes."""
    cluster, (old,), new = left_behind(committed=1, in_vain=1)
    cluster.machines[2].damaged = {2}
    cluster.machines[2].superblock = CoreState(0, 0, 1)
    cluster.start(2)
    cluster.network.clear()
    cluster.receive(2, StartViewMessage(CLUSTER_ID, 0, 0, NONCE, 1, 2, (old.header,)))
    filled = cluster.receive(2, RepairMessage(CLUSTER_ID, 0, old))
    assert [e.prepares for e in filled if isinstance(e, PersistPrepares)] == [(old,)]

    taken = cluster.receive(2, CommittedMessage(CLUSTER_ID, 1, new, 2))

    assert [e.op for e in taken if isinstance(e, DiscardAfter)] == [1]
    assert [e.prepares for e in taken if isinstance(e, PersistPrepares)] == [(new,)]
    joins(cluster, 2)


def test_a_damaged_entry_that_memory_knows_is_discarded_like_an_intact_one() -> None:
    """The journal takes no other entry in its place before."""
    cluster, _, new = left_behind(committed=1, in_vain=1)
    cluster.start(2)
    cluster.step(2, RecordFaulty(2, has_room=False))
    cluster.network.clear()

    effects = cluster.receive(2, StartViewMessage(CLUSTER_ID, 1, 1, NONCE, 1, 2, (new.header,)))

    assert [e.op for e in effects if isinstance(e, DiscardAfter)] == [1]
    joins(cluster, 2)


def test_what_follows_a_damaged_entry_is_not_replaced_before_that_is_mended() -> None:
    """Nothing can follow an entry whose checksum is unknown."""
    cluster, _, new = left_behind(committed=2, in_vain=2)
    cluster.machines[2].damaged = {2, 3}
    cluster.machines[2].superblock = CoreState(0, 0, 2)
    cluster.start(2)
    cluster.network.clear()

    effects = cluster.receive(2, CommittedMessage(CLUSTER_ID, 1, new, 3))

    assert rules(effects) == [DropRule.HEAD_DAMAGED]
    joins(cluster, 2)


def test_damage_that_is_found_in_what_was_discarded_meanwhile_is_nothing() -> None:
    """A read takes time, and the log is shorter by the time it reports damage."""
    cluster = quiet(3)

    assert cluster.step(2, RecordFaulty(2)) == []
    assert cluster.machines[2].replica.marks.op == 1


def committed_in_view_2() -> tuple[CoreCluster, Prepare]:
    """Replica 1 heard nothing since op 1, and view 2 committed the next entry without it."""
    cluster = quiet(3)
    cluster.stopped.add(1)
    leave(cluster, 2, 2)
    cluster.pass_time(2_000)
    cluster.batch(2)
    cluster.pass_time(100)
    entry = cluster.machines[2].journal[1]
    assert (entry.view, cluster.machines[0].replica.marks.commit_max) == (2, 2)
    cluster.stopped.discard(1)
    cluster.network.clear()
    return cluster, entry


def test_a_primary_takes_no_entry_of_a_later_view_once_it_has_its_log() -> None:
    """A primary takes no such entry while its disk is about to learn of that log: it will append
    to it."""
    cluster, entry = committed_in_view_2()
    cluster.receive(1, empty_vote(0, 1))
    cluster.sync_superblock(1)
    assert cluster.machines[1].superblock_write == CoreState(1, 1, 1)

    effects = cluster.receive(1, CommittedMessage(CLUSTER_ID, 2, entry, 2))

    assert rules(effects) == [DropRule.NOT_LACKING]
    joins(cluster, 1)


def test_who_has_an_entry_of_a_later_view_leads_no_earlier_one() -> None:
    """Late votes elect replica 1 in view 1, though view 2 began long ago.

    It would put its own entries behind one of view 2, and no start accepts such a journal.
    """
    cluster, entry = committed_in_view_2()
    cluster.receive(1, CommittedMessage(CLUSTER_ID, 2, entry, 2))
    cluster.sync(1)

    cluster.receive(1, empty_vote(0, 1))
    machine = cluster.machines[1]
    while machine.superblock_write is not None or machine.can_apply:
        if machine.superblock_write is not None:
            cluster.sync_superblock(1)
        while machine.can_apply:
            cluster.apply(1)
    refused = cluster.batch(1)
    cluster.sync(1)
    cluster.start(1)

    assert Refused(RefusalReason.VIEW_CHANGE, None) in refused
    joins(cluster, 1)


def test_views_of_entries_never_go_back() -> None:
    """An entry that a start would refuse is not journaled, whoever made it."""
    cluster = quiet(3)
    cluster.batch(0)
    cluster.pass_time(100)
    first, second = (entry.header for entry in cluster.machines[0].journal)
    later = another_entry_after(second, view=3)
    tail = LogTail()
    tail.inherit((first, second, later.header), 3)
    earlier = another_entry_after(later.header, view=2)

    with pytest.raises(InvariantViolation, match="views of entries never go back"):
        tail.append(LogEntry(earlier.header, earlier, 3))
