"""The view change, as a lone replica holds it with itself on every start.

The order is what makes it safe, alone or among several: the new view is durable before the replica
votes in it; the log is chosen once a view-change quorum voted; the log view is durable before
anything of that log is vouched for; the inherited log is committed, and applied by every stage,
before the status is normal.
"""

from __future__ import annotations

from coordinator.vsr import acknowledge, normal
from coordinator.vsr.effects import Status
from coordinator.vsr.errors import check, demand
from coordinator.vsr.events import SuperblockDurable
from coordinator.vsr.state import State
from viewstamp.limits import PIPELINE_PREPARES_MAX


def begin(state: State) -> None:
    """Move to the next view. Nothing else happens before the disk knows."""
    state.view += 1
    state.view_change_votes = set()
    state.change_status(Status.VIEW_CHANGE)
    state.persist_superblock()


def on_superblock_durable(state: State, event: SuperblockDurable) -> None:
    """Go on from the durable view to the vote, or from the durable log view to its log."""
    demand(
        event.state == state.writing,
        f"only the outstanding superblock is reported durable: {state.writing}",
        event.state,
    )
    state.durable, state.writing = state.writing, None
    if state.is_installed:
        take_up_log(state)
    else:
        cast_own_vote(state)


def cast_own_vote(state: State) -> None:
    """Vote for the view that is now durable; with a quorum of votes, choose its log.

    With one replica its own vote is the quorum, and its own verified log the only one.
    """
    state.view_change_votes.add(state.replica)
    if len(state.view_change_votes) >= state.quorums.view_change:
        install_log(state)


def install_log(state: State) -> None:
    """Take over the log that the votes determine, and have that recorded.

    No primary lets more than a pipeline of entries go uncommitted, so what lies deeper is
    committed. The rest needs a replication quorum in this view.
    """
    state.inherited_op = state.log.op
    state.commit_max = max(state.commit_max, state.log.op - PIPELINE_PREPARES_MAX)
    for entry in state.log.above(state.commit_max):
        entry.log_view = state.view
        entry.acks = set()
    state.log_view = state.view
    state.persist_superblock()


def take_up_log(state: State) -> None:
    """Primary: vouch for the inherited entries, now that a crash cannot make it forget the view."""
    if state.is_primary:
        acknowledge.acknowledge_uncommitted(state)


def finish(state: State) -> None:
    """Settle rule: normal as soon as the inherited log is committed and retired, all of it.

    Handed out is not enough: until its last entry went through the stages, sessions and replies
    are missing that clients know of. They would be told that their session ended, or never was.
    """
    awaited = (Status.BLANK, Status.VIEW_CHANGE)
    if state.status in awaited and state.is_installed and state.retired_op >= state.inherited_op:
        check(state.log.op > 0, "a view begins with a founded log", state.log.op)
        normal.enter(state)
