"""Epochs end amid crashes, damage and lost messages: what a hostile reading found."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.vsr import (
    Abdicate,
    BootstrapReady,
    Membership,
    ReadIndexRefused,
    ReadIndexRequested,
    RecordFaulty,
    RefusalReason,
    Refused,
    ReplicaStatus,
    Send,
)
from coordinator.vsr.membership import epoch_of, view_in
from coordinator.vsr.messages import (
    AdmissionMessage,
    CommitMessage,
    CommittedMessage,
    EpochEndedMessage,
    Message,
    PrepareMessage,
    PrepareOkMessage,
    RequestCommittedMessage,
    RequestStartViewMessage,
    StartViewChangeMessage,
)
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, CoreCluster, bootstrapped
from tests.coordinator.vsr.epoch_steps import change, primary_of, serves
from viewstamp.limits import START_VIEW_REQUEST_MS, TICK_MS


def deliver_where(cluster: CoreCluster, want: Callable[[int, Send], bool]) -> None:
    """Deliver what is wanted and in flight now, once."""
    for item in [each for each in cluster.network if want(*each)]:
        if item in cluster.network:
            cluster.deliver(cluster.network.index(item))


def kind(of: type, *to: int) -> Callable[[int, Send], bool]:
    """Messages of one kind to these replicas."""
    return lambda source, send: isinstance(send.message, of) and send.to_replica in to


def sync_superblocks(cluster: CoreCluster, index: int) -> None:
    """Complete all writes of the superblock."""
    while cluster.machines[index].superblock_write is not None:
        cluster.sync_superblock(index)


def play(
    cluster: CoreCluster, ticks: int, running: tuple[int, ...], slow_superblock: int | None = None
) -> None:
    """Let time pass for some replicas; the superblock of one may never be written."""
    for _ in range(ticks):
        cluster.now_ticks += 1
        for each in running:
            cluster.tick(each)
        for _ in range(6):
            deliver_where(cluster, lambda source, send: send.to_replica in running)
            cluster.network = [each for each in cluster.network if each[1].to_replica in running]
            for each in running:
                machine = cluster.machines[each]
                if each == slow_superblock and machine.writes:
                    cluster.sync(each)
                if each != slow_superblock:
                    cluster.settle_disk(machine)


def primary_of_others(cluster: CoreCluster, cut_off: int) -> int:
    """The one that leads those that are not cut off."""
    others = [machine.replica for machine in cluster.machines if machine.index != cut_off]
    (leader,) = {each.primary for each in others if each.status is ReplicaStatus.NORMAL}
    return leader


def test_no_superblock_is_of_an_epoch_whose_change_is_not_durable_yet() -> None:
    """Two of three new voters lose power with the change on its way to their disks. They must not
    be a majority that denies it."""
    cluster = bootstrapped(4)
    cluster.change(0, cluster.next_epoch((1, 2, 3)))
    deliver_where(cluster, kind(PrepareMessage, 1, 2, 3))
    cluster.sync(0)
    cluster.sync(1)
    deliver_where(cluster, kind(PrepareOkMessage, 0))
    assert cluster.machines[0].replica.status is ReplicaStatus.REMOVED  # committed by 0 and 1
    deliver_where(cluster, kind(EpochEndedMessage, 1, 2, 3))
    sync_superblocks(cluster, 1)
    cluster.settle_disk(cluster.machines[1])  # 1 executes the change
    sync_superblocks(cluster, 2)
    sync_superblocks(cluster, 3)
    cluster.network.clear()
    for each in range(4):
        cluster.stop(each)
    for each in (2, 3):
        cluster.start(each)
    cluster.pass_time(3000)
    for each in (2, 3):
        cluster.batch(each)
    cluster.pass_time(1000)

    for each in (0, 1):
        cluster.start(each)
    cluster.pass_time(3000)
    assert serves(cluster)


def test_the_last_voter_takes_the_change_from_the_removed_one() -> None:
    """The survivor of two lost the end of its journal before it heard that it is alone now."""
    cluster = bootstrapped(2)
    cluster.change(0, cluster.next_epoch((1,)))
    cluster.settle(lambda to, message: not isinstance(message, EpochEndedMessage))
    assert cluster.machines[0].replica.status is ReplicaStatus.REMOVED
    one = cluster.machines[1]
    cluster.stop(1)
    one.damaged, one.hides_head = {2}, True
    cluster.start(1)
    cluster.pass_time(2000)
    assert serves(cluster)


def test_a_damaged_old_change_is_repaired() -> None:
    """The record of a change long ago is found damaged while it is read for another replica."""
    cluster = bootstrapped(3)
    change(cluster, (0, 1, 2))
    op = max(cluster.history)
    for _ in range(40):
        cluster.batch(0)
        cluster.settle()
    cluster.pass_time(100)
    cluster.machines[1].damaged.add(op)
    cluster.step(1, RecordFaulty(op))
    cluster.pass_time(1000)
    assert serves(cluster)


def test_entries_of_an_epoch_wait_for_a_superblock_that_knows_it() -> None:
    """A laggard takes nothing behind a change before its superblock has the next epoch: a restart
    would find the change nowhere."""
    cluster = bootstrapped(3)
    cluster.stop(2)
    cluster.change(0, cluster.next_epoch((0, 1, 2)))
    cluster.settle()
    for _ in range(10):
        cluster.batch(0)
        cluster.settle()
    two = cluster.machines[2]
    cluster.start(2)

    play(cluster, 200, running=(0, 1, 2), slow_superblock=2)

    assert len(two.journal) == 2
    cluster.start(2)
    cluster.pass_time(5000)
    assert serves(cluster)


def test_a_primary_that_mends_its_committed_change_answers_no_reads() -> None:
    """The next epoch goes on without it, and it would not see what that acknowledged."""
    cluster = bootstrapped(4)
    cluster.change(0, cluster.next_epoch((1, 2, 3), place=1))
    deliver_where(cluster, kind(PrepareMessage, 1, 2, 3))
    cluster.sync(0)
    cluster.step(0, RecordFaulty(2))  # rewritten from memory: a write that takes time
    cluster.sync(2)
    cluster.sync(3)
    deliver_where(cluster, kind(PrepareOkMessage, 0))
    assert cluster.machines[0].replica.marks.commit_max == 2
    cluster.now_ticks += 10
    cluster.tick(0)
    deliver_where(cluster, kind(CommitMessage, 2, 3))
    cluster.network.clear()
    play(cluster, 3, running=(2, 3))
    cluster.batch(2)
    play(cluster, 3, running=(2, 3))
    assert max(cluster.history) == 3

    refused = [*cluster.step(0, ReadIndexRequested(7)), *cluster.batch(0)]

    reasons = [each.reason for each in refused if isinstance(each, Refused | ReadIndexRefused)]
    assert reasons == [RefusalReason.EPOCH_ENDING] * 2


def test_who_is_told_of_a_change_that_it_cannot_fetch_still_elects() -> None:
    """One has the change and was not told that it is committed; one was told and lacks it. The two
    are a majority, and find out together."""
    cluster = bootstrapped(3)
    cluster.change(0, cluster.next_epoch((1, 2)))
    deliver_where(cluster, kind(PrepareMessage, 1))
    cluster.sync(0)
    cluster.sync(1)
    deliver_where(cluster, kind(PrepareOkMessage, 0))
    assert cluster.machines[0].replica.status is ReplicaStatus.REMOVED
    deliver_where(cluster, kind(EpochEndedMessage, 2))
    cluster.network.clear()
    cluster.stop(0)
    cluster.pass_time(20_000)
    assert {epoch_of(cluster.machines[i].replica.view) for i in (1, 2)} == {1}


def test_a_removed_replica_asks_for_nothing() -> None:
    """It may know that more is committed than it has, and needs none of it."""
    cluster = bootstrapped(4)
    cluster.change(0, cluster.next_epoch((0, 1, 2)))
    cluster.settle(lambda to, message: to != 3)
    for _ in range(5):
        cluster.batch(0)
        cluster.settle(lambda to, message: to != 3)
    cluster.pass_time(3000)
    assert cluster.machines[3].replica.status is ReplicaStatus.REMOVED
    came: list[Message] = []

    def noted(to: int, message: Message) -> bool:
        came.append(message)
        return True

    cluster.pass_time(5000, noted)

    assert not [each for each in came if isinstance(each, CommittedMessage)]


def test_a_primary_whose_change_is_damaged_stops_acting_when_its_epoch_is_over() -> None:
    """It cannot enter the next epoch before the change is mended, and leads no more."""
    cluster = bootstrapped(3)
    cluster.change(0, cluster.next_epoch((0, 1, 2)))
    cluster.sync(0)
    cluster.step(0, RecordFaulty(2))
    checksum = cluster.machines[0].journal[1].checksum

    cluster.receive(0, EpochEndedMessage(CLUSTER_ID, 1, 1, 2, checksum))

    assert cluster.machines[0].replica.status is ReplicaStatus.RECOVERING


def test_a_hand_over_goes_on_in_the_next_epoch() -> None:
    """A primary that was asked to resign does so, although its epoch ends meanwhile."""
    cluster = bootstrapped(3)
    cluster.change(0, cluster.next_epoch((0, 1, 2)))
    cluster.step(0, Abdicate("asked to"))
    deliver_where(cluster, kind(PrepareMessage, 1, 2))
    for replica in (0, 1, 2):
        cluster.sync(replica)
    deliver_where(cluster, kind(PrepareOkMessage, 0))
    assert epoch_of(cluster.machines[0].replica.view) == 1

    cluster.pass_time(3000)

    assert primary_of(cluster) != 0
    assert cluster.membership.epoch == 1


def test_a_replica_that_is_told_of_a_later_epoch_founds_nothing() -> None:
    """The only voter of a later epoch, on an empty disk, waits instead of founding a cluster."""
    cluster = bootstrapped(1, newcomer_count=1)
    cluster.memberships[3] = Membership(view_in(3, 0), (1,), began_op=9)

    effects = cluster.start(1)

    assert cluster.machines[1].replica.membership.epoch == 3
    assert not [each for each in effects if isinstance(each, BootstrapReady)]


def test_a_replica_without_a_vote_does_not_lead_the_first_view() -> None:
    """It may have led that view before it lost its disk, with another log."""
    cluster = bootstrapped(3)
    cluster.stop(0)
    cluster.pass_time(3000)
    leader = primary_of(cluster)
    cluster.machines[0].lose_disk()
    cluster.start(0)
    cluster.pass_time(500, lambda to, message: not isinstance(message, AdmissionMessage))
    assert not cluster.machines[0].replica.is_voter
    assert cluster.machines[0].replica.marks.commit_max == max(cluster.history)
    cluster.change(leader, cluster.next_epoch((0, 1, 2), place=0))

    cluster.pass_time(3000)

    first_view = cluster.membership.first_view
    assert epoch_of(cluster.machines[leader].replica.view) == 1
    assert cluster.machines[leader].replica.view > first_view
    assert all(machine.replica.is_voter for machine in cluster.voters)
    assert serves(cluster)


def test_a_primary_of_an_epoch_that_is_over_takes_what_others_committed() -> None:
    """It was cut off with an entry of its own in the place of the change, and still leads its
    view; told of the next epoch it commits nothing of that, and catches up."""
    cluster = bootstrapped(3)
    cluster.batch(0)
    cluster.sync(0)
    cluster.network.clear()
    cluster.pass_time(2000, lambda to, message: 0 not in (to, message.from_replica))
    leader = primary_of_others(cluster, 0)
    cluster.change(leader, cluster.next_epoch((0, 1, 2), place=leader))
    cluster.settle(lambda to, message: 0 not in (to, message.from_replica))
    assert epoch_of(cluster.machines[leader].replica.view) == 1
    old = cluster.machines[0]
    assert (old.replica.primary, old.replica.status) == (0, ReplicaStatus.NORMAL)

    cluster.pass_time(1000)

    assert old.journal[1].checksum == cluster.machines[leader].journal[1].checksum
    assert epoch_of(old.replica.view) == 1
    assert serves(cluster)


def test_a_founder_on_an_empty_disk_hears_of_its_cluster_from_a_stranger() -> None:
    """It knows the founders alone, and the primary is a replica that was added since."""
    cluster = bootstrapped(3, newcomer_count=1)
    change(cluster, (0, 1, 2), (3,))
    cluster.change(0, cluster.next_epoch((0, 1, 2, 3), place=3))
    cluster.pass_time(1000)
    assert primary_of(cluster) == 3
    cluster.stop(0)
    cluster.machines[0].lose_disk()

    cluster.start(0)
    cluster.pass_time(3000)

    founder = cluster.machines[0].replica
    assert (founder.status, founder.is_voter) == (ReplicaStatus.NORMAL, True)


def test_clients_of_a_removed_primary_are_answered() -> None:
    """What was committed with its removal is handed out there, too."""
    cluster = bootstrapped(3)
    cluster.batch(0)
    cluster.change(0, cluster.next_epoch((1, 2)))

    cluster.settle()

    assert cluster.machines[0].replica.status is ReplicaStatus.REMOVED
    assert cluster.machines[0].applied_op == 3


def asked_by_sleeper(cluster: CoreCluster, message: Message, *of: type) -> list[int]:
    """Have replica 2 hear a message again and again, and return whom it sends those of a kind."""
    sent: list[int] = []
    for _ in range(20):
        effects = cluster.receive(2, message)
        for _ in range(START_VIEW_REQUEST_MS // TICK_MS):
            cluster.now_ticks += 1
            effects += cluster.tick(2)
        found = [each for each in effects if isinstance(each, Send)]
        sent += [each.to_replica for each in found if isinstance(each.message, of)]
    return sent


def test_who_slept_fetches_from_whoever_tells_of_the_epoch_last() -> None:
    """All that it knows are gone, and so is the member that told it first. Another one that tells
    the same has the entries, too."""
    cluster = bootstrapped(3)
    for member in (7, 8):
        told = EpochEndedMessage(CLUSTER_ID, member, 4, 50, b"c" * 16)
        assert member in asked_by_sleeper(cluster, told, RequestCommittedMessage)


def test_who_slept_asks_a_later_epoch_again() -> None:
    """The answer to its question may be lost; as long as it hears a member, it asks once more."""
    cluster = bootstrapped(3)
    heartbeat = CommitMessage(CLUSTER_ID, 8, view_in(4, 1), 60, b"c" * 16, 0)
    ended = EpochEndedMessage(CLUSTER_ID, 7, 4, 50, b"c" * 16)
    cluster.receive(2, ended)
    asked = asked_by_sleeper(cluster, heartbeat, StartViewChangeMessage, RequestStartViewMessage)
    assert asked.count(8) > 1
