"""How a primary gives up its view: because it must, or because it is asked to.

A primary that can send but not hear keeps its backups from suspecting it, though nothing commits.
So a primary falls silent when no replication quorum has answered for long, or when its driver says
that it cannot or should not lead. It admits nothing more and pre-votes for the next view, which its
backups take as grounds for suspicion. It still counts copies until the next view begins.

An unfit replica pre-votes for the next view whenever it would lead one, and follows any other
leader.
"""

from __future__ import annotations

from coordinator.vsr import pre_votes
from coordinator.vsr.effects import ReplicaStatus
from coordinator.vsr.events import Abdicate, Fit, Unfit
from coordinator.vsr.state import ReplicaState
from coordinator.vsr.timeouts import AFTER_TICKS, TimeoutName


def arm(state: ReplicaState) -> None:
    """Begin to listen for the backups."""
    state.heard_backups, state.quorum_heard_ticks = set(), state.now_ticks
    state.timeouts.arm(TimeoutName.ABDICATION, state.now_ticks)


def heard_backup(state: ReplicaState, replica: int) -> None:
    """Primary: note that a backup answered; restart the count once a replication quorum has."""
    state.heard_backups.add(replica)
    if len(state.heard_backups) + 1 >= state.quorums.replication:
        state.heard_backups.clear()
        state.quorum_heard_ticks = state.now_ticks


def on_abdication_timeout(state: ReplicaState) -> None:
    """Give up if no quorum answered for the whole time; otherwise wait for the rest of it."""
    silent_ticks = state.now_ticks - state.quorum_heard_ticks
    remaining = AFTER_TICKS[TimeoutName.ABDICATION] - silent_ticks
    if remaining > 0:
        state.timeouts.arm(TimeoutName.ABDICATION, state.now_ticks, remaining)
    else:
        give_up(state, state.view + 1)


def on_abdicate(state: ReplicaState, event: Abdicate) -> None:
    """Give up on demand. A lone replica has no other that could lead."""
    if leads(state):
        give_up(state, state.view + 1)


def on_unfit(state: ReplicaState, event: Unfit) -> None:
    """Lead neither this view nor a later one until `Fit`."""
    state.is_unfit = not state.is_alone
    leave_if_unfit(state)


def on_fit(state: ReplicaState, event: Fit) -> None:
    """Lead again when it is this replica's turn. A view given up meanwhile stays given up."""
    state.is_unfit = False


def leave_if_unfit(state: ReplicaState) -> None:
    """Give up the view that this replica leads, or is to lead, if the replica is unfit."""
    if state.is_unfit and leads(state) and not state.is_abdicating:
        give_up(state, state.view + 1)


def decline_if_unfit(state: ReplicaState) -> None:
    """Primary-elect: pre-vote for the next view at once, and continue with this one until then."""
    if state.is_unfit and leads(state):
        pre_votes.suspect(state, state.view + 1)


def leads(state: ReplicaState) -> bool:
    """Return whether this replica leads others in its view, or is to."""
    is_in_view = state.status in (ReplicaStatus.VIEW_CHANGE, ReplicaStatus.NORMAL)
    return state.is_primary and is_in_view and not state.is_alone


def give_up(state: ReplicaState, target_view: int) -> None:
    """Fall silent, and pre-vote for `target_view`."""
    state.is_abdicating = True
    state.timeouts.stop(TimeoutName.HEARTBEAT, TimeoutName.PREPARE_RESEND, TimeoutName.ABDICATION)
    pre_votes.suspect(state, target_view)
