"""Committed entries, which are the same on every replica in every view, given and taken.

A replica that lacks some asks for them by op. Views play no part. A committed entry replaces only
an uncommitted entry that differs from it.
"""

from __future__ import annotations

from coordinator.vsr.effects import ReplicaStatus, SendCommitted, SnapshotNeeded
from coordinator.vsr.errors import check
from coordinator.vsr.messages import (
    CommittedGoneMessage,
    CommittedMessage,
    Prepare,
    RequestCommittedMessage,
    StartViewMessage,
)
from coordinator.vsr.state import ReplicaState
from viewstamp.limits import CATCH_UP_OPS


def on_request_committed(state: ReplicaState, message: RequestCommittedMessage) -> None:
    """Have the journal send what it holds durably of the entries asked for."""
    known = min(state.commit_max, state.log.durable_op)
    last_op = min(message.last_op, message.first_op + CATCH_UP_OPS - 1, known)
    if last_op >= message.first_op:
        state.emit(SendCommitted(message.from_replica, message.first_op, last_op))


def on_committed(state: ReplicaState, message: CommittedMessage) -> None:
    """Take a committed entry that is lacking here."""
    state.hear_commit(message.commit, message.from_replica)
    header = message.prepare.header
    if header.op in state.log.faulty and belongs(state, message.prepare):
        if not state.log.is_being_written(header.op):
            state.write(message.prepare, fills=True)
    else:
        hold(state, message.prepare)
    state.commit_max = max(state.commit_max, header.op)
    state.peers_asked = 0


def belongs(state: ReplicaState, prepare: Prepare) -> bool:
    """Return whether `prepare` may be the entry that is damaged here.

    If it may not, the damaged entry was never committed. It may not if memory knows of another
    entry at that op, possibly on its way to the disk, or if the entries after it cannot follow it.
    """
    return state.log.may_be(prepare.header)


def lacks_committed(state: ReplicaState, op: int) -> bool:
    """Return whether a committed entry after `op` is damaged here and its checksum unknown."""
    return any(
        op < faulty <= state.commit_max and state.log.checksum_of(faulty) is None
        for faulty in state.log.faulty
    )


def head_vouched_for(state: ReplicaState, message: StartViewMessage) -> int:
    """Return the last op that this replica may have vouched for in the view of the message.

    The log of its own log view, asked for in this boot, has all that it vouched for in that view.
    Damaged entries above that log were discarded before, and the record of that is lost.
    """
    is_proof = message.nonce == state.boot_nonce and message.view == state.log_view
    return state.log.intact_op if is_proof else state.log.op


def hold(state: ReplicaState, prepare: Prepare) -> None:
    """Make sure that the log has this committed entry, as its head if it is new."""
    held = state.log.get(prepare.op)
    if held is not None and held.header.checksum == prepare.checksum:
        return
    if prepare.op <= state.log.op:
        check(
            state.status is not ReplicaStatus.NORMAL,
            "a log of this view holds what is committed",
            (prepare.op, prepare.view),
        )
        state.discard_after(prepare.op - 1)
    state.write(prepare)


def on_committed_gone(state: ReplicaState, message: CommittedGoneMessage) -> None:
    """Ask for a snapshot: the peer's journal no longer has the entries that this replica lacks.

    Each such message asks. Whoever brings the snapshot knows whether that is under way, and may
    have given it up since it was asked last: the log had come as far by itself.
    """
    state.emit(SnapshotNeeded(message.from_replica, message.generation, message.cut_op))
