"""What a replica with damaged records may believe, record and accept; review found these cases.

In the first two, replica 1 led view 1 alone and has ops 3 to 5 of it, which nobody else counts on.
Its ops 3 and 4 are damaged. View 2 committed an entry of view 0 as op 3, and one more.
"""

from __future__ import annotations

import pytest

from coordinator.vsr import Commit, CoreState, DropRule, Start
from coordinator.vsr.messages import (
    CommittedMessage,
    Prepare,
    RepairMessage,
    StartViewMessage,
)
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, CoreCluster, bootstrapped
from tests.coordinator.vsr.test_damage_where_logs_differ import written
from tests.coordinator.vsr.test_superseded_logs import left_behind
from tests.coordinator.vsr.test_view_change_statements import NONCE, quiet, rules
from viewstamp.format.prepare import seal


def child(parent: Prepare, view: int) -> Prepare:
    """The entry that `view` has behind `parent`; its primary knows that op 2 is committed."""
    header = parent.header
    return seal(
        parent=header.checksum,
        cluster_id=CLUSTER_ID,
        view=view,
        op=header.op + 1,
        commit=2,
        first_revision=header.last_revision + 1,
        command_count=1,
        feature_level=header.feature_level,
        timestamp=header.timestamp + 1,
        body=b"of view %d" % view,
    )


def with_logs_that_differ() -> tuple[CoreCluster, list[Prepare], list[Prepare]]:
    """Return the cluster, the committed entries from op 3 on, and those of replica 1."""
    cluster = quiet(3)
    cluster.batch(0)
    cluster.pass_time(100)
    cluster.stop(1)
    machine = cluster.machines[1]
    third = child(machine.journal[1], 0)
    committed = [third, child(third, 2)]
    own = [child(machine.journal[1], 1)]
    for _ in range(2):
        own.append(child(own[-1], 1))
    machine.journal[2:] = own
    machine.superblock = CoreState(1, 1, 2)
    machine.damaged = {3, 4}
    for other in (0, 2):
        cluster.machines[other].journal[2:] = committed
    cluster.history[3] = third.checksum
    cluster.start(1)
    cluster.network.clear()
    return cluster, committed, own


def hear_what_is_committed(cluster: CoreCluster, committed: list[Prepare]) -> None:
    """Replica 1 takes view 2's log over; its first committed entry is on its way to the disk."""
    cluster.receive(1, StartViewMessage(CLUSTER_ID, 2, 2, NONCE, 4, 4, ()))
    effects = cluster.receive(1, CommittedMessage(CLUSTER_ID, 2, committed[0], 4))
    assert written(effects) == [committed[0]]


def test_a_damaged_entry_that_is_being_written_anew_does_not_count_as_committed_here() -> None:
    """The superblock names no commit whose op may still hold the old entry after a crash.

    Otherwise op 4, whose checksum own 5 tells, would come back first. It would name the old entry
    as op 3, which would then be executed.
    """
    cluster, committed, own = with_logs_that_differ()
    hear_what_is_committed(cluster, committed)
    machine = cluster.machines[1]
    while machine.superblock_write is not None:
        cluster.sync_superblock(1)

    cluster.receive(1, StartViewMessage(CLUSTER_ID, 0, 3, NONCE, 4, 4, ()))
    cluster.sync_superblock(1)
    assert machine.superblock is not None and machine.superblock.commit_max == 2

    cluster.start(1)
    for entry in (own[1], own[0]):
        cluster.receive(1, RepairMessage(CLUSTER_ID, 2, entry))
    assert 3 not in {e.op for e in cluster.sync(1) if isinstance(e, Commit)}


def test_an_entry_of_the_old_log_does_not_follow_one_of_the_new_log() -> None:
    """An answer requested before the committed entry came is dropped after it, and ends nothing."""
    cluster, committed, own = with_logs_that_differ()
    hear_what_is_committed(cluster, committed)
    cluster.sync(1)

    effects = cluster.receive(1, RepairMessage(CLUSTER_ID, 2, own[1]))

    assert rules(effects) == [DropRule.HEAD_DAMAGED]
    taken = cluster.receive(1, CommittedMessage(CLUSTER_ID, 2, committed[1], 4))
    assert written(taken) == [committed[1]]


@pytest.mark.parametrize("is_asked_for", [False, True], ids=["late", "asked for"])
def test_a_late_log_says_nothing_of_a_damaged_entry_that_is_committed(is_asked_for: bool) -> None:
    """Replica 2 caught up with op 3 of view 1, and restarts in view 0 with that record damaged.

    A log of view 0 that arrives late has another entry there, which was never committed. Only a
    log that was asked for since then is news.
    """
    cluster = quiet(3)
    cluster.batch(0)
    cluster.pass_time(100)
    cluster.stop(2)
    machine = cluster.machines[2]
    old, new = (child(machine.journal[1], view) for view in (0, 1))
    machine.journal[2:], machine.damaged = [new], {3}
    machine.superblock = CoreState(0, 0, 3)
    cluster.start(2)
    cluster.network.clear()
    nonce = machine.replica.state.boot_nonce if is_asked_for else NONCE

    effects = cluster.receive(2, StartViewMessage(CLUSTER_ID, 0, 0, nonce, 2, 3, (old.header,)))

    assert rules(effects) == ([] if is_asked_for else [DropRule.STALE_START_VIEW])
    repaired = cluster.receive(2, RepairMessage(CLUSTER_ID, 0, old))
    assert written(repaired) == ([old] if is_asked_for else [])


@pytest.mark.parametrize("restarts", [False, True])
def test_an_entry_behind_a_snapshot_is_replaced_though_the_one_before_is_not_there(
    restarts: bool,
) -> None:
    """Replica 2 begins behind a snapshot of op 5, and got an op 6 that view 1 went on without.

    It has no record of op 5, and nobody sends it one. The committed op 6 takes its place.
    """
    cluster, (old,), new = left_behind(committed=5, in_vain=1)
    machine = cluster.machines[2]
    machine.forget()
    cluster.stopped.discard(2)
    machine.boots += 1
    machine.journal = machine.journal[:5]
    machine.executed_op = machine.applied_op = 5
    cluster.step(2, Start(CoreState(0, 0, 5), (), b"first boot nonce", 5))
    cluster.network.clear()
    cluster.receive(2, StartViewMessage(CLUSTER_ID, 0, 0, NONCE, 5, 6, (old.header,)))
    cluster.receive(2, RepairMessage(CLUSTER_ID, 0, old))
    cluster.sync(2)
    cluster.network.clear()
    if restarts:
        machine.forget()
        machine.executed_op = machine.applied_op = 5
        cluster.step(2, Start(machine.superblock, (old.header,), b"other boot nonce", 5))

    cluster.pass_time(10_000)

    assert machine.journal[5] == new
    assert machine.replica.marks.commit_max == new.op


def test_a_replaced_entry_at_the_end_of_a_cut_journal_is_not_committed() -> None:
    """The superblock's commit says nothing of an entry that the lost end of the journal replaced.

    Replica 2 held an op 3 of a log that view 0 went on without. Its disk loses everything that it
    wrote since, and keeps the superblock, which knows that op 5 is committed.
    """
    cluster = bootstrapped(3)
    cluster.batch(0)
    cluster.pass_time(100)
    cluster.stop(2)
    for _ in range(3):
        cluster.batch(0)
        cluster.pass_time(100)
    machine = cluster.machines[2]
    machine.journal.append(child(machine.journal[1], 0))
    machine.superblock = CoreState(0, 0, 5)

    effects = cluster.start(2)

    assert [effect.op for effect in effects if isinstance(effect, Commit)] == [1, 2]
    cluster.pass_time(500)
    assert machine.executed_op == 5
    assert machine.journal == cluster.machines[0].journal
