"""Damaged entries of a log that was not chosen, and damage in discarded entries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.vsr import (
    DiscardAfter,
    DropRule,
    Effect,
    PersistPrepares,
    RecordFaulty,
)
from coordinator.vsr.log_adoption import contradicts
from coordinator.vsr.messages import (
    CommittedMessage,
    DoViewChangeMessage,
    Prepare,
    RepairMessage,
)
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, CoreCluster
from tests.coordinator.vsr.test_logs_that_differ import another_entry_after
from tests.coordinator.vsr.test_view_change_statements import quiet, rules

LATER_LOG_VIEW, ELECTED_VIEW = 3, 4


def with_own_log(entry_count: int, damaged: set[int]) -> CoreCluster:
    """Restart replica 1 with so many entries of view 0 behind op 1, some of them damaged."""
    cluster = quiet(3)
    for _ in range(entry_count):
        cluster.batch(0)
    while cluster.network:
        cluster.deliver()
    cluster.sync(1)
    cluster.network.clear()
    stop_gracefully(cluster)
    cluster.machines[1].damaged = damaged
    cluster.start(1)
    assert cluster.machines[1].replica.marks.commit_max == 1
    return cluster


def stop_gracefully(cluster: CoreCluster) -> None:
    """Let the superblock of replica 1 know all its known commits."""
    machine = cluster.machines[1]
    assert machine.superblock is not None
    machine.superblock = replace(machine.superblock, commit_max=machine.replica.recordable_commit)
    cluster.stop(1)


def other_log(parent: Prepare, head_op: int, view: int = LATER_LOG_VIEW) -> list[Prepare]:
    """Entries that `view` has behind `parent`."""
    entries: list[Prepare] = []
    while parent.op < head_op:
        parent = another_entry_after(parent.header, view)
        entries.append(parent)
    return entries


def elect(cluster: CoreCluster, commit: int, log: list[Prepare], unknown: int = 0) -> list[Effect]:
    """Let replica 1 lead the next view, with the log that the others have behind op 1.

    The vote of replica 2 does not tell the first `unknown` of its entries: they are committed.
    """
    for other in (cluster.machines[0], cluster.machines[2]):
        other.journal[1:] = log
    headers = tuple(entry.header for entry in log[unknown:])
    head_op = log[-1].op
    vote = DoViewChangeMessage(
        CLUSTER_ID, 2, ELECTED_VIEW, LATER_LOG_VIEW, commit, head_op, headers, (), False
    )
    effects = cluster.receive(1, vote)
    return effects + cluster.sync_superblock(1)


def written(effects: list[Effect]) -> list[Prepare]:
    """Return the entries to journal."""
    return [each for e in effects if isinstance(e, PersistPrepares) for each in e.prepares]


def discards(effects: list[Effect]) -> list[int]:
    """Return the ops behind which the log is cut."""
    return [effect.op for effect in effects if isinstance(effect, DiscardAfter)]


def repair(cluster: CoreCluster, entry: Prepare) -> list[Effect]:
    """Replica 2 sends an entry that it holds."""
    return cluster.receive(1, RepairMessage(CLUSTER_ID, 2, entry))


def test_a_damaged_entry_whose_child_names_another_one_is_discarded_before_it_is_replaced() -> None:
    """Own 4 is damaged, and own 5 says that it is not the chosen one (seed 599).

    Nothing else tells it before all committed entries are here. The journal refuses the chosen
    entry while own 5 stands behind it. Own 3 is unknown, and is discarded with it: its view is not
    later than own 5's.
    """
    cluster = with_own_log(4, damaged={3, 4})
    second = cluster.machines[1].journal[1]
    third, fourth = other_log(second, 4)

    taken_over = elect(cluster, 2, [second, third, fourth], unknown=1)
    too_early = repair(cluster, fourth)
    cluster.receive(1, CommittedMessage(CLUSTER_ID, 2, second, 2))
    repaired = repair(cluster, third) + repair(cluster, fourth)
    cluster.sync(1)

    assert discards(taken_over) == [2]
    assert written(too_early) == []
    assert written(repaired) == [third, fourth]
    assert cluster.machines[1].journal[1:] == [second, third, fourth]


@pytest.mark.parametrize("is_committed", [False, True], ids=["chosen", "committed"])
def test_a_damaged_entry_is_of_no_later_view_than_one_behind_it(is_committed: bool) -> None:
    """Own 3 and 4 are damaged, and nothing tells the checksum of own 3; but own 5 is of view 0.

    If the other entry were written in its place, a crash would leave a log that the view began
    without, and that is longer than the view's.
    """
    cluster = with_own_log(4, damaged={3, 4})
    second = cluster.machines[1].journal[1]
    (third,) = other_log(second, 3)

    if is_committed:
        effects = elect(cluster, 3, [second, third], unknown=2)
        assert discards(effects) == []
        for entry in (second, third):
            effects += cluster.receive(1, CommittedMessage(CLUSTER_ID, 2, entry, 3))
    else:
        effects = elect(cluster, 2, [second, third])
        effects += repair(cluster, third)
    cluster.sync(1)

    assert discards(effects) == [2]
    assert written(effects) == [third]
    assert cluster.machines[1].journal[1:] == [second, third]


def test_no_chosen_entry_stands_behind_one_that_may_be_another_logs() -> None:
    """Such an entry would tell after a restart that the entries before it are committed.

    A committed entry replaced own 2, and nothing tells it yet: own 3 and 4 are damaged, and only op
    4 of the chosen log is known.
    """
    cluster = with_own_log(3, damaged={3, 4})
    first, replaced = cluster.machines[1].journal[:2]
    second, third, fourth = other_log(first, 4)
    elect(cluster, 3, [second, third, fourth], unknown=2)

    too_early = repair(cluster, fourth)
    effects = cluster.receive(1, CommittedMessage(CLUSTER_ID, 2, second, 3))
    effects += cluster.receive(1, CommittedMessage(CLUSTER_ID, 2, third, 3))
    effects += repair(cluster, fourth)
    cluster.sync(1)

    assert replaced.checksum != second.checksum
    assert (rules(too_early), written(too_early)) == ([DropRule.HEAD_DAMAGED], [])
    assert discards(effects) == [1]
    assert cluster.machines[1].journal[1:] == [second, third, fourth]


def test_a_damaged_entry_right_behind_a_snapshot_is_replaced_by_the_chosen_one() -> None:
    """No replica has the entry before it any more, and every log has what a snapshot covers."""
    cluster = with_own_log(1, damaged={2})
    machine = cluster.machines[1]
    (second,) = other_log(machine.journal[0], 2)
    machine.forget()
    cluster.step(1, replace(machine.start_event(base_op=1), suffix=()))
    elect(cluster, 1, [second])

    assert written(repair(cluster, second)) == [second]


@pytest.mark.parametrize("has_room", [True, False], ids=["being written anew", "without room"])
def test_a_damaged_entry_is_not_taken_for_the_committed_one_in_its_place(has_room: bool) -> None:
    """Memory knows which entry it is, though no later entry would tell."""
    cluster = with_own_log(1, damaged=set())
    first = cluster.machines[1].journal[0]
    (committed,) = other_log(first, 2)
    elect(cluster, 2, [committed], unknown=1)
    cluster.step(1, RecordFaulty(2, has_room=has_room))

    effects = cluster.receive(1, CommittedMessage(CLUSTER_ID, 2, committed, 2))
    cluster.sync(1)

    assert discards(effects) == [1]
    assert written(effects) == [committed]
    assert cluster.machines[1].journal[1:] == [committed]


def test_a_log_with_another_entry_for_a_damaged_committed_one_was_replaced() -> None:
    """The description of a damaged entry in its successor counts as much as the entry itself."""
    cluster = quiet(3)
    for _ in range(3):
        cluster.batch(0)
    cluster.pass_time(100)
    journal = cluster.machines[1].journal
    stop_gracefully(cluster)
    cluster.machines[1].damaged = {2, 3}
    cluster.start(1)
    state = cluster.machines[1].replica.state
    assert state.commit_max == 4
    second, third = other_log(journal[0], 3, view=0)
    (later,) = other_log(journal[0], 2)

    assert contradicts(state, third.header)
    assert not contradicts(state, second.header)  # nothing tells the checksum of own 2
    assert contradicts(state, later.header)  # but it is of no later view than own 4
    assert not contradicts(state, journal[2].header)


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "replaced"])
def test_damage_of_what_is_being_discarded_is_not_of_the_log(replaced: bool) -> None:
    """A read that began before the discard reports damage after it was decided (seed 935).

    The entry that took the place is not damaged.
    """
    cluster = with_own_log(3, damaged=set())
    second = cluster.machines[1].journal[1]
    (third,) = other_log(second, 3)
    taken_over = elect(cluster, 2, [second, third])
    if replaced:
        assert written(repair(cluster, third)) == [third]

    late = cluster.step(1, RecordFaulty(3)) + cluster.step(1, RecordFaulty(4))

    assert discards(taken_over) == [2]
    assert late == []
    assert cluster.machines[1].replica.state.log.faulty == set()
