"""Read indexes: how far a replica must have applied the log to answer a linearizable read.

The index is the commit point when a round starts. The round proves that this replica was still
primary then: a replication quorum, which every view change must meet, confirms that it is in status
normal of this view. A lone replica is its own quorum. Backups get their indexes from the primary
(`backup_reads.py`), and share its rounds.

A round asks only as many replicas as it needs: those that confirmed the last round. If one of them
is gone, the next heartbeat asks all, and later rounds ask those that answered.
"""

from __future__ import annotations

from coordinator.vsr import backup_reads
from coordinator.vsr.effects import ReadIndexGranted, ReadIndexRefused, RefusalReason
from coordinator.vsr.events import ReadIndexAbandoned, ReadIndexRequested
from coordinator.vsr.messages import CommitOkMessage
from coordinator.vsr.normal import known_primary, refusal_of_role, send_heartbeat, tell_commit
from coordinator.vsr.state import ReadRounds, ReplicaState
from coordinator.vsr.timeouts import TimeoutName
from viewstamp.limits import READ_INDEXES_WAITING_MAX


def refusal_of_read(state: ReplicaState) -> RefusalReason | None:
    """Return why this replica gets no index for a read now; None if it joins the next round."""
    refusal = refusal_of_role(state)
    if refusal not in (None, RefusalReason.NOT_PRIMARY):
        return refusal
    waiting = len(state.reads.running) + len(state.reads.waiting)
    return RefusalReason.TOO_MANY_READS if waiting >= READ_INDEXES_WAITING_MAX else None


def on_read_index_requested(state: ReplicaState, event: ReadIndexRequested) -> None:
    """Let the read join the next round, or refuse it with a reason."""
    refusal = refusal_of_read(state)
    if refusal is not None:
        state.emit(ReadIndexRefused(event.token, refusal, known_primary(state)))
        return
    state.reads.waiting[event.token] = None


def on_read_index_abandoned(state: ReplicaState, event: ReadIndexAbandoned) -> None:
    """Forget the read. A backup repeats no question for which nobody waits."""
    reads = state.reads
    reads.running.pop(event.token, None)
    reads.waiting.pop(event.token, None)
    if not reads.running:
        state.timeouts.stop(TimeoutName.READ_INDEX)


def on_commit_ok(state: ReplicaState, message: CommitOkMessage) -> None:
    """Count a confirmation of the running round."""
    state.reads.confirmed_by.add(message.from_replica)


def settle(state: ReplicaState) -> None:
    """Finish the running round if a quorum confirmed it, and start one for those who wait.

    At most two rounds pass in one step: one that was running, and one that a lone replica both
    starts and confirms.
    """
    if state.is_abdicating:
        refuse_all(state, RefusalReason.ABDICATING)
    if not state.is_primary:
        backup_reads.settle(state)
        return
    if runs(state.reads):
        finish_round(state)
    if waits(state.reads) and not runs(state.reads):
        start_round(state)
        finish_round(state)


def waits(reads: ReadRounds) -> bool:
    """Return whether somebody waits for a round of the primary."""
    return bool(reads.waiting or reads.backups_waiting or reads.newcomers_waiting)


def runs(reads: ReadRounds) -> bool:
    """Return whether a round of the primary is under way."""
    return bool(reads.running or reads.backups_running or reads.newcomers_running)


def refuse_all(state: ReplicaState, reason: RefusalReason) -> None:
    """Refuse the waiting reads, because this replica leaves the view, or wants to.

    The next round has another number, so that confirmations of this one are recognized as old.
    Backups that asked get no answer: they leave the view as well.
    """
    reads = state.reads
    for token in (*reads.running, *reads.waiting):
        state.emit(ReadIndexRefused(token, reason, None))
    reads.running, reads.waiting = {}, {}
    reads.backups_running, reads.backups_waiting = {}, {}
    reads.newcomers_running, reads.newcomers_waiting = {}, {}
    state.timeouts.stop(TimeoutName.READ_INDEX)


def start_round(state: ReplicaState) -> None:
    """Fix the index for all who wait, and ask whether this is still the primary."""
    reads = state.reads
    reads.number += 1
    reads.index_op = state.commit_max
    reads.running, reads.waiting = reads.waiting, {}
    reads.backups_running, reads.backups_waiting = reads.backups_waiting, {}
    reads.newcomers_running, reads.newcomers_waiting = reads.newcomers_waiting, {}
    needed = state.quorums.replication - 1
    asked = sorted(reads.confirmed_by - {state.replica}, reverse=True)[:needed]
    reads.confirmed_by = {state.replica}
    if len(asked) < needed or reads.newcomers_running:
        send_heartbeat(state)
    else:
        tell_commit(state, asked)


def finish_round(state: ReplicaState) -> None:
    """Grant the round's index to its reads once a replication quorum confirmed it."""
    reads = state.reads
    if len(reads.confirmed_by) < state.quorums.replication:
        return
    for token in reads.running:
        state.emit(ReadIndexGranted(token, reads.index_op))
    backup_reads.answer(state)
    reads.newcomers_confirmed.update(reads.newcomers_running)
    reads.running, reads.newcomers_running = {}, {}
