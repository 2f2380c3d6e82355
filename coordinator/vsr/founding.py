"""Founding: how a cluster of blank replicas gets op 1, and never a second one.

A replica whose disk was lost looks blank too, and must not help to found the cluster again. So the
founding primary sequences op 1 only when *all* replicas say they are blank. Answers echo its boot
nonce, so that an old answer does not count. The Founded entry names the boot nonces of all
founders, and a replica takes part only if its own of this boot is there: blank then, blank now.

The entry is durable before the first superblock is written, and that before anyone vouches for the
entry. So a superblock without op 1 tells of a lost journal, and no cluster is founded over it.
"""

from __future__ import annotations

from coordinator.vsr import acknowledge, normal
from coordinator.vsr.effects import FoundingReady, RefusalReason, Refused, Send, Status
from coordinator.vsr.errors import demand
from coordinator.vsr.events import Found, RecordsDurable
from coordinator.vsr.messages import (
    BlankAnswerMessage,
    BlankQueryMessage,
    Prepare,
    PrepareMessage,
    RepairMessage,
)
from coordinator.vsr.state import FOUNDING_VIEW, State
from coordinator.vsr.timeouts import TimeoutName

FOUNDED_COMMANDS = 1
"""Founded is the one command of op 1, and has revision 1."""


def begin(state: State) -> None:
    """Start as a blank replica; the founding primary asks the others whether they are blank."""
    state.change_status(Status.BLANK)
    state.founders = {state.replica: state.boot_nonce}
    if state.is_primary:
        ask_founders(state)


def nonces(state: State) -> tuple[bytes, ...]:
    """The boot nonces of all founders in replica order; callable once all are known."""
    return tuple(state.founders[index] for index in range(state.replica_count))


def all_blank(state: State) -> bool:
    """Whether every replica, this one included, reported blank."""
    return len(state.founders) == state.replica_count


def ask_founders(state: State) -> None:
    """Founding primary: ask those who have not answered, and again after a while."""
    if all_blank(state):
        state.emit(FoundingReady(nonces(state)))
        state.timeouts.stop(TimeoutName.FOUNDING_QUERY)
        return
    query = BlankQueryMessage(state.configuration.cluster_id, state.replica, state.boot_nonce)
    for replica in state.others:
        if replica not in state.founders:
            state.emit(Send(replica, query))
    state.timeouts.arm(TimeoutName.FOUNDING_QUERY, state.now_ticks)


def on_blank_query(state: State, message: BlankQueryMessage) -> None:
    """Tell the founding primary that this replica is blank, in this boot."""
    answer = BlankAnswerMessage(
        state.configuration.cluster_id, state.replica, message.nonce, state.boot_nonce
    )
    state.emit(Send(message.from_replica, answer))


def on_blank_answer(state: State, message: BlankAnswerMessage) -> None:
    """Founding primary: note a founder. A founder that booted anew changes what op 1 must say."""
    if state.founders.get(message.from_replica) == message.nonce:
        return
    state.founders[message.from_replica] = message.nonce
    if all_blank(state):
        ask_founders(state)


def on_found(state: State, event: Found) -> None:
    """Founding primary: sequence op 1 with the body that the driver made for these founders."""
    demand(
        state.is_primary and all_blank(state) and state.log.op == 0,
        "Found answers FoundingReady, once",
        (state.replica, len(state.founders), state.log.op),
    )
    demand(event.wall_clock_us >= 0, "the wall clock is not before 1970", event.wall_clock_us)
    if state.read_founders and tuple(state.read_founders(event.body)) != nonces(state):
        state.emit(Refused(RefusalReason.FOUNDERS_CHANGED, None))
        return
    normal.append_new(state, event.body, FOUNDED_COMMANDS, event.wall_clock_us)


def on_founding_prepare(state: State, message: PrepareMessage | RepairMessage) -> None:
    """Blank backup: journal op 1, which names this boot of this replica among the founders."""
    normal.journal(state, message.prepare)


def on_records_durable(state: State, event: RecordsDurable) -> None:
    """Once op 1 is durable, write the first superblock; normal status follows that."""
    acknowledge.on_records_durable(state, event)
    if state.log.durable_op == 1 and state.writing is None:
        state.view = state.log_view = FOUNDING_VIEW
        state.persist_superblock()


def names_this_boot(state: State, message: PrepareMessage | RepairMessage) -> bool:
    """Whether the Founded entry lists this replica with the nonce of its present boot."""
    return names(state, message.prepare)


def names(state: State, prepare: Prepare) -> bool:
    """Whether the Founded entry `prepare` lists this boot of this replica."""
    if state.read_founders is None or state.is_standby:
        return False
    listed = tuple(state.read_founders(prepare.body))
    return len(listed) == state.replica_count and listed[state.replica] == state.boot_nonce
