"""Normal operation: the primary sequences batches and replicates them, backups journal and ack.

Steps 1 to 7 of normal operation (VSR Revisited, section 4.1), less the client table, which is a
stage of its own: batch -> prepare, to the journal and the backups at once -> prepare_ok once
durable -> commit at a quorum -> backups learn of the commit by the next prepare or by the
heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.vsr import abdication, changes, pre_votes
from coordinator.vsr.acknowledge import acknowledge, acknowledge_uncommitted
from coordinator.vsr.commit import rearm_resend
from coordinator.vsr.effects import (
    Admitted,
    RefusalReason,
    Refused,
    ReplicaStatus,
    Send,
    SendHeld,
)
from coordinator.vsr.errors import check, demand
from coordinator.vsr.events import ClientBatch
from coordinator.vsr.log import LogEntry
from coordinator.vsr.messages import (
    PARENT_OF_FIRST,
    CommitMessage,
    CommitOkMessage,
    Prepare,
    PrepareMessage,
)
from coordinator.vsr.state import ReplicaState
from coordinator.vsr.timeouts import TimeoutName
from viewstamp.limits import (
    PIPELINE_PREPARES_MAX,
    PREPARE_BODY_BYTES_MAX,
    PREPARE_COMMANDS_MAX,
    UNAPPLIED_PREPARES_MAX,
)

REVISION_MAX = 2**64 - 1

REFUSAL_BY_STATUS = {
    ReplicaStatus.BLANK: RefusalReason.BLANK,
    ReplicaStatus.RECOVERING: RefusalReason.VIEW_CHANGE,
    ReplicaStatus.VIEW_CHANGE: RefusalReason.VIEW_CHANGE,
    ReplicaStatus.HALTED: RefusalReason.HALTED,
    ReplicaStatus.REMOVED: RefusalReason.OTHER_EPOCH,
}


def refusal_of_role(state: ReplicaState) -> RefusalReason | None:
    """Return why this replica serves no clients at all now; None if it does."""
    if state.status is not ReplicaStatus.NORMAL:
        return REFUSAL_BY_STATUS[state.status]
    if not state.is_primary:
        return RefusalReason.NOT_PRIMARY
    if state.is_epoch_ending:
        return RefusalReason.EPOCH_ENDING
    return RefusalReason.ABDICATING if state.is_abdicating else None


def refusal_of_batch(state: ReplicaState) -> RefusalReason | None:
    """Return why a batch would be refused now; None if it would be admitted."""
    refusal = refusal_of_role(state)
    if refusal is not None:
        return refusal
    if state.log.op - state.commit_max >= PIPELINE_PREPARES_MAX:
        return RefusalReason.PIPELINE_FULL
    if state.log.op - state.applied_op >= UNAPPLIED_PREPARES_MAX:
        return RefusalReason.TOO_MANY_UNAPPLIED
    return None if state.log.has_room else RefusalReason.JOURNAL_BACKLOG


def known_primary(state: ReplicaState) -> int | None:
    """Return the replica that a refused caller should ask: the primary of a view under way."""
    is_known = state.status is ReplicaStatus.NORMAL and not state.is_abdicating
    return state.primary if is_known else None


def on_client_batch(state: ReplicaState, batch: ClientBatch) -> None:
    """Sequence one batch as the next entry, or refuse it with a reason."""
    demand_batch(batch)
    refusal = refusal_of_batch(state)
    if refusal is None and batch.ends_epoch:
        refusal = changes.refusal_of_change(state, batch)
    if refusal is not None:
        state.emit(Refused(refusal, known_primary(state)))
        return
    entry = append_new(
        state,
        batch.body,
        batch.command_count,
        batch.wall_clock_us,
        batch.feature_level,
        ends_epoch=batch.ends_epoch,
    )
    send_prepare(state, entry, state.followers)


def demand_batch(batch: ClientBatch) -> None:
    """Hold the batcher to its limits. A batch without commands is an acknowledgement, and
    allowed."""
    demand(
        0 <= batch.command_count <= PREPARE_COMMANDS_MAX,
        f"a batch has at most {PREPARE_COMMANDS_MAX} commands",
        batch.command_count,
    )
    demand(
        len(batch.body) <= PREPARE_BODY_BYTES_MAX,
        f"a batch has at most {PREPARE_BODY_BYTES_MAX} bytes",
        len(batch.body),
    )
    demand(batch.wall_clock_us >= 0, "the wall clock is not before 1970", batch.wall_clock_us)


def append_new(
    state: ReplicaState,
    body: bytes,
    command_count: int,
    wall_clock_us: int,
    feature_level: int = 0,
    *,
    ends_epoch: bool = False,
) -> LogEntry:
    """Make the next entry of the log out of `body`, and have it journaled.

    Only the log raises feature levels, and they never fall along it: a new primary continues at the
    level of the head, however little of the log it has applied.
    """
    log = state.log
    check(
        log.last_revision + command_count <= REVISION_MAX,
        "revisions fit 64 bits",
        log.last_revision,
    )
    prepare = state.seal(
        parent=log.checksum,
        cluster_id=state.configuration.cluster_id,
        view=state.view,
        op=log.op + 1,
        commit=state.commit_max,
        first_revision=log.last_revision + 1,
        command_count=command_count,
        feature_level=max(feature_level, level_before(state)),
        timestamp=max(log.timestamp_us + 1, wall_clock_us),
        body=body,
        ends_epoch=ends_epoch,
    )
    return journal(state, prepare, admitted=True)


def level_before(state: ReplicaState) -> int:
    """Return the level of the last entry, or the configured level if the log is empty."""
    head = state.log.head
    return state.configuration.feature_level if head is None else head.feature_level


def journal(state: ReplicaState, prepare: Prepare, *, admitted: bool = False) -> LogEntry:
    """Make `prepare` the head of the log here and have it written; it is not yet durable."""
    header = prepare.header
    had_uncommitted = state.log.op > state.commit_max
    if admitted:
        state.emit(
            Admitted(
                header.op,
                header.checksum,
                header.first_revision,
                header.command_count,
                header.timestamp,
            )
        )
    entry = state.write(prepare)
    if state.is_primary and state.status is ReplicaStatus.NORMAL and not had_uncommitted:
        rearm_resend(state)
    return entry


def send_prepare(state: ReplicaState, entry: LogEntry, to_replicas: tuple[int, ...]) -> None:
    """Primary: ask these replicas to journal `entry`.

    The driver sends an entry that an earlier process journaled; a backup that has it vouches again.
    """
    if entry.prepare is None:
        for replica in to_replicas:
            state.emit(SendHeld(replica, entry.header.op, entry.header.checksum))
        return
    message = PrepareMessage(
        state.configuration.cluster_id, state.replica, state.view, entry.prepare
    )
    for replica in to_replicas:
        state.emit(Send(replica, message))


def on_prepare(state: ReplicaState, message: PrepareMessage) -> None:
    """Backup: journal an entry that continues the log; repeat the ack of one that is durable."""
    header = message.prepare.header
    held = state.log.get(header.op)
    if held is None:
        held = journal(state, message.prepare)
    learn_commit(state, header.commit)
    acknowledge(state, held)


def learn_commit(state: ReplicaState, commit: int) -> None:
    """Backup: adopt the primary's commit point, as far as the log reaches."""
    state.commit_max = max(state.commit_max, min(commit, state.log.op))
    state.hear_commit(commit, state.primary)


def on_commit(state: ReplicaState, message: CommitMessage) -> None:
    """Backup: learn the commit point from a heartbeat, and confirm being in this view."""
    entry = state.log.get(message.commit)
    check(
        entry is None or entry.header.checksum == message.checksum,
        "primary and backup hold the same committed entry",
        message,
    )
    learn_commit(state, message.commit)
    if state.is_voter:
        ok = CommitOkMessage(
            state.configuration.cluster_id, state.replica, state.view, message.read_round
        )
        state.send(state.primary, ok)


def send_heartbeat(state: ReplicaState) -> None:
    """Primary: announce itself and the commit point, and again after a while."""
    tell_commit(state, state.followers)
    state.timeouts.arm(TimeoutName.HEARTBEAT, state.now_ticks)


def tell_commit(state: ReplicaState, to_replicas: Sequence[int]) -> None:
    """Primary: tell these replicas what is committed, and ask whether they are in its view.

    After a start from a snapshot the journal may lack the committed entry; the next one names it.
    """
    message = CommitMessage(
        state.configuration.cluster_id,
        state.replica,
        state.view,
        state.commit_max,
        state.log.checksum_of(state.commit_max) or PARENT_OF_FIRST,
        state.reads.number,
    )
    for replica in to_replicas:
        state.send(replica, message)


def resend_prepares(state: ReplicaState) -> None:
    """Primary: repeat each uncommitted entry to those who have not acknowledged it.

    Standbys acknowledge nothing. They ask for what they missed, once it is committed.
    """
    for entry in state.log.above(state.commit_max):
        silent = tuple(index for index in state.others if index not in entry.acks)
        send_prepare(state, entry, silent)
    rearm_resend(state)


def enter(state: ReplicaState) -> None:
    """Enter status normal in a view whose log is installed."""
    check(state.is_installed, "normal only once view and log view are durable", state.durable)
    state.timeouts.stop(TimeoutName.VOTE_RESEND, TimeoutName.START_VIEW_REQUEST)
    state.change_status(ReplicaStatus.NORMAL)
    state.stuck_op = 0
    if state.is_abdicating:
        return
    pre_votes.withdraw(state)
    if not state.is_primary:
        pre_votes.arm_suspicion(state)
        acknowledge_uncommitted(state)
    elif state.followers and not state.timeouts.is_armed(TimeoutName.HEARTBEAT):
        lead(state)
    abdication.leave_if_unfit(state)


def lead(state: ReplicaState) -> None:
    """Primary whose log is installed: begin the heartbeat, and have the backups vouch."""
    send_heartbeat(state)
    resend_prepares(state)
    if state.others:
        abdication.arm(state)
