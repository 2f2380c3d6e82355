"""How a replica joins a view whose log was chosen without it: StartView, asked for or not.

A restarted member asks the primary of its view. A member that hears the primary of a later view
asks that primary, and changes nothing before the answer: a message of normal operation says neither
which log its view has nor that a quorum wanted the view, and truncating on suspicion can lose
committed entries.
"""

from __future__ import annotations

from coordinator.vsr import log_adoption, pre_votes, view_change
from coordinator.vsr.effects import ReplicaStatus
from coordinator.vsr.membership import epoch_of
from coordinator.vsr.messages import (
    CommitMessage,
    PrepareMessage,
    RequestStartViewMessage,
    StartViewMessage,
)
from coordinator.vsr.state import LogAdoption, ReplicaState
from coordinator.vsr.timeouts import TimeoutName


def recover(state: ReplicaState) -> None:
    """Wait, after a restart, for the log of the view, or for the end of that view.

    A restarted primary never continues its view: entries that it sent may have been committed
    without a copy of its own.
    """
    state.change_status(ReplicaStatus.RECOVERING)
    if state.is_primary:
        pre_votes.suspect(state, state.view + 1)
    else:
        pre_votes.arm_suspicion(state)
    ask(state, state.view)


def ask(state: ReplicaState, view: int) -> None:
    """Ask the primary of `view` for its log, at most once per START_VIEW_REQUEST_MS and view."""
    if state.timeouts.is_armed(TimeoutName.START_VIEW_REQUEST) and view <= state.asked_view:
        return
    state.asked_view = view
    primary = state.membership.primary_of(view)
    if primary != state.replica:
        state.send(primary, pre_votes.question(state, view))
    state.timeouts.arm(TimeoutName.START_VIEW_REQUEST, state.now_ticks)


def ask_of_epoch(state: ReplicaState, to_replica: int, view: int) -> None:
    """Ask a replica of a later epoch, in `view`, about the view here, which is over there."""
    if state.timeouts.is_armed(TimeoutName.START_VIEW_REQUEST) and view <= state.asked_view:
        return
    state.asked_view = view
    state.send(to_replica, pre_votes.question(state, state.view))
    state.timeouts.arm(TimeoutName.START_VIEW_REQUEST, state.now_ticks)


def on_request_timeout(state: ReplicaState) -> None:
    """Ask again while recovering, now all; anyone else asks when it hears of the view again.

    The others may live in an earlier view, in which this replica can no longer take part. The
    question tells them that the later view is due.
    """
    state.timeouts.stop(TimeoutName.START_VIEW_REQUEST)
    if state.status is ReplicaStatus.RECOVERING and state.installation is None:
        is_known = epoch_of(state.asked_view) == state.membership.epoch
        view = max(state.view, state.asked_view) if is_known else state.view
        state.broadcast(pre_votes.question(state, view))
        if not is_known:
            state.asked_view = state.view  # whoever is heard of a later epoch is asked again
        state.timeouts.arm(TimeoutName.START_VIEW_REQUEST, state.now_ticks)


def on_newer_view(state: ReplicaState, message: PrepareMessage | CommitMessage) -> None:
    """Ask the primary of a later view, which is at work, for the log of that view."""
    if message.from_replica == state.membership.primary_of(message.view):
        ask(state, message.view)


def on_primary_at_work(state: ReplicaState, message: PrepareMessage | CommitMessage) -> None:
    """Ask the primary of this view, which is at work, for its log, which is not here yet."""
    if isinstance(message, CommitMessage):
        state.hear_commit(message.commit, message.from_replica)
    if state.installation is None:
        ask(state, state.view)


def on_request_start_view(state: ReplicaState, message: RequestStartViewMessage) -> None:
    """Installed primary: answer with the log of this view.

    If the asker is in a later view, a quorum once pre-voted for that view, and the asker can take
    part in no earlier one: the view is due.
    """
    if message.view > state.view:
        view_change.enter(state, message.view)
        return
    log_adoption.send_start_view(state, message.from_replica, message.nonce)


def on_start_view(state: ReplicaState, message: StartViewMessage) -> None:
    """Adopt the log of the view, which may be later than this replica's view."""
    if message.view > state.view:
        view_change.enter(state, message.view)
    elif state.status is ReplicaStatus.RECOVERING:
        state.change_status(ReplicaStatus.VIEW_CHANGE)
    pre_votes.heard_primary(state)
    holders = (message.from_replica, *(i for i in state.others if i != message.from_replica))
    state.installation = LogAdoption(
        message.from_replica, holders, message.commit, message.headers, message.head_op
    )
    state.hear_commit(message.commit, message.from_replica)
