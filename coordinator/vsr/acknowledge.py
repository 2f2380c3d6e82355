"""When a replica vouches for an entry, to its primary or by counting itself, as durably held."""

from __future__ import annotations

from coordinator.vsr import commit
from coordinator.vsr.effects import ReplicaStatus, Send
from coordinator.vsr.errors import demand
from coordinator.vsr.events import Discarded, RecordsDurable
from coordinator.vsr.log import LogEntry
from coordinator.vsr.messages import PrepareOkMessage
from coordinator.vsr.state import ReplicaState


def on_records_durable(state: ReplicaState, event: RecordsDurable) -> None:
    """Acknowledge the records that became durable, judged by the present view.

    The acknowledgement is not prepared when the write begins: the view could end in between.
    """
    demand_records(state, event)
    for record in event.records:
        entry = state.log.finish_write(record)
        if entry is not None:
            acknowledge(state, entry)
        commit.deliver_again(state, record.op)


def demand_records(state: ReplicaState, event: RecordsDurable) -> None:
    """Raise CallerError unless the journal was asked to write these records."""
    for record in event.records:
        demand(
            state.log.awaits_write(record),
            "only records it was asked to write are reported durable",
            record,
        )


def on_discarded(state: ReplicaState, event: Discarded) -> None:
    """Note that the oldest discard is carried out."""
    discards = state.log.discards
    demand(
        bool(discards) and discards[0] == event.op,
        f"discards are reported in their order: {discards}",
        event.op,
    )
    del discards[0]


def acknowledge(state: ReplicaState, entry: LogEntry) -> None:
    """Vouch for an entry to the primary of the present view; nothing else vouches.

    A replica vouches only for a durable entry of the present view's log, and only once the disk
    records the view. Otherwise an entry could look committed that the next view does not know.
    """
    if not entry.durable or entry.log_view != state.view or not state.is_installed:
        return
    if not state.is_voter:
        return
    if state.is_primary:
        entry.acks.add(state.replica)
    elif state.status is ReplicaStatus.NORMAL:
        ok = PrepareOkMessage(
            state.configuration.cluster_id,
            state.replica,
            state.view,
            entry.header.op,
            entry.header.checksum,
            state.commit_min,
        )
        state.emit(Send(state.primary, ok))


def acknowledge_uncommitted(state: ReplicaState) -> None:
    """On entering a view, vouch for the entries of its log above its commit point.

    This replica may know of more commits than the primary, which still counts copies.
    """
    for entry in state.log.above(min(state.vouched_op, state.commit_max)):
        acknowledge(state, entry)


def on_prepare_ok(state: ReplicaState, message: PrepareOkMessage) -> None:
    """Primary: count a backup's durable copy; the settle rules commit."""
    entry = state.log.get(message.op)
    if entry is not None:
        entry.acks.add(message.from_replica)
