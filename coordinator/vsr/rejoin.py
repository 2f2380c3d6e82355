"""The return of a replica that lost its disk.

Such a replica looks blank, but may have vouched for entries, and promised votes, that it does not
remember. So it bootstraps nothing, and takes part as a *non-voter*: it journals and executes, and
no quorum counts it. Its disk records that it is a non-voter before its journal has an entry, so a
crash does not change the role. Once it holds the primary's log, it asks to be admitted. A
replication quorum of voters confirms the primary of view v. Then this primary admits the newcomer
for view v + 2, because the newcomer may have voted in v + 1 before. When the newcomer's disk has
the admission, the primary resigns in favour of v + 2. If it dies first, the newcomer pre-votes for
v + 2 (`pre_votes.first_voting_view`).

With two replicas there is no quorum without the newcomer, and people have to decide.

A standby begins the same way, with an empty or replaced disk, and never asks.
"""

from __future__ import annotations

from coordinator.vsr import abdication, bootstrap, start_view
from coordinator.vsr.effects import NOT_ADMITTED, ReplicaStatus
from coordinator.vsr.membership import epoch_of
from coordinator.vsr.messages import (
    AdmissionDurableMessage,
    AdmissionMessage,
    CommitMessage,
    RequestAdmissionMessage,
)
from coordinator.vsr.state import ReplicaState
from coordinator.vsr.timeouts import TimeoutName

VIEWS_FORGOTTEN = 2
"""A newcomer may have promised its vote in the present view and in the next."""


def on_bootstrapped_cluster(state: ReplicaState, message: CommitMessage) -> None:
    """Follow, without a vote, a cluster that has committed something while this replica is
    blank."""
    state.voting_view = NOT_ADMITTED
    state.timeouts.stop_all()
    state.change_status(ReplicaStatus.RECOVERING)
    state.persist_superblock()
    state.hear_commit(message.commit, message.from_replica)
    if epoch_of(message.view) == state.membership.epoch:
        start_view.ask(state, message.view)


def recognize_initial_member(state: ReplicaState) -> None:
    """Settle rule: give its vote to a replica whose present boot op 1 names.

    It was blank when the cluster was bootstrapped, and has forgotten nothing since.
    """
    if state.voting_view != NOT_ADMITTED or state.log.op == 0:
        return
    first = state.log.get(1)
    if first is not None and first.prepare is not None and bootstrap.names(state, first.prepare):
        state.voting_view = 0
        state.persist_superblock()


def settle(state: ReplicaState) -> None:
    """Settle rule: a newcomer asks or reports from time to time; a primary admits newcomers."""
    if state.reads.newcomers_confirmed:
        admit(state)
    is_newcomer = state.status is ReplicaStatus.NORMAL and not (state.is_voter or state.is_standby)
    if is_newcomer and not state.timeouts.is_armed(TimeoutName.ADMISSION):
        state.timeouts.arm(TimeoutName.ADMISSION, state.now_ticks)


def on_admission_timeout(state: ReplicaState) -> None:
    """Newcomer: ask the primary for a vote, or report that the disk records it."""
    state.timeouts.stop(TimeoutName.ADMISSION)
    if state.is_voter or state.status is not ReplicaStatus.NORMAL:
        return
    cluster_id, replica = state.configuration.cluster_id, state.replica
    if state.voting_view == NOT_ADMITTED:
        ask = RequestAdmissionMessage(cluster_id, replica, state.boot_nonce, state.commit_max)
        state.send(state.primary, ask)
    elif state.durable is not None and state.durable.voting_view == state.voting_view:
        report = AdmissionDurableMessage(cluster_id, replica, state.view, state.voting_view)
        state.send(state.primary, report)


def on_request_admission(state: ReplicaState, message: RequestAdmissionMessage) -> None:
    """Primary: let the newcomer join the next round that confirms this view."""
    state.reads.newcomers_waiting[message.from_replica] = message.nonce


def admit(state: ReplicaState) -> None:
    """Primary, confirmed by a replication quorum of voters: give newcomers their voting view."""
    confirmed, state.reads.newcomers_confirmed = state.reads.newcomers_confirmed, {}
    for newcomer in sorted(confirmed):
        message = AdmissionMessage(
            state.configuration.cluster_id,
            state.replica,
            state.view,
            confirmed[newcomer],
            state.view + VIEWS_FORGOTTEN,
        )
        state.send(newcomer, message)


def on_admission(state: ReplicaState, message: AdmissionMessage) -> None:
    """Newcomer: have the voting view written."""
    state.voting_view = message.voting_view
    state.persist_superblock()


def on_admission_durable(state: ReplicaState, message: AdmissionDurableMessage) -> None:
    """Primary: resign, so that a view begins in which the newcomer votes."""
    abdication.give_up(state, message.voting_view)
