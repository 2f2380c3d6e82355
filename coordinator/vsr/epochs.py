"""From one epoch to the next: who has a vote changes with the last entry of an epoch.

The primary of an epoch sequences a *change*, like any other entry, and nothing behind it. The
voters of the epoch commit it. Whoever knows that it is committed is in the next epoch, in its first
view, with a log that ends with the change: the whole log that this view begins with. So nobody
votes for the first view, and its primary leads once its disk records that.

The change is committed by the voters before it alone, and all voters after it hold it before they
take part. So the two groups need nobody in common. What they need is that the change is heard of:
who is told that its epoch ended fetches the committed entries up to the change, as any replica
that lags behind. Members that were removed go on answering until their processes are stopped.

A change names the disks of the replicas that get a vote. One that has lost that disk since may have
forgotten votes, and asks for admission (`rejoin`). For the same reason it must not lead the first
view, which it may have led before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from coordinator.vsr import abdication, changes, reads, start_view, view_change
from coordinator.vsr.effects import DropRule, RefusalReason, ReplicaStatus
from coordinator.vsr.errors import InvariantViolation
from coordinator.vsr.membership import Membership, epoch_of
from coordinator.vsr.messages import (
    AdmissionDurableMessage,
    AdmissionMessage,
    CommitMessage,
    CommitOkMessage,
    DoViewChangeMessage,
    EpochEndedMessage,
    Message,
    PrepareHeader,
    PrepareMessage,
    PrepareOkMessage,
    ReadIndexReplyMessage,
    ReadIndexRequestMessage,
    RequestStartViewMessage,
    StartViewChangeMessage,
    StartViewMessage,
)
from coordinator.vsr.state import LogAdoption, ReplicaState

VIEW_OF: Mapping[type, Callable[[Any], int]] = {
    **dict.fromkeys(
        (
            PrepareMessage,
            PrepareOkMessage,
            CommitMessage,
            CommitOkMessage,
            ReadIndexRequestMessage,
            ReadIndexReplyMessage,
            DoViewChangeMessage,
            StartViewMessage,
            RequestStartViewMessage,
            AdmissionMessage,
            AdmissionDurableMessage,
        ),
        attrgetter("view"),
    ),
    StartViewChangeMessage: attrgetter("target_view"),
}
"""The view that a message is about. The other messages are about entries, or about a bootstrap."""

NEWS_OF_CLUSTER = (CommitMessage, StartViewChangeMessage)
"""What tells a blank replica of its cluster, whatever epoch that is in."""

OUTSIDE = (ReplicaStatus.BLANK, ReplicaStatus.HALTED, ReplicaStatus.REMOVED)
"""Statuses of a replica that takes part in no epoch."""


def settle(state: ReplicaState) -> None:
    """Settle rule: begin the next epoch once the last entry of this one is committed, and durable
    here with all before it.

    The superblock of the next epoch promises that. If it were written first, a crash could leave a
    voter of the new epoch without the change, and it would deny that the entry ever existed.
    """
    op = state.log.change_op
    if op <= state.membership.began_op:
        # Who catches up, or mends an old record, passes the ends of epochs that are over.
        state.log.change_op = 0
        return
    if op > state.recordable_commit or state.status in OUTSIDE:
        return
    entry = state.log.get(op)
    if entry is None or entry.prepare is None:
        raise InvariantViolation(f"entry {op}, which ends the epoch, is not held with its body")
    named = changes.read(state, entry.prepare.body)
    membership = replace(named, began_op=op, began_checksum=entry.header.checksum)
    state.log.change_op = 0
    if membership.epoch > state.membership.epoch:
        told = state.followers if state.is_primary else ()
        enter(state, membership, entry.header)
        for replica in told:
            tell(state, replica)


def enter(state: ReplicaState, membership: Membership, change: PrepareHeader) -> None:
    """Enter the epoch that begins behind the log that is here, which ends with `change`."""
    gets_vote = changes.gives_vote(state, membership)
    was_abdicating = state.is_abdicating
    state.take_membership(membership)
    forget_voters(state)
    if state.replica not in membership.members:
        retire(state)
        return
    if gets_vote:
        state.voting_view = membership.first_view
    view_change.enter(state, membership.first_view)
    if not state.is_primary or state.is_voter:
        # Its first view begins with all entries up to the change, which are here.
        state.installation = LogAdoption(
            state.replica, state.others, change.op, (change,), change.op
        )
    if was_abdicating and abdication.leads(state):
        abdication.give_up(state, state.view + 1)


def forget_voters(state: ReplicaState) -> None:
    """Forget what replicas said that may have no vote any more."""
    state.initial_members = {}
    state.reads.confirmed_by = set()
    state.heard_backups = set()


def retire(state: ReplicaState) -> None:
    """Take part no more, and have the disk remember it. Others may still fetch entries here."""
    reads.refuse_all(state, RefusalReason.OTHER_EPOCH)
    state.timeouts.stop_all()
    state.pre_votes, state.votes, state.installation = {}, {}, None
    state.asked_ops = frozenset()
    state.view = state.membership.first_view
    state.change_status(ReplicaStatus.REMOVED)
    state.persist_superblock()


def tell(state: ReplicaState, to_replica: int) -> None:
    """Tell a replica behind which entry this epoch began, so that its own has ended."""
    membership = state.membership
    message = EpochEndedMessage(
        state.configuration.cluster_id,
        state.replica,
        membership.epoch,
        membership.began_op,
        membership.began_checksum,
    )
    state.send(to_replica, message)


def view_of(message: Message) -> int | None:
    """Return the view that a message is about; None if it is about none."""
    read_view = VIEW_OF.get(type(message))
    return None if read_view is None else read_view(message)


def of_other_epoch(state: ReplicaState, message: Message) -> bool:
    """The sender is in another epoch, in which others may have a vote.

    A blank replica is in no epoch yet: a heartbeat or a pre-vote tells it of its cluster.
    """
    view = view_of(message)
    if view is None or epoch_of(view) == state.membership.epoch:
        return False
    return not (state.status is ReplicaStatus.BLANK and isinstance(message, NEWS_OF_CLUSTER))


def on_other_epoch(state: ReplicaState, message: Message) -> None:
    """Tell the sender that its epoch is over, or ask it how this replica's epoch ended."""
    view = view_of(message)
    assert view is not None
    if state.status in (ReplicaStatus.BLANK, ReplicaStatus.HALTED):
        return
    if epoch_of(view) < state.membership.epoch:
        tell(state, message.from_replica)
    elif state.status is not ReplicaStatus.REMOVED:
        start_view.ask_of_epoch(state, message.from_replica, view)


def on_epoch_ended(state: ReplicaState, message: EpochEndedMessage) -> None:
    """Commit the change if it is here. Otherwise fetch the committed entries up to it."""
    entry = state.log.get(message.op)
    if entry is not None and entry.header.checksum == message.checksum:
        state.commit_max = max(state.commit_max, message.op)
    else:
        state.hear_commit(message.op, message.from_replica)
        # It has all up to the change. Whoever told of it before may be gone, and all others of the
        # epoch here, too.
        state.commit_source = message.from_replica
    if message.op > state.recordable_commit:
        stop_acting(state)


def stop_acting(state: ReplicaState) -> None:
    """Wait for what lacks of an epoch that is over.

    A primary takes committed entries from others only now: until then it alone finds out what is
    committed. Nobody may have the change but a replica that does not know it to be committed, so
    this one joins in electing a primary that finds out.
    """
    state.is_epoch_over = True
    if state.status is ReplicaStatus.RECOVERING and state.installation is None:
        return
    state.timeouts.stop_all()
    reads.refuse_all(state, RefusalReason.OTHER_EPOCH)
    state.installation, state.asked_ops = None, frozenset()
    start_view.recover(state)


def already_there(state: ReplicaState, message: EpochEndedMessage) -> bool:
    """This replica is in that epoch, or in a later one."""
    return message.epoch <= state.membership.epoch


EPOCH_ENDED_RULES = ((DropRule.NOT_LACKING, already_there),)
