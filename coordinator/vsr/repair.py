"""Fetching entries that this disk lacks: committed ones by op, chosen ones by op and checksum.

`needed_ops` says what is lacking, whatever the reason: a backup is behind, a log is being taken
over, a record is damaged. Peers are asked in turn, and asked again after a while; what they answer
is judged by `catch_up.py` and by `on_repair` here.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.vsr import acknowledge, log_adoption
from coordinator.vsr.effects import ReplicaStatus, SendHeld
from coordinator.vsr.errors import demand
from coordinator.vsr.events import RecordFaulty
from coordinator.vsr.messages import (
    Message,
    PrepareHeader,
    RepairMessage,
    RequestCommittedMessage,
    RequestPrepareMessage,
)
from coordinator.vsr.state import ReplicaState
from coordinator.vsr.timeouts import TimeoutName
from viewstamp.limits import CATCH_UP_OPS, PIPELINE_PREPARES_MAX


def settle(state: ReplicaState) -> None:
    """Settle rule: ask for what is lacking, and again as soon as that has come."""
    nothing = state.commit_heard <= state.commit_max
    if not state.may_journal or (nothing and not (state.log.faulty or state.installation)):
        if state.asked_ops:
            stop_asking(state)
        return
    needed = needed_ops(state)
    if not needed:
        stop_asking(state)
    elif not needed & state.asked_ops:
        begin(state, needed)


def stop_asking(state: ReplicaState) -> None:
    """Nothing is lacking."""
    state.asked_ops, state.peers_asked = frozenset(), 0
    state.timeouts.stop(TimeoutName.REPAIR)


def begin(state: ReplicaState, needed: frozenset[int]) -> None:
    """Ask at once; but in normal operation a pipeline of entries may well be on its way."""
    small = state.commit_heard - state.commit_max <= PIPELINE_PREPARES_MAX
    if state.status is ReplicaStatus.NORMAL and small and not state.log.faulty:
        state.asked_ops = needed
        state.timeouts.arm(TimeoutName.REPAIR, state.now_ticks)
    else:
        ask(state, needed)


def on_repair_timeout(state: ReplicaState) -> None:
    """There was no answer, or not all of it: ask another peer."""
    state.timeouts.stop(TimeoutName.REPAIR)
    needed = needed_ops(state)
    if needed:
        ask(state, needed)
        state.peers_asked += 1


def ask(state: ReplicaState, needed: frozenset[int]) -> None:
    """Send the questions for all that is lacking."""
    state.asked_ops = needed
    for peer, question in questions(state):
        state.send(peer, question)
    state.timeouts.arm(TimeoutName.REPAIR, state.now_ticks)


def needed_ops(state: ReplicaState) -> frozenset[int]:
    """The ops of the entries to ask for now."""
    first, last = committed_window(state)
    return frozenset((*range(first, last + 1), *faulty_committed(state), *wanted(state)))


def committed_window(state: ReplicaState) -> tuple[int, int]:
    """The next committed entries to ask for, by first and last op; empty if none is lacking."""
    first = state.commit_max + 1
    return first, min(state.commit_heard, state.commit_max + CATCH_UP_OPS)


def faulty_committed(state: ReplicaState) -> list[int]:
    """The damaged committed entries to ask for."""
    faulty = sorted(op for op in state.log.faulty if op <= state.commit_max)
    return [op for op in faulty[:CATCH_UP_OPS] if not state.log.is_being_written(op)]


def wanted(state: ReplicaState) -> dict[int, bytes]:
    """The entries to ask for whose checksums are known, by op.

    Those are of a log that is being taken over, and own ones that are damaged, some at a time: what
    is left in memory of one knows its checksum, or else the entry after it. So where several in a
    row are damaged, each that comes tells the checksum of the one before it.
    """
    known: dict[int, bytes] = {}
    for op in sorted(state.log.faulty):
        checksum = state.log.checksum_of(op)
        if checksum is not None and not state.log.is_being_written(op):
            known[op] = checksum
        if len(known) == CATCH_UP_OPS:
            break
    if state.installation is not None:
        lacking = log_adoption.lacking(state, state.installation)
        known.update((header.op, header.checksum) for header in lacking)
    return known


def questions(state: ReplicaState) -> Iterator[tuple[int, Message]]:
    """Whom to ask what."""
    cluster_id, replica = state.configuration.cluster_id, state.replica
    first, last = committed_window(state)
    source = peer_in_turn(state, (state.commit_source,))
    if first <= last:
        yield source, RequestCommittedMessage(cluster_id, replica, first, last)
    for op in faulty_committed(state):
        yield source, RequestCommittedMessage(cluster_id, replica, op, op)
    holder = peer_in_turn(state, state.installation.holders if state.installation else ())
    for op, checksum in sorted(wanted(state).items()):
        yield holder, RequestPrepareMessage(cluster_id, replica, op, checksum)


def peer_in_turn(state: ReplicaState, preferred: tuple[int, ...]) -> int:
    """The peer to ask: the preferred ones first, then the others, and so on in a circle.

    Standbys come last. What they hold is as good as anybody's: entries prove themselves by their
    checksums, and what is committed is so everywhere.
    """
    known = tuple(peer for peer in preferred if peer != state.replica)
    peers = known + tuple(peer for peer in state.followers if peer not in known)
    return peers[state.peers_asked % len(peers)]


def on_request_prepare(state: ReplicaState, message: RequestPrepareMessage) -> None:
    """Send the very entry asked for, out of memory or out of the journal."""
    entry = state.log.get(message.op)
    if entry is not None and entry.prepare is not None:
        answer = RepairMessage(state.configuration.cluster_id, state.replica, entry.prepare)
        state.send(message.from_replica, answer)
    else:
        state.emit(SendHeld(message.from_replica, message.op, message.checksum))


def on_repair(state: ReplicaState, message: RepairMessage) -> None:
    """Take an entry that was asked for; vouch for one that is here already."""
    header = message.prepare.header
    held = state.log.get(header.op)
    if wanted(state).get(header.op) == header.checksum:
        state.write(message.prepare, fills=header.op in state.log.faulty)
    elif held is not None:
        acknowledge.acknowledge(state, held)


def joins(state: ReplicaState, header: PrepareHeader) -> bool:
    """Whether an entry may take the place of a damaged one of which nothing is known.

    What was committed here may. Anything else may be of another log than what is before it, and
    would then say after a restart that this is committed: it has to follow that.
    """
    before = state.log.checksum_of(header.op - 1)
    if header.op <= state.commit_max or before == header.parent:
        return True
    # All up to the commit point is in every log. That an entry is not the child of what is there
    # is a defect then, which the log finds.
    is_next = header.op == state.commit_max + 1
    return is_next and (before is not None or header.op - 1 not in state.log.faulty)


def on_record_faulty(state: ReplicaState, event: RecordFaulty) -> None:
    """Write the record anew, from memory or from a peer; hand it out once more if it was lost.

    A disk without room is not written to: then a peer is asked, as for everything that lacks. What
    lies above the log was discarded while it was read.
    """
    demand(state.replica_count > 1, "a lone replica ends at a damaged record", event.op)
    demand(event.op > 0, "a damaged record is an entry's", event.op)
    if event.op > state.log.op:
        return
    if state.applied_op < event.op <= state.commit_min:
        state.redeliver.add(event.op)
    if state.log.is_being_written(event.op):
        return
    entry = state.log.mark_faulty(event.op)
    if entry is not None:
        entry.acks.discard(state.replica)
    if entry is not None and entry.prepare is not None and event.has_room:
        state.write(entry.prepare, fills=True)
