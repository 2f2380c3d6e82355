"""Committed entries, which are the same on every replica in every view, given and taken.

Whoever lacks some asks for them by op. Nothing about views is involved, and nothing is truncated on
account of them: what is replaced is an own entry that differs from a committed one.
"""

from __future__ import annotations

from coordinator.vsr.effects import ReplicaStatus, SendCommitted, SnapshotNeeded
from coordinator.vsr.errors import check
from coordinator.vsr.messages import (
    CommittedGoneMessage,
    CommittedMessage,
    Prepare,
    RequestCommittedMessage,
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
    """Whether this may be the entry that is damaged here; if not, that one was never committed.

    It is not if memory knows of another one, which may even be on its way to the disk, or if what
    the log has after it cannot follow it.
    """
    return state.log.may_be(prepare.header)


def lacks_committed(state: ReplicaState, op: int) -> bool:
    """Whether an entry after `op` is committed and damaged here, and nothing tells which it was."""
    return any(
        op < faulty <= state.commit_max and state.log.checksum_of(faulty) is None
        for faulty in state.log.faulty
    )


def hold(state: ReplicaState, prepare: Prepare) -> None:
    """Make sure that the log has this committed entry after the last one that it has."""
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
    """The peer's journal begins later: only a snapshot can bring this replica up to date."""
    if state.snapshot_generation < message.generation:
        state.snapshot_generation = message.generation
        state.emit(SnapshotNeeded(message.from_replica, message.generation, message.cut_op))
