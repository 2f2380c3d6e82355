"""The view change: from entering a view, over the votes, to the log that it begins with.

The order makes it safe, with one replica or several: the new view is durable before the replica
votes in it; the log is chosen once a view-change quorum voted; the whole log is on this disk before
the log view is recorded; the log view is durable before anything of that log is vouched for; the
inherited log is committed, and applied by every stage, before the primary's status is normal. A
vote is therefore a faithful copy of one log, wherever the replica may have crashed.

A lone replica holds a view change with itself on every start: its vote is the quorum.
"""

from __future__ import annotations

from coordinator.vsr import abdication, log_adoption, log_selection, normal, pre_votes, reads
from coordinator.vsr.effects import RefusalReason, ReplicaStatus, Stuck
from coordinator.vsr.errors import check, demand
from coordinator.vsr.events import SuperblockDurable
from coordinator.vsr.messages import DoViewChangeMessage
from coordinator.vsr.state import LogAdoption, ReplicaState, Vote
from coordinator.vsr.timeouts import TimeoutName, ticks
from viewstamp.limits import (
    DO_VIEW_CHANGE_RESEND_MS,
    FORFEIT_LAG_OPS,
    VIEW_CHANGE_MS,
    VIEW_CHANGE_MS_MAX,
)

VOTE_TICKS = 8 * ticks(DO_VIEW_CHANGE_RESEND_MS)
"""How long an unrepeated vote counts, in ticks: seven repetitions may be lost."""


def enter(state: ReplicaState, view: int) -> None:
    """Move to a later view. The replica does not act in it before the disk records it."""
    check(view > state.view, "views only grow", (state.view, view))
    state.view = view
    state.pre_votes, state.votes, state.installation = {}, {}, None
    state.follows_primary = state.is_abdicating = False
    state.timeouts.stop_all()
    state.asked_ops = frozenset()
    reads.refuse_all(state, RefusalReason.VIEW_CHANGE)
    state.change_status(ReplicaStatus.VIEW_CHANGE)
    state.persist_superblock()
    if not state.is_alone:
        arm_patience(state)
        pre_votes.tell_pre_vote(state)
        abdication.decline_if_unfit(state)


def follow_pre_votes(state: ReplicaState) -> None:
    """Settle rule: move to the view that a quorum pre-votes for."""
    view = pre_votes.due_view(state)
    if view is not None and state.status is not ReplicaStatus.HALTED:
        enter(state, view)


def arm_patience(state: ReplicaState) -> None:
    """Give this view some time, twice as much as the last one that failed."""
    patience_ms = min(VIEW_CHANGE_MS << min(state.view_changes_failed, 8), VIEW_CHANGE_MS_MAX)
    patience_ms += state.jitter(patience_ms // 2)
    state.timeouts.arm(TimeoutName.VIEW_CHANGE, state.now_ticks, ticks(patience_ms))


def on_view_change_timeout(state: ReplicaState) -> None:
    """Pre-vote for the next view, as this one did not become normal in time; keep trying
    meanwhile."""
    state.view_changes_failed += 1
    arm_patience(state)
    pre_votes.suspect(state, state.view + 1)


def on_superblock_durable(state: ReplicaState, event: SuperblockDurable) -> None:
    """Note what the disk now records; the settle rules continue from there."""
    demand(
        event.state == state.writing,
        f"only the outstanding superblock is reported durable: {state.writing}",
        event.state,
    )
    was_installed = state.is_installed
    state.superblock_written()
    # A newcomer's first superblock names a view whose log it has still to adopt.
    took_over = state.status is ReplicaStatus.BLANK or state.recorded_view == state.view
    if state.is_installed and not was_installed and took_over:
        log_adoption.take_up(state)


def own_vote(state: ReplicaState) -> DoViewChangeMessage:
    """Return this disk's log from the last entry known to be committed.

    That entry tells the others' entries that follow it from those that follow another one.
    """
    log = state.log
    return DoViewChangeMessage(
        state.configuration.cluster_id,
        state.replica,
        state.view,
        state.log_view,
        state.commit_max,
        log.op,
        tuple(e.header for e in log.above(state.commit_max - 1) if e.header.op not in log.faulty),
        tuple(sorted(op for op in log.faulty if op > state.commit_max)),
        log.head_uncertain,
    )


def may_vote(state: ReplicaState) -> bool:
    """Return whether the disk records the view, and holds the log exactly as memory does.

    A write under way could be lost, and the vote would then have been false.
    """
    return (
        state.status is ReplicaStatus.VIEW_CHANGE
        and state.is_voter
        and state.commit_max >= state.membership.began_op
        and state.durable is not None
        and state.durable.view == state.view
        and not state.is_installed
        and state.installation is None
        and state.log.is_quiet
    )


def vote(state: ReplicaState) -> None:
    """Settle rule: vote once, as soon as that is allowed; a timeout repeats the vote."""
    if state.replica not in state.votes and may_vote(state):
        cast(state)


def cast(state: ReplicaState) -> None:
    """Vote: the primary-elect for itself, the others to the primary-elect."""
    message = note(state, own_vote(state))
    if not state.is_primary:
        state.send(state.primary, message)
    if not state.is_alone:
        state.timeouts.arm(TimeoutName.VOTE_RESEND, state.now_ticks)


def resend_vote(state: ReplicaState) -> None:
    """Repeat the vote to all until the view's log is known, with what the disk holds now.

    Some replicas may not have seen the quorum of pre-votes and remain in the old view, in which
    those that left it can no longer take part. The vote makes all follow.
    """
    state.timeouts.stop(TimeoutName.VOTE_RESEND)
    if may_vote(state):
        state.broadcast(note(state, own_vote(state)))
        state.timeouts.arm(TimeoutName.VOTE_RESEND, state.now_ticks)
    elif state.status is ReplicaStatus.VIEW_CHANGE and state.installation is None:
        state.timeouts.arm(TimeoutName.VOTE_RESEND, state.now_ticks)


def on_do_view_change(state: ReplicaState, message: DoViewChangeMessage) -> None:
    """Primary-elect: count the vote. Its sender saw a quorum of pre-votes, so the view is due."""
    if message.view > state.view:
        enter(state, message.view)
    if not state.is_primary:
        return
    if state.is_installed:
        log_adoption.send_start_view(state, message.from_replica, log_adoption.NO_NONCE)
    elif state.installation is None:
        note(state, message)


def note(state: ReplicaState, message: DoViewChangeMessage) -> DoViewChangeMessage:
    """Remember a vote, and when it was heard; return it."""
    state.votes[message.from_replica] = Vote(message, state.now_ticks)
    return message


def counted_votes(state: ReplicaState) -> list[DoViewChangeMessage]:
    """Return the votes that still count, by replica; the own one always does.

    A vote counts only while it is repeated. Its sender may have lost its disk since, and what it
    says of that disk is not true any more.
    """
    return [
        vote.message
        for replica, vote in sorted(state.votes.items())
        if replica == state.replica or vote.heard_ticks + VOTE_TICKS >= state.now_ticks
    ]


def choose_log(state: ReplicaState) -> None:
    """Settle rule, primary-elect: adopt the log that the votes determine, once they do."""
    if not elects(state):
        return
    chosen = log_selection.choose(counted_votes(state), state.replica_count, state.quorums)
    if isinstance(chosen, log_selection.Chosen):
        begin_installation(state, chosen)
    elif isinstance(chosen, log_selection.Unrecoverable) and state.stuck_op != chosen.op:
        state.stuck_op = chosen.op
        state.emit(Stuck(chosen.op, "all replicas voted, and no vote has this entry intact"))


def elects(state: ReplicaState) -> bool:
    """Return whether this replica is to choose a log now, its own vote being in."""
    return (
        state.status is ReplicaStatus.VIEW_CHANGE
        and state.is_primary
        and state.installation is None
        and not state.is_installed
        and state.replica in state.votes
    )


def begin_installation(state: ReplicaState, chosen: log_selection.Chosen) -> None:
    """Adopt the chosen log; a replica that lacks too much of it prefers another to lead."""
    votes = sorted(counted_votes(state), key=lambda vote: -len(vote.headers))
    holders = [vote.from_replica for vote in votes]
    state.installation = LogAdoption(
        chosen.source,
        tuple(holder for holder in holders if holder != state.replica),
        chosen.commit,
        chosen.headers,
        chosen.head_op,
    )
    state.hear_commit(chosen.commit, chosen.source)
    if chosen.commit - state.commit_max > FORFEIT_LAG_OPS:
        pre_votes.suspect(state, state.view + 1)


def finish(state: ReplicaState) -> None:
    """Settle rule: become normal once the whole inherited log is committed and applied.

    Handed out is not enough: until the last entry went through the stages, sessions and replies
    that clients know of are missing, and clients would be told that their session ended. A backup
    answers no clients, and is normal as soon as it has the log.
    """
    if (
        state.status not in (ReplicaStatus.BLANK, ReplicaStatus.VIEW_CHANGE)
        or not state.is_installed
    ):
        return
    if state.installation is None and state.applied_op >= state.inherited_op:
        check(state.log.op > 0, "a view begins with a bootstrapped log", state.log.op)
        state.view_changes_failed = 0
        normal.enter(state)
