"""Fetching entries that this disk lacks: committed ones by op, chosen ones by op and checksum.

`needed_ops` lists the lacking entries, whatever the reason: a backup is behind, a log is being
adopted, a record is damaged. Peers are asked in turn, and again after a timeout; `catch_up.py` and
`on_repair` here judge their answers.
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
    """Settle rule: ask for lacking entries, and for the next ones as soon as those have come."""
    nothing = state.commit_heard <= state.commit_max
    if state.status is ReplicaStatus.REMOVED:
        return
    if not state.may_journal or (nothing and not (state.log.faulty or state.installation)):
        if state.asked_ops:
            stop_asking(state)
        return
    needed = needed_ops(state)
    if not needed:
        stop_asking(state)
    elif not needed & state.asked_ops:
        begin(state, needed)
    elif not asked_window(state):
        ask_for_window(state, needed)


def asked_window(state: ReplicaState) -> bool:
    """Return whether committed entries of the window are on their way, or none lack."""
    first, last = committed_window(state)
    return first > last or not state.asked_ops.isdisjoint(range(first, last + 1))


def ask_for_window(state: ReplicaState, needed: frozenset[int]) -> None:
    """Ask for the next committed entries, though something else has found no answer yet.

    Otherwise a damaged entry that nobody has would slow the rest down to one window per timeout,
    and a busy cluster would leave this replica behind for good.
    """
    first, last = committed_window(state)
    state.asked_ops = (state.asked_ops & needed) | frozenset(range(first, last + 1))
    state.send(*question_of_window(state))


def stop_asking(state: ReplicaState) -> None:
    """Note that nothing is lacking."""
    state.asked_ops, state.peers_asked = frozenset(), 0
    state.timeouts.stop(TimeoutName.REPAIR)


def begin(state: ReplicaState, needed: frozenset[int]) -> None:
    """Ask at once; in normal operation wait first, as a pipeline of entries may be on its way."""
    small = state.commit_heard - state.commit_max <= PIPELINE_PREPARES_MAX
    if state.status is ReplicaStatus.NORMAL and small and not state.log.faulty:
        state.asked_ops = needed
        state.timeouts.arm(TimeoutName.REPAIR, state.now_ticks)
    else:
        ask(state, needed)


def on_repair_timeout(state: ReplicaState) -> None:
    """Ask another peer: there was no answer, or not all of it."""
    state.timeouts.stop(TimeoutName.REPAIR)
    needed = needed_ops(state)
    if needed:
        ask(state, needed)
        state.peers_asked += 1


def ask(state: ReplicaState, needed: frozenset[int]) -> None:
    """Send the questions for all lacking entries."""
    state.asked_ops = needed
    for peer, question in questions(state):
        state.send(peer, question)
    state.timeouts.arm(TimeoutName.REPAIR, state.now_ticks)


def needed_ops(state: ReplicaState) -> frozenset[int]:
    """Return the ops of the entries to ask for now."""
    first, last = committed_window(state)
    return frozenset((*range(first, last + 1), *faulty_committed(state), *wanted(state)))


def committed_window(state: ReplicaState) -> tuple[int, int]:
    """Return the first and last op of the committed entries to ask for next; empty if none lack."""
    first = state.commit_max + 1
    return first, min(state.commit_heard, state.commit_max + CATCH_UP_OPS)


def faulty_committed(state: ReplicaState) -> list[int]:
    """Return the ops of the damaged committed entries to ask for."""
    faulty = sorted(op for op in state.log.faulty if op <= state.commit_max)
    return [op for op in faulty[:CATCH_UP_OPS] if not state.log.is_being_written(op)]


def wanted(state: ReplicaState) -> dict[int, bytes]:
    """Return the checksums, by op, of the entries to ask for by checksum.

    These are lacking entries of a log that is being adopted, and `CATCH_UP_OPS` damaged ones. The
    entry in memory, or the entry after it, names the checksum. So where several damaged entries
    stand in a row, each repaired one names the checksum of the one before it.
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
    """Yield each question with the peer to ask."""
    cluster_id, replica = state.configuration.cluster_id, state.replica
    first, last = committed_window(state)
    source = peer_in_turn(state, (state.commit_source,))
    if first <= last:
        yield question_of_window(state)
    for op in faulty_committed(state):
        yield source, RequestCommittedMessage(cluster_id, replica, op, op)
    holder = peer_in_turn(state, state.installation.holders if state.installation else ())
    for op, checksum in sorted(wanted(state).items()):
        yield holder, RequestPrepareMessage(cluster_id, replica, op, checksum)


def question_of_window(state: ReplicaState) -> tuple[int, Message]:
    """Return the question for the next committed entries, with the peer to ask."""
    first, last = committed_window(state)
    cluster_id, replica = state.configuration.cluster_id, state.replica
    source = peer_in_turn(state, (state.commit_source,))
    return source, RequestCommittedMessage(cluster_id, replica, first, last)


def peer_in_turn(state: ReplicaState, preferred: tuple[int, ...]) -> int:
    """Return the peer to ask: the preferred ones first, then the others, in a circle.

    Standbys come last. Their entries are as good as anybody's: a checksum proves an entry, and a
    committed entry is the same everywhere.
    """
    known = tuple(peer for peer in preferred if peer != state.replica)
    others = (*state.followers, *state.former)
    peers = known + tuple(peer for peer in others if peer not in known)
    return peers[state.peers_asked % len(peers)]


def on_request_prepare(state: ReplicaState, message: RequestPrepareMessage) -> None:
    """Send the entry asked for, from memory or from the journal."""
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
    """Return whether an entry may take the place of a damaged one of which nothing is known.

    An entry committed here may. Any other may be of another log than the entry before it, and would
    after a restart make that entry look committed; so it must follow that entry.
    """
    before = state.log.checksum_of(header.op - 1)
    if header.op <= state.commit_max or before == header.parent:
        return True
    # Every log has all entries up to the commit point. An entry that does not follow them is then
    # a defect, which `LogTail.append` or `fill` finds.
    is_next = header.op == state.commit_max + 1
    return is_next and (before is not None or header.op - 1 not in state.log.faulty)


def on_record_faulty(state: ReplicaState, event: RecordFaulty) -> None:
    """Rewrite the record, from memory or from a peer; hand the entry out again if that was lost.

    A full disk is not written to: then a peer is asked, as for every lacking entry. An entry above
    the log was discarded while it was read.
    """
    demand(not state.is_alone, "a lone replica ends at a damaged record", event.op)
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
