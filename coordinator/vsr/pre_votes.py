"""Leaving a view: a replica pre-votes, and moves only when a quorum pre-votes.

A backup that hears nothing from its primary, or is told that its process seems to be gone,
pre-votes for the next view, tells all, and meanwhile continues to serve the primary. So one replica
that is cut off disturbs nobody: replicas that hear the primary do not share its pre-vote. A
pre-vote counts only while it is repeated, so that old doubts do not add up with new ones.
"""

from __future__ import annotations

from coordinator.vsr.effects import NOT_ADMITTED, SendHeld
from coordinator.vsr.messages import RequestStartViewMessage, StartViewChangeMessage
from coordinator.vsr.state import PreVote, ReplicaState
from coordinator.vsr.timeouts import TimeoutName, ticks
from viewstamp.limits import START_VIEW_CHANGE_RESEND_MS, SUSPICION_JITTER_MS, SUSPICION_MS

PRE_VOTE_TICKS = 4 * ticks(START_VIEW_CHANGE_RESEND_MS)
"""How long an unrepeated pre-vote counts, in ticks: three repetitions may be lost."""


def arm_suspicion(state: ReplicaState) -> None:
    """Begin to listen for the primary."""
    patience_ms = SUSPICION_MS + state.jitter(SUSPICION_JITTER_MS)
    state.primary_heard_ticks = state.now_ticks
    state.timeouts.arm(TimeoutName.SUSPICION, state.now_ticks, ticks(patience_ms))


def on_suspicion_timeout(state: ReplicaState) -> None:
    """Suspect the primary if it was silent all the time; otherwise listen for the rest of it.

    Hearing the primary only notes the tick, which costs each of the many steps less than arming
    the timeout.
    """
    silent_ticks = state.now_ticks - state.primary_heard_ticks
    patience_ticks = ticks(SUSPICION_MS)
    if silent_ticks < patience_ticks:
        remaining_ms = state.jitter(SUSPICION_JITTER_MS)
        remaining = patience_ticks - silent_ticks + (ticks(remaining_ms) if remaining_ms else 0)
        state.timeouts.arm(TimeoutName.SUSPICION, state.now_ticks, remaining)
        return
    lost_primary(state)


def lost_primary(state: ReplicaState) -> None:
    """Pre-vote for the next view without waiting: the primary's process seems to be gone.

    A pre-vote alone changes nothing, and is withdrawn as soon as the primary is heard again. A
    replica without a vote asks what became of its view, as its epoch may have ended without it.
    """
    state.timeouts.stop(TimeoutName.SUSPICION)
    suspect(state, state.view + 1)
    if not state.is_voter:
        state.broadcast(question(state, state.view))
        arm_suspicion(state)


def question(state: ReplicaState, view: int) -> RequestStartViewMessage:
    """Return the request for the log of `view`; the nonce marks it as one of this boot."""
    return RequestStartViewMessage(
        state.configuration.cluster_id, state.replica, view, state.boot_nonce
    )


def heard_primary(state: ReplicaState) -> None:
    """Note that the primary of this view lives, and withdraw a pre-vote to leave the view."""
    state.primary_heard_ticks = state.now_ticks
    if not state.follows_primary:
        withdraw(state)
        arm_suspicion(state)


def withdraw(state: ReplicaState) -> None:
    """Trust the primary of this view, which may be this replica: stop pre-voting to leave."""
    state.follows_primary = True
    state.pre_votes.pop(state.replica, None)
    state.timeouts.stop(TimeoutName.PRE_VOTE_RESEND, TimeoutName.VIEW_CHANGE)


def suspect(state: ReplicaState, target_view: int) -> None:
    """Pre-vote for `target_view`, because this view's primary is gone or wants to resign."""
    state.follows_primary = False
    raise_pre_vote(state, max([target_view, *targets(state)]))


def raise_pre_vote(state: ReplicaState, target_view: int) -> None:
    """Pre-vote for at least `target_view`, and tell all."""
    target_view = first_voting_view(state, target_view)
    own = state.pre_votes.get(state.replica)
    if state.is_voter_in(target_view) and (own is None or own.target_view < target_view):
        state.pre_votes[state.replica] = PreVote(target_view, state.now_ticks)
        tell_pre_vote(state)


def first_voting_view(state: ReplicaState, target_view: int) -> int:
    """Return the first view from `target_view` on in which this replica has a vote, if it is known.

    The primary may die after the disk of a newcomer has its admission, and before the primary
    resigns. Then the newcomer pre-votes for the view in which it may vote, and others join it.
    """
    durable = state.durable
    if durable is None or durable.voting_view in (0, NOT_ADMITTED):
        return target_view
    return max(target_view, durable.voting_view)


def tell_pre_vote(state: ReplicaState) -> None:
    """Tell all what this replica pre-votes; in a view change at least its own view.

    So replicas that missed the pre-votes that began the view change can still follow.
    """
    own = state.pre_votes.get(state.replica)
    target_view = own.target_view if own else state.view
    if not state.is_voter_in(target_view):
        return
    state.broadcast(
        StartViewChangeMessage(state.configuration.cluster_id, state.replica, target_view)
    )
    state.timeouts.arm(TimeoutName.PRE_VOTE_RESEND, state.now_ticks)
    if state.log.op == 1 and state.commit_max == 0:
        offer_bootstrap(state)


def offer_bootstrap(state: ReplicaState) -> None:
    """Send op 1 to all: some may still be blank, and can help only once they have it."""
    bootstrapped = state.log.get(1)
    if bootstrapped is not None:
        for replica in state.others:
            state.emit(SendHeld(replica, 1, bootstrapped.header.checksum))


def on_start_view_change(state: ReplicaState, message: StartViewChangeMessage) -> None:
    """Note a peer's pre-vote; share it if this replica does not hear the primary either."""
    state.pre_votes[message.from_replica] = PreVote(message.target_view, state.now_ticks)
    if message.from_replica == state.primary:
        suspect(state, message.target_view)
    elif not state.follows_primary:
        raise_pre_vote(state, message.target_view)


def targets(state: ReplicaState) -> list[int]:
    """Return the views pre-voted for that still count, in order; the own pre-vote always counts."""
    return sorted(
        pre_vote.target_view
        for replica, pre_vote in state.pre_votes.items()
        if pre_vote.target_view > state.view
        and (replica == state.replica or pre_vote.heard_ticks + PRE_VOTE_TICKS >= state.now_ticks)
    )


def due_view(state: ReplicaState) -> int | None:
    """Return the view that a view-change quorum, this replica included, pre-votes for, or None."""
    own = state.pre_votes.get(state.replica)
    quorum = state.quorums.view_change
    if own is None or own.target_view <= state.view or len(state.pre_votes) < quorum:
        return None
    pre_voted = targets(state)
    return min(own.target_view, pre_voted[-quorum]) if len(pre_voted) >= quorum else None
