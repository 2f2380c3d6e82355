"""Statements of "Viewstamped Replication Revisited" on view changes and recovery, and guards.

A guard prevents one of the protocol's known pitfalls that no transcript shows.
"""

from __future__ import annotations

import pytest

from coordinator.vsr import (
    NOT_ADMITTED,
    Commit,
    CoreState,
    Dropped,
    DropRule,
    InvariantViolation,
    PersistPrepares,
    PersistSuperblock,
    RecordId,
    ReplicaStatus,
    Send,
    SendCommitted,
    SnapshotNeeded,
)
from coordinator.vsr.effects import Effect
from coordinator.vsr.log import LogEntry, LogTail
from coordinator.vsr.messages import (
    AdmissionMessage,
    CommitMessage,
    CommitOkMessage,
    CommittedMessage,
    DoViewChangeMessage,
    PrepareMessage,
    PrepareOkMessage,
    RequestCommittedMessage,
    RequestStartViewMessage,
    StartViewChangeMessage,
    StartViewMessage,
)
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, CoreCluster, bootstrapped
from viewstamp.format.prepare import SealedPrepare
from viewstamp.limits import FORFEIT_LAG_OPS, SUSPICION_JITTER_MS, SUSPICION_MS, TICK_MS

NONCE = bytes(16)
PATIENCE_TICKS = (SUSPICION_MS + SUSPICION_JITTER_MS) // TICK_MS


def quiet(replica_count: int) -> CoreCluster:
    """A bootstrapped cluster in which everybody knows that op 1 is committed."""
    cluster = bootstrapped(replica_count)
    cluster.pass_time(50)
    cluster.network.clear()
    return cluster


def sent(effects: list[Effect], kind: type) -> list[int]:
    """Return the receivers of messages of `kind`."""
    return [e.to_replica for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def rules(effects: list[Effect]) -> list[DropRule]:
    """The rules by which messages were dropped."""
    return [effect.rule for effect in effects if isinstance(effect, Dropped)]


def pre_vote(replica: int, target_view: int) -> StartViewChangeMessage:
    """A pre-vote of a replica."""
    return StartViewChangeMessage(CLUSTER_ID, replica, target_view)


def empty_vote(replica: int, view: int, commit: int = 1, log_view: int = 0) -> DoViewChangeMessage:
    """The vote of a replica with nothing above the commit point."""
    return DoViewChangeMessage(
        CLUSTER_ID, replica, view, log_view, commit, commit, (), (), head_uncertain=False
    )


def leave(cluster: CoreCluster, index: int, view: int) -> None:
    """Have a backup suspect its primary, and find the others of the same mind."""
    cluster.now_ticks += 2 * PATIENCE_TICKS
    cluster.tick(index)
    for other in range(len(cluster.machines)):
        if other != index:
            cluster.receive(index, pre_vote(other, view))


def test_a_replica_in_a_view_change_does_not_accept_entries_of_the_view_it_left() -> None:
    """Otherwise the old primary could commit entries that are not in the vote (P11)."""
    cluster = quiet(3)
    cluster.batch(0)
    prepare = next(s.message for _, s in cluster.network if isinstance(s.message, PrepareMessage))
    leave(cluster, 1, 1)

    assert rules(cluster.receive(1, prepare)) == [DropRule.OLDER_VIEW]


def test_a_vote_follows_a_quorum_of_pre_votes_and_a_durable_view() -> None:
    """A vote needs both, and goes to the primary of the new view (P9)."""
    cluster = quiet(3)
    leave(cluster, 2, 1)
    assert cluster.machines[2].replica.status is ReplicaStatus.VIEW_CHANGE
    assert not any(isinstance(s.message, DoViewChangeMessage) for _, s in cluster.network)

    assert sent(cluster.sync_superblock(2), DoViewChangeMessage) == [1]


def test_a_vote_waits_for_the_writes_that_are_under_way() -> None:
    """An entry whose write is under way can still be lost, so it is neither there nor absent."""
    cluster = quiet(3)
    cluster.batch(0)
    cluster.deliver(1)
    leave(cluster, 2, 1)

    assert sent(cluster.sync_superblock(2), DoViewChangeMessage) == []
    assert sent(cluster.sync(2), DoViewChangeMessage) == [1]


def test_the_new_primary_waits_for_a_quorum_of_votes_its_own_included() -> None:
    """One vote of another replica chooses nothing while the own disk has not answered."""
    cluster = quiet(3)

    entered = cluster.receive(1, empty_vote(2, 1))
    (begun,) = [effect.state for effect in entered if isinstance(effect, PersistSuperblock)]
    chosen = cluster.sync_superblock(1)

    assert begun == CoreState(1, 0, 1)
    assert CoreState(1, 1, 1) in [e.state for e in chosen if isinstance(e, PersistSuperblock)]


def test_the_new_primary_tells_all_the_log_once_its_disk_has_the_log_view() -> None:
    """Not before: a crash could make it forget that the view had a log (P10)."""
    cluster = quiet(3)
    cluster.receive(1, empty_vote(2, 1))
    assert sent(cluster.sync_superblock(1), StartViewMessage) == []

    assert sent(cluster.sync_superblock(1), StartViewMessage) == [0, 2]


def test_a_backup_vouches_for_what_is_uncommitted_when_it_takes_the_log_up() -> None:
    """An entry journaled in view 0 is acknowledged again in view 1."""
    cluster = quiet(3)
    cluster.batch(0)
    entry = cluster.machines[0].replica
    for index in (1, 2):
        cluster.deliver(0)
        cluster.sync(index)
    cluster.network.clear()
    header = cluster.machines[2].journal[-1].header
    start = StartViewMessage(CLUSTER_ID, 1, 1, NONCE, 1, 2, (header,))
    assert entry.view == 0

    cluster.receive(2, start)
    cluster.sync_superblock(2)

    assert sent(cluster.sync_superblock(2), PrepareOkMessage) == [1]


def test_a_backup_that_knows_of_more_commits_still_vouches_for_them() -> None:
    """The primary of the new view does not know yet, and counts copies."""
    cluster = quiet(3)
    cluster.batch(0)
    cluster.pass_time(100)
    header = cluster.machines[2].journal[-1].header
    assert cluster.machines[2].replica.marks.commit_max == 2

    cluster.receive(2, StartViewMessage(CLUSTER_ID, 1, 1, NONCE, 1, 2, (header,)))
    cluster.sync_superblock(2)

    assert sent(cluster.sync_superblock(2), PrepareOkMessage) == [1]


def test_a_recovering_replica_does_not_take_part_in_normal_operation() -> None:
    """A recovering replica neither journals nor acknowledges, and asks for the log of its view."""
    cluster = quiet(3)
    cluster.batch(0)
    prepare = next(s.message for _, s in cluster.network if isinstance(s.message, PrepareMessage))

    started = cluster.start(1)
    heard = cluster.receive(1, prepare)

    assert sent(started, RequestStartViewMessage) == [0]
    assert not any(isinstance(effect, PersistPrepares) for effect in heard)


def test_a_start_view_with_less_than_this_replica_vouched_for_is_stale() -> None:
    """An old StartView of the same view must not take entries away after a restart (P4)."""
    cluster = quiet(3)
    cluster.batch(0)
    cluster.settle()
    cluster.start(1)

    effects = cluster.receive(1, StartViewMessage(CLUSTER_ID, 0, 0, NONCE, 1, 1, ()))

    assert rules(effects) == [DropRule.STALE_START_VIEW]
    assert cluster.machines[1].replica.marks.op == 2


def test_who_is_far_behind_lets_another_lead() -> None:
    """The primary-elect pre-votes for the next view as soon as the votes say so (P15)."""
    cluster = quiet(3)
    cluster.receive(1, empty_vote(2, 1, commit=2 + FORFEIT_LAG_OPS))

    effects = cluster.sync_superblock(1)

    assert sent(effects, StartViewChangeMessage) == [0, 2]
    assert sent(effects, RequestCommittedMessage) == [2], "and catches up meanwhile"


def test_who_is_a_little_behind_leads() -> None:
    """Up to the limit it only catches up."""
    cluster = quiet(3)
    cluster.receive(1, empty_vote(2, 1, commit=1 + FORFEIT_LAG_OPS))

    assert sent(cluster.sync_superblock(1), StartViewChangeMessage) == []


def test_what_is_committed_is_never_discarded() -> None:
    """A request to discard a committed entry is a bug, and ends the process (P14)."""
    state = quiet(3).machines[1].replica.state

    with pytest.raises(InvariantViolation, match="above the commit point"):
        state.discard_after(0)


def test_old_pre_votes_do_not_add_up() -> None:
    """A pre-vote that is not repeated is forgotten (P16)."""
    cluster = quiet(3)
    cluster.receive(2, pre_vote(1, 1))
    cluster.now_ticks += 2 * PATIENCE_TICKS

    cluster.tick(2)

    assert cluster.machines[2].replica.view == 0


def newcomer() -> CoreCluster:
    """Return a cluster whose replica 2 lost its disk, and follows without a vote."""
    cluster = quiet(3)
    cluster.stop(2)
    cluster.machines[2].lose_disk()
    cluster.start(2)
    cluster.pass_time(70)
    assert cluster.machines[2].replica.status is ReplicaStatus.NORMAL
    assert not cluster.machines[2].replica.is_voter
    cluster.network.clear()
    return cluster


def test_a_non_voter_journals_and_executes_and_vouches_for_nothing() -> None:
    """Neither a non-voter's copy nor its confirmation of the view counts (P19, P20)."""
    cluster = newcomer()
    cluster.batch(0)
    cluster.deliver(1)

    written = cluster.sync(2)
    checksum = cluster.machines[0].journal[0].checksum
    asked = cluster.receive(2, CommitMessage(CLUSTER_ID, 0, 0, 1, checksum, 1))

    assert cluster.machines[2].journal[-1].op == 2
    assert sent(written, PrepareOkMessage) == []
    assert sent(asked, CommitOkMessage) == []


def test_a_non_voter_neither_pre_votes_nor_votes() -> None:
    """A non-voter may have promised its vote to others before it lost its disk (P19)."""
    cluster = newcomer()
    cluster.now_ticks += 2 * PATIENCE_TICKS

    pre_voted = cluster.tick(2)
    cluster.receive(2, empty_vote(1, 1))
    cluster.sync_superblock(2)

    assert sent(pre_voted, StartViewChangeMessage) == []
    assert cluster.machines[2].replica.view == 1
    assert not any(isinstance(s.message, DoViewChangeMessage) for _, s in cluster.network)


def test_a_newcomer_journals_nothing_before_its_disk_says_what_it_is() -> None:
    """Otherwise a crash would turn it into an initial member with an empty memory (P19)."""
    cluster = quiet(3)
    entry = cluster.machines[0].journal[0]
    cluster.stop(2)
    cluster.machines[2].lose_disk()
    cluster.start(2)
    begun = cluster.receive(2, CommitMessage(CLUSTER_ID, 0, 0, 1, b"", 0))

    early = cluster.receive(2, CommittedMessage(CLUSTER_ID, 0, entry, 1))

    assert [e.state.voting_view for e in begun if isinstance(e, PersistSuperblock)] == [
        NOT_ADMITTED
    ]
    assert rules(early) == [DropRule.NOT_LACKING]
    asked = cluster.sync_superblock(2)
    assert sent(asked, RequestCommittedMessage) == [0]
    taken = cluster.receive(2, CommittedMessage(CLUSTER_ID, 0, entry, 1))
    assert [e.op for e in taken if isinstance(e, Commit)] == [1]


def test_an_admission_of_an_earlier_boot_is_dropped() -> None:
    """The admission may be older than what the disk lost since."""
    effects = newcomer().receive(2, AdmissionMessage(CLUSTER_ID, 0, 0, NONCE, 2))

    assert rules(effects) == [DropRule.NOT_A_NEWCOMER]


def test_an_initial_member_that_missed_its_bootstrap_has_a_vote() -> None:
    """Op 1 names its boot: it was blank then, and forgot nothing since."""
    cluster = CoreCluster(3)
    for index in (1, 2, 0):
        cluster.start(index)
    cluster.settle()
    cluster.stopped.add(2)
    cluster.found(0)
    cluster.pass_time(50)
    cluster.stopped.clear()

    cluster.pass_time(300)

    assert cluster.machines[2].replica.status is ReplicaStatus.NORMAL
    assert cluster.machines[2].replica.is_voter
    assert cluster.machines[2].replica.view == 0


def test_a_bootstrap_is_finished_by_the_restarted_primary() -> None:
    """A primary that crashed before it told anyone of op 1 gives it to the blank ones, and they
    vote."""
    cluster = CoreCluster(3)
    for index in (1, 2, 0):
        cluster.start(index)
    cluster.settle()
    cluster.found(0)
    cluster.sync(0)
    cluster.sync_superblock(0)
    cluster.network.clear()

    cluster.start(0)
    cluster.pass_time(2_000)

    replicas = [machine.replica for machine in cluster.machines]
    assert all(replica.status is ReplicaStatus.NORMAL for replica in replicas)
    assert [replica.marks.applied_op for replica in replicas] == [1, 1, 1]


def test_only_what_is_known_to_be_committed_is_given_as_committed() -> None:
    """An uncommitted entry is never given as committed."""
    cluster = quiet(3)
    cluster.batch(0)
    cluster.sync(0)

    beyond = cluster.receive(0, RequestCommittedMessage(CLUSTER_ID, 1, 2, 2))
    both = cluster.receive(0, RequestCommittedMessage(CLUSTER_ID, 1, 1, 2))

    assert rules(beyond) == [DropRule.NOT_HELD]
    assert [e for e in both if isinstance(e, SendCommitted)] == [SendCommitted(1, 1, 1)]


def truncated() -> CoreCluster:
    """A cluster that committed 20 entries without replica 2, and truncated those up to 14."""
    cluster = quiet(3)
    cluster.stop(2)
    for _ in range(19):
        cluster.batch(0)
        cluster.settle()
    for machine in cluster.machines[:2]:
        machine.first_held_op, machine.generation = 14, 3
    return cluster


def test_who_lacks_truncated_entries_asks_for_the_snapshot_until_it_is_there() -> None:
    """The peer names the snapshot that covers them; the shell fetches it and restarts. It may give
    up a fetch that the log made needless, so each answer of a peer asks it again."""
    cluster = truncated()
    cluster.start(2)

    cluster.pass_time(500)

    asked = cluster.machines[2].alarms
    assert len(asked) > 1
    assert {type(each) for each in asked} == {SnapshotNeeded}
    assert SnapshotNeeded(0, 3, 13) in asked
    assert cluster.machines[2].replica.status is ReplicaStatus.VIEW_CHANGE


def test_a_member_restarts_from_a_snapshot_beyond_its_journal() -> None:
    """The entry at the cut is fetched, since the next one chains to it; then it goes on."""
    cluster = truncated()
    behind = cluster.machines[2]
    behind.journal = list(cluster.machines[0].journal[:14])
    behind.damaged = set(range(1, 15))

    cluster.start(2, base_op=14)
    cluster.pass_time(500)

    assert behind.replica.status is ReplicaStatus.NORMAL
    assert behind.replica.marks.applied_op == 20
    assert 14 not in behind.damaged


def test_a_damaged_record_is_written_anew_and_handed_out_with_its_body() -> None:
    """A peer can read a record that the driver could not read for execution (J3)."""
    cluster = quiet(3)
    for _ in range(4):
        cluster.batch(0)
        cluster.settle()
    machine = cluster.machines[2]
    machine.forget()
    start = machine.start_event()
    machine.damaged = {3}

    effects = cluster.step(2, start)
    cluster.pass_time(500)

    assert [(e.op, e.prepare) for e in effects if isinstance(e, Commit)][2] == (3, None)
    assert machine.found_damaged == {3}
    assert machine.damaged == set()
    assert machine.replica.marks.applied_op == 5


def test_the_superblock_tells_of_no_commit_that_is_not_durable() -> None:
    """A crash could leave another entry there, which the commit would then be taken to mean."""
    cluster = quiet(3)
    cluster.batch(0)
    for index in (0, 1):
        cluster.deliver(0)
        cluster.sync(index)
    entry = cluster.machines[2].writes[0]
    assert isinstance(entry, SealedPrepare)
    cluster.receive(2, CommitMessage(CLUSTER_ID, 0, 0, 2, entry.checksum, 0))
    assert cluster.machines[2].replica.marks.commit_max == 2

    leave(cluster, 2, 1)

    assert cluster.machines[2].superblock_write == CoreState(1, 0, 1)


def test_a_restarted_primary_does_not_lead_its_view() -> None:
    """A restarted primary does not choose its view's log: others may have committed its entries."""
    cluster = quiet(3)
    cluster.start(0)

    voted = cluster.receive(0, empty_vote(1, 0))
    asked = cluster.receive(0, RequestStartViewMessage(CLUSTER_ID, 1, 0, NONCE))

    assert rules(voted) == [DropRule.RESTARTED_PRIMARY]
    assert rules(asked) == [DropRule.NOT_INSTALLED]


def test_a_write_that_was_discarded_does_not_make_its_entry_durable() -> None:
    """The same entry is written once more; only that write stays on the disk."""
    prepare = bootstrapped(1).machines[0].journal[0]
    log, first, again = (
        LogTail(),
        LogEntry(prepare.header, prepare, 0),
        LogEntry(prepare.header, prepare, 0),
    )
    record = RecordId(1, prepare.checksum)
    log.append(first)
    log.discard_after(0)
    log.append(again)

    assert log.finish_write(record) is None
    assert not again.durable
    assert log.finish_write(record) is again
    assert again.durable


def test_a_restarted_primary_of_a_later_view_makes_the_others_follow() -> None:
    """The restarted primary takes part in no earlier view; a replica in one learns of the later."""
    cluster = quiet(3)
    cluster.machines[2].superblock = CoreState(2, 0, 1)
    cluster.start(2)

    cluster.pass_time(1_000)

    replicas = [machine.replica for machine in cluster.machines]
    assert {replica.status for replica in replicas} == {ReplicaStatus.NORMAL}
    assert len({replica.view for replica in replicas}) == 1
    assert replicas[2].view >= 2
