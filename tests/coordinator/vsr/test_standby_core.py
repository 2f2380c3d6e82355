"""A standby follows for ever, and no quorum includes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.vsr import (
    NOT_ADMITTED,
    CallerError,
    Commit,
    Configuration,
    CoreState,
    DiscardAfter,
    Dropped,
    DropRule,
    Effect,
    InvariantViolation,
    ReadIndexRequested,
    ReplicaStatus,
    Send,
    SnapshotNeeded,
    Suspect,
    message_guards,
    message_rules,
    replica,
)
from coordinator.vsr.messages import (
    AdmissionMessage,
    CommittedMessage,
    DoViewChangeMessage,
    PrepareMessage,
    PrepareOkMessage,
    RequestAdmissionMessage,
    StartViewChangeMessage,
)
from coordinator.vsr.state import PreVote, ReplicaState, Vote
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, CoreCluster, bootstrapped
from tests.coordinator.vsr.storm import weather
from viewstamp.limits import STANDBYS_MAX, SUSPICION_JITTER_MS, SUSPICION_MS

STANDBY = 3
STORM_STEPS = 700
LONG_MS = 1_000
# This is more than the tail holds, so a restarted standby's gap is read from a journal.
MANY = 40


def said_by(cluster: CoreCluster, index: int) -> list[Any]:
    """Return the messages of a replica that are under way to the others."""
    return [send.message for source, send in cluster.network if source == index]


def lose_messages_to(cluster: CoreCluster, *indexes: int) -> None:
    """Lose the messages that are under way to these."""
    cluster.network = [item for item in cluster.network if item[1].to_replica not in indexes]


def dropped_rules(effects: list[Effect]) -> list[DropRule]:
    """The rules by which messages were dropped."""
    return [effect.rule for effect in effects if isinstance(effect, Dropped)]


@pytest.mark.parametrize(
    ("index", "replica_count", "standby_count", "message"),
    [
        (0, 1, 1, "standby_count beside 1"),
        (0, 3, STANDBYS_MAX + 1, "standby_count"),
        (0, 3, -1, "standby_count"),
        (4, 3, 1, "replica must be 0 to 3"),
        (3, 3, 0, "replica must be 0 to 2"),
    ],
)
def test_a_wrong_number_of_standbys_is_refused(
    index: int, replica_count: int, standby_count: int, message: str
) -> None:
    """A standby is beyond the replica count, within theirs, and beside several replicas."""
    with pytest.raises(ValueError, match=message):
        Configuration(CLUSTER_ID, index, replica_count, 1, standby_count)


def test_a_cluster_is_bootstrapped_without_its_standbys() -> None:
    """A missing standby does not keep the cluster from its bootstrap; it follows later."""
    cluster = CoreCluster(3, 1)
    cluster.stopped.add(STANDBY)
    for index in (2, 1, 0):
        cluster.start(index)
    cluster.settle()
    cluster.found(0)
    cluster.pass_time(LONG_MS)
    cluster.start(STANDBY)
    cluster.pass_time(LONG_MS)

    assert cluster.machines[0].replica.status is ReplicaStatus.NORMAL
    assert cluster.machines[STANDBY].replica.status is ReplicaStatus.NORMAL
    superblock = cluster.machines[STANDBY].superblock
    assert superblock is not None and superblock.voting_view == NOT_ADMITTED


def test_the_copy_of_a_standby_commits_nothing() -> None:
    """With two replicas, one of them silent, an entry on a standby stays uncommitted."""
    cluster = bootstrapped(2, 1)
    cluster.batch(0)
    lose_messages_to(cluster, 1)
    cluster.stopped.add(1)
    cluster.pass_time(LONG_MS)

    assert cluster.machines[2].journal[-1].op == 2
    assert cluster.machines[0].replica.marks.commit_max == 1


def test_a_standby_says_nothing_that_counts() -> None:
    """A standby only asks, over entries, heartbeats, rounds of reads, and a change of views."""
    cluster = bootstrapped(3, 1)
    said: list[Any] = []
    for _ in range(5):
        cluster.batch(0)
        while cluster.network:
            said += said_by(cluster, STANDBY)
            cluster.deliver()
        cluster.pass_time(SUSPICION_MS)
    cluster.stop(0)
    for _ in range(LONG_MS // 10):
        cluster.now_ticks += 1
        for machine in cluster.machines[1:]:
            cluster.tick(machine.index)
        said += said_by(cluster, STANDBY)
        cluster.settle()

    assert not [message for message in said if isinstance(message, message_guards.AMONG_VOTERS)]
    assert cluster.machines[STANDBY].replica.view == 1
    assert cluster.machines[STANDBY].replica.status is ReplicaStatus.NORMAL


def test_a_standby_that_hears_nobody_keeps_silent() -> None:
    """A lone standby that suspects every replica pre-votes for no other view and votes for none."""
    cluster = bootstrapped(3, 1)
    for index in range(3):
        cluster.stop(index)
    cluster.step(STANDBY, Suspect(0))
    cluster.pass_time(3 * (SUSPICION_MS + SUSPICION_JITTER_MS))

    assert cluster.machines[STANDBY].replica.view == 0
    assert cluster.machines[STANDBY].replica.state.pre_votes == {}
    assert said_by(cluster, STANDBY) == []


def test_standbys_alone_elect_nobody() -> None:
    """Three standbys beside one of three replicas form no quorum."""
    cluster = bootstrapped(3, 3)
    cluster.stop(1)
    cluster.stop(2)
    cluster.batch(0)
    cluster.pass_time(LONG_MS)
    cluster.stop(0)
    cluster.pass_time(LONG_MS)

    assert max(cluster.history) == 1
    assert {machine.replica.view for machine in cluster.standbys} == {0}


@pytest.mark.parametrize(
    "message",
    [
        PrepareOkMessage(CLUSTER_ID, STANDBY, 0, 2, b"\x01" * 16),
        StartViewChangeMessage(CLUSTER_ID, STANDBY, 1),
        DoViewChangeMessage(CLUSTER_ID, STANDBY, 3, 0, 1, 1, (), (), False),
        RequestAdmissionMessage(CLUSTER_ID, STANDBY, bytes(16), 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_a_standby_must_not_say_is_dropped(message: Any) -> None:
    """A replica that claims a vote, and is a standby to the others, is ignored."""
    cluster = bootstrapped(3, 1)

    assert dropped_rules(cluster.receive(0, message)) == [DropRule.STANDBY]


def test_a_standby_is_not_admitted() -> None:
    """No replica can give a standby a vote."""
    cluster = bootstrapped(3, 1)
    nonce = cluster.machines[STANDBY].replica.state.boot_nonce

    effects = cluster.receive(STANDBY, AdmissionMessage(CLUSTER_ID, 0, 0, nonce, 2))

    assert dropped_rules(effects) == [DropRule.STANDBY]


def let_standbys_vouch(patch: pytest.MonkeyPatch) -> None:
    """Standbys acknowledge, and primaries listen."""
    patch.setattr(ReplicaState, "is_voter_in", lambda self, view: True)
    patch.setattr(message_rules, "ANY_RULES", message_rules.ANY_RULES[:-1])


def test_a_primary_that_counts_a_standby_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quorum with a standby in it is found before anything is executed on the strength of it."""
    cluster = bootstrapped(3, 1)
    let_standbys_vouch(monkeypatch)
    cluster.batch(0)
    lose_messages_to(cluster, 1, 2)

    with pytest.raises(InvariantViolation, match="durable on a replication quorum"):
        cluster.settle()


def test_the_harness_finds_a_commit_on_a_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker does not count a standby's copy either."""
    cluster = bootstrapped(3, 1)
    let_standbys_vouch(monkeypatch)
    monkeypatch.setattr(replica, "check_step", lambda before, state: None)
    cluster.batch(0)
    lose_messages_to(cluster, 1, 2)

    with pytest.raises(AssertionError, match="executed with 1 durable copies"):
        cluster.settle()


def vote_as_standby(state: ReplicaState) -> None:
    """Cast a vote."""
    vote = DoViewChangeMessage(CLUSTER_ID, 3, 1, 0, 1, 1, (), (), False)
    state.votes[state.replica] = Vote(vote, state.now_ticks)


def pre_vote_as_standby(state: ReplicaState) -> None:
    """Pre-vote for the next view."""
    state.pre_votes[state.replica] = PreVote(state.view + 1, state.now_ticks)


def forget_role(state: ReplicaState) -> None:
    """Write a superblock that says it may vote."""
    state.writing = CoreState(0, 0, 1, 0)


def count_pre_vote(state: ReplicaState) -> None:
    """A replica notes the pre-vote of a standby."""
    state.pre_votes[STANDBY] = PreVote(state.view + 1, state.now_ticks)


def count_initial_member(state: ReplicaState) -> None:
    """A bootstrap primary takes a standby for an initial member."""
    state.initial_members[STANDBY] = bytes(16)


@pytest.mark.parametrize(
    ("index", "plant", "rule"),
    [
        (STANDBY, vote_as_standby, "standby_only_follows"),
        (STANDBY, pre_vote_as_standby, "standby_only_follows"),
        (STANDBY, forget_role, "standby_only_follows"),
        (0, count_pre_vote, "voters_alone_are_counted"),
        (0, count_initial_member, "voters_alone_are_counted"),
    ],
)
def test_the_invariants_about_standbys_can_fail(
    index: int, plant: Callable[[ReplicaState], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that lets a standby count stops the replica, naming the rule."""
    cluster = bootstrapped(3, 1)
    monkeypatch.setitem(replica.EVENT_HANDLERS, Suspect, lambda state, _: plant(state))

    with pytest.raises(InvariantViolation, match=rule):
        cluster.step(index, Suspect(1))


def test_a_standby_does_not_start_on_the_disk_of_a_voter() -> None:
    """A superblock that ever admitted its replica is no standby's."""
    cluster = bootstrapped(3, 1)
    machine = cluster.machines[STANDBY]
    machine.superblock = CoreState(0, 0, 1, 0)

    with pytest.raises(CallerError, match="superblock of a standby"):
        cluster.start(STANDBY)


def test_a_standby_that_lost_its_superblock_is_a_standby() -> None:
    """A standby with one entry in its journal and nothing else records its role first."""
    cluster = bootstrapped(3, 1)
    cluster.stop(STANDBY)
    cluster.machines[STANDBY].superblock = None
    cluster.batch(0)
    cluster.start(STANDBY)
    cluster.pass_time(LONG_MS)

    superblock = cluster.machines[STANDBY].superblock
    assert superblock is not None and superblock.voting_view == NOT_ADMITTED
    assert cluster.machines[STANDBY].replica.marks.applied_op == 2


def test_a_standby_catches_up_by_itself() -> None:
    """A standby asks for the entries it missed, more than any replica keeps in memory."""
    cluster = bootstrapped(3, 1)
    cluster.stop(STANDBY)
    for _ in range(MANY):
        cluster.batch(0)
        cluster.settle()
    cluster.start(STANDBY)
    cluster.pass_time(LONG_MS)

    assert cluster.machines[STANDBY].replica.marks.applied_op == MANY + 1


def test_a_standby_restarts_from_a_snapshot_when_the_log_is_gone() -> None:
    """Entries that the others truncated come as a snapshot, as to every replica."""
    cluster = bootstrapped(3, 1)
    cluster.stop(STANDBY)
    for _ in range(4):
        cluster.batch(0)
        cluster.settle()
    for machine in cluster.voters:
        machine.first_held_op, machine.generation = 4, 1
    cluster.start(STANDBY)
    cluster.pass_time(LONG_MS)

    needed = [a for a in cluster.machines[STANDBY].alarms if isinstance(a, SnapshotNeeded)]
    assert {(each.generation, each.cut_op) for each in needed} == {(1, 3)}


def overtaken() -> tuple[CoreCluster, CommittedMessage]:
    """A standby in view 0 alone has entry 2 of it; the others have committed another in view 1."""
    cluster = bootstrapped(3, 1)
    cluster.batch(0)
    lose_messages_to(cluster, 1, 2)
    while cluster.network:
        cluster.deliver()
    cluster.sync(STANDBY)
    cluster.stop(0)
    cluster.stopped.add(STANDBY)
    cluster.pass_time(LONG_MS)
    cluster.batch(1, command_count=2)
    cluster.pass_time(LONG_MS)
    cluster.stopped.discard(STANDBY)
    other = cluster.machines[1].journal[1]
    assert other.checksum != cluster.machines[STANDBY].journal[1].checksum
    return cluster, CommittedMessage(CLUSTER_ID, 1, other, 2)


def test_an_entry_of_a_later_view_waits_for_the_log_of_that_view() -> None:
    """A committed entry that contradicts this view's log is no defect: the view is over."""
    cluster, message = overtaken()

    assert dropped_rules(cluster.receive(STANDBY, message)) == [DropRule.LOG_REPLACED]

    cluster.pass_time(LONG_MS)
    assert cluster.machines[STANDBY].replica.marks.applied_op == 2
    assert cluster.machines[STANDBY].journal[1] == message.prepare


def test_a_standby_discards_what_the_later_view_does_not_have() -> None:
    """A standby adopts the log of the later view as a backup does."""
    cluster, _ = overtaken()
    effects: list[Effect] = []
    while not any(isinstance(effect, DiscardAfter) for effect in effects):
        cluster.now_ticks += 1
        cluster.tick(1)
        while cluster.network:
            effects += cluster.deliver()

    assert DiscardAfter(1) in effects


def test_a_standby_gives_what_the_others_lost() -> None:
    """A standby's copy restores a committed record that is damaged on every voter."""
    cluster = bootstrapped(3, 1)
    cluster.batch(0)
    cluster.pass_time(LONG_MS)
    for machine in cluster.voters:
        cluster.stop(machine.index)
        machine.damaged.add(1)
    for machine in cluster.voters:
        cluster.start(machine.index)
    cluster.pass_time(3 * LONG_MS)

    assert [machine.damaged for machine in cluster.voters] == [set(), set(), set()]
    assert all(machine.replica.marks.applied_op >= 2 for machine in cluster.machines)


def test_a_standby_answers_reads_with_an_index_of_the_primary() -> None:
    """A standby's read sees everything acknowledged, as a quorum of the voters confirms."""
    cluster = bootstrapped(3, 1)
    cluster.batch(0)
    lose_messages_to(cluster, STANDBY)
    cluster.settle()
    cluster.step(STANDBY, ReadIndexRequested(1))
    cluster.pass_time(LONG_MS)

    assert cluster.reads == {}
    assert cluster.machines[STANDBY].replica.marks.applied_op == 2


def test_standbys_confirm_no_reads() -> None:
    """A primary alone with two standbys cannot prove that it still leads, and grants nothing."""
    cluster = bootstrapped(3, 2)
    cluster.stop(1)
    cluster.stop(2)
    cluster.step(0, ReadIndexRequested(1))
    cluster.step(STANDBY, ReadIndexRequested(2))
    cluster.pass_time(LONG_MS)

    assert set(cluster.reads) == {1, 2}


def test_entries_are_repeated_to_voters_alone() -> None:
    """A standby, which answers nothing, costs the primary one message for each entry."""
    cluster = bootstrapped(3, 1)
    cluster.batch(0)
    lose_messages_to(cluster, 1, 2, STANDBY)
    cluster.now_ticks += 100
    effects = cluster.tick(0)

    repeated = {
        effect.to_replica
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, PrepareMessage)
    }
    assert repeated == {1, 2}


def test_a_blank_standby_takes_no_bootstrap_entry() -> None:
    """A blank standby journals nothing, not even op 1, before its disk says that it is a
    standby."""
    cluster = CoreCluster(3, 1)
    for index in (STANDBY, 2, 1, 0):
        cluster.start(index)
    cluster.settle()
    cluster.found(0)
    cluster.settle()
    message = PrepareMessage(CLUSTER_ID, 0, 0, cluster.machines[0].journal[0])

    assert dropped_rules(cluster.receive(STANDBY, message)) == [DropRule.NOT_AN_INITIAL_MEMBER]
    assert cluster.machines[STANDBY].writes == []


def test_a_standby_that_lost_its_disk_is_a_standby() -> None:
    """An empty disk is filled again, and earns no vote."""
    cluster = bootstrapped(3, 1)
    cluster.batch(0)
    cluster.settle()
    cluster.stop(STANDBY)
    cluster.machines[STANDBY].lose_disk()
    cluster.start(STANDBY)
    cluster.pass_time(3 * LONG_MS)

    core = cluster.machines[STANDBY].replica
    assert core.marks.applied_op == 2
    assert (core.is_standby, core.is_voter) == (True, False)
    assert cluster.machines[0].replica.view == 0


def test_a_standby_executes_what_its_journal_holds_before_it_hears_anybody() -> None:
    """A restarted standby goes on from the commits that its disk knows."""
    cluster = bootstrapped(3, 1)
    cluster.batch(0)
    cluster.pass_time(LONG_MS)
    cluster.stop(STANDBY)

    effects = cluster.start(STANDBY)

    assert [effect.op for effect in effects if isinstance(effect, Commit)] == [1]


@settings(max_examples=20)
@given(
    st.sampled_from([3, 3, 4, 5]),
    st.integers(min_value=1, max_value=2),
    st.integers(min_value=0, max_value=2**32),
)
def test_no_storm_forks_with_standbys_and_after_it_they_have_all(
    replica_count: int, standby_count: int, seed: int
) -> None:
    """Loss, partitions, crashes, rot, a lost disk: one history, and standbys have it in the end."""
    storm = weather(replica_count, seed, STORM_STEPS, standby_count)

    assert not any(machine.replica.is_voter for machine in storm.cluster.standbys)
