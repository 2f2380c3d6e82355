"""Committing and handing out entries, in op order and with backpressure.

`advance` and `deliver` run after every event, so no handler has to call them.
"""

from __future__ import annotations

from coordinator.vsr.effects import Commit, ReplicaStatus
from coordinator.vsr.errors import InvariantViolation, demand
from coordinator.vsr.events import PrepareApplied
from coordinator.vsr.state import ReplicaState
from coordinator.vsr.timeouts import TimeoutName
from viewstamp.limits import UNAPPLIED_PREPARES_MAX

MEMBER_STATUSES = (ReplicaStatus.RECOVERING, ReplicaStatus.VIEW_CHANGE, ReplicaStatus.NORMAL)


def advance(state: ReplicaState) -> None:
    """Primary: commit the entries that a replication quorum holds durably, in op order.

    A later entry that has its quorum first waits for the earlier ones.
    """
    if not (state.is_primary and state.acts_in_view):
        return
    commit_before = state.commit_max
    while state.commit_max < state.log.op and has_quorum(state, state.commit_max + 1):
        state.commit_max += 1
    if state.commit_max > commit_before:
        rearm_resend(state)


def has_quorum(state: ReplicaState, op: int) -> bool:
    """Whether a replication quorum told this primary that it holds `op` durably."""
    entry = state.log.get(op)
    if entry is None:
        raise InvariantViolation(f"uncommitted entry {op} is not in the tail of the log")
    return len(entry.acks) >= state.quorums.replication


def rearm_resend(state: ReplicaState) -> None:
    """Primary: repeat prepares only while some are unacknowledged."""
    repeats = not state.is_alone and not state.is_abdicating
    if repeats and state.commit_max < state.log.op:
        state.timeouts.arm(TimeoutName.PREPARE_RESEND, state.now_ticks)
    else:
        state.timeouts.stop(TimeoutName.PREPARE_RESEND)


def deliver(state: ReplicaState) -> None:
    """Hand committed entries out for execution while the driver keeps up with applying."""
    if not may_deliver(state):
        return
    while (
        state.commit_min < state.commit_max
        and state.commit_min - state.applied_op < UNAPPLIED_PREPARES_MAX
        and state.commit_min + 1 not in state.log.faulty
    ):
        state.commit_min += 1
        entry = state.log.get(state.commit_min)
        state.emit(Commit(state.commit_min, entry.prepare if entry else None))


def may_deliver(state: ReplicaState) -> bool:
    """Return whether entries known to be committed may be executed.

    With several replicas they may in any view: a committed entry stays committed. A lone replica
    declares its own log committed, and its disk must record that first.
    """
    is_member = state.status in (*MEMBER_STATUSES, ReplicaStatus.REMOVED)
    return state.acts_in_view or (not state.is_alone and is_member)


def deliver_again(state: ReplicaState, op: int) -> None:
    """Hand out again an entry that the driver could not read, now that it is rewritten.

    The driver reads an entry that has left the tail from the journal.
    """
    if op in state.redeliver and op not in state.log.faulty:
        state.redeliver.discard(op)
        entry = state.log.get(op)
        state.emit(Commit(op, entry.prepare if entry else None))


def on_prepare_applied(state: ReplicaState, event: PrepareApplied) -> None:
    """Note that the entry went through all stages, which makes room for the next."""
    demand(
        event.op == state.applied_op + 1,
        f"entries are applied in op order, next {state.applied_op + 1}",
        event.op,
    )
    demand(event.op <= state.commit_min, "only entries given out by Commit are applied", event.op)
    state.applied_op = event.op
