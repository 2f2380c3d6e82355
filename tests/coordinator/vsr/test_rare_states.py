"""States that few histories lead to: what each of them does, and what it leaves alone."""

from __future__ import annotations

from coordinator.vsr import (
    Abdicate,
    CoreState,
    DiscardAfter,
    DropRule,
    RecordFaulty,
    ReplicaStatus,
)
from coordinator.vsr.log_selection import Unrecoverable, choose
from coordinator.vsr.messages import (
    CommittedMessage,
    PrepareMessage,
    RequestAdmissionMessage,
    StartViewMessage,
)
from coordinator.vsr.timeouts import TimeoutName
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, bootstrapped
from tests.coordinator.vsr.test_choice_of_log import chain, make, vote
from tests.coordinator.vsr.test_late_admission import LOST, lost_its_disk
from tests.coordinator.vsr.test_logs_that_differ import another_entry_after
from tests.coordinator.vsr.test_superseded_logs import joins, left_behind
from tests.coordinator.vsr.test_view_change_statements import (
    NONCE,
    empty_vote,
    leave,
    quiet,
    rules,
    sent,
)


def test_an_entry_that_was_replaced_goes_before_a_damaged_one_behind_it_is_fetched() -> None:
    """The chosen entry behind it names another parent, which is all that tells."""
    cluster, _, new = left_behind(committed=1, in_vain=2)
    cluster.batch(1)
    cluster.pass_time(100)
    third = cluster.machines[1].journal[2]
    assert third.header.parent == new.checksum
    cluster.machines[2].damaged = {3}
    cluster.machines[2].superblock = CoreState(0, 0, 1)
    cluster.start(2)
    cluster.network.clear()

    effects = cluster.receive(2, StartViewMessage(CLUSTER_ID, 1, 1, NONCE, 2, 3, (third.header,)))

    assert [e.op for e in effects if isinstance(e, DiscardAfter)] == [1]
    joins(cluster, 2)


def test_of_two_entries_that_may_both_be_committed_none_is_chosen() -> None:
    """The one log that could tell has its entry damaged."""
    log = chain(0, 0)
    later = [log[0], make(2, 1, log[0].checksum)]
    votes = [vote(0, later, log_view=2, faulty=(2,)), vote(1, later, log_view=1), vote(2, log)]

    assert choose(votes, 3, bootstrapped(3).machines[0].replica.state.quorums) == Unrecoverable(2)


def test_nothing_follows_a_head_of_which_nothing_is_known() -> None:
    """No rule leads a backup there; it would still not take an entry whose parent it cannot see."""
    cluster = quiet(3)
    cluster.machines[2].replica.state.log.head = None
    cluster.batch(0)
    (prepare,) = {s.message for _, s in cluster.network if isinstance(s.message, PrepareMessage)}

    assert rules(cluster.receive(2, prepare)) == [DropRule.BROKEN_CHAIN]


def test_an_entry_of_another_log_does_not_mend_a_damaged_one_that_memory_knows() -> None:
    """On a full disk the damaged entry stays so, until a later view's log replaces it."""
    cluster = quiet(3)
    cluster.batch(0)
    while cluster.network:
        cluster.deliver()
    cluster.sync(2)
    cluster.network.clear()
    cluster.step(2, RecordFaulty(2, has_room=False))
    another = another_entry_after(cluster.machines[2].journal[0].header, view=1)

    effects = cluster.receive(2, CommittedMessage(CLUSTER_ID, 1, another, 2))

    assert rules(effects) == [DropRule.LOG_REPLACED]


def test_who_is_asked_to_resign_while_it_is_elected_tells_nobody_of_its_log() -> None:
    """It enters its view, and waits in it for the next one."""
    cluster = quiet(3)
    leave(cluster, 1, 1)
    cluster.sync_superblock(1)
    cluster.receive(1, empty_vote(2, 1))
    cluster.network.clear()
    cluster.step(1, Abdicate("asked to"))

    effects = cluster.sync_superblock(1)

    elected = cluster.machines[1].replica
    assert (elected.status, elected.view) == (ReplicaStatus.NORMAL, 1)
    assert sent(effects, StartViewMessage) == []
    cluster.pass_time(2_000)
    assert {machine.replica.primary for machine in cluster.machines} == {2}


def test_a_newcomer_that_has_its_vote_asks_for_none() -> None:
    """A question that is due by then is not asked."""
    cluster, _ = lost_its_disk()
    newcomer = cluster.machines[LOST].replica
    for _ in range(100):
        if newcomer.status is not ReplicaStatus.NORMAL:
            cluster.pass_time(10)
    timeouts = newcomer.state.timeouts
    assert timeouts.is_armed(TimeoutName.ADMISSION)
    assert not newcomer.is_voter
    newcomer.state.voting_view = 0
    cluster.network.clear()
    cluster.now_ticks += 1_000

    assert sent(cluster.tick(LOST), RequestAdmissionMessage) == []
    assert not timeouts.is_armed(TimeoutName.ADMISSION)
