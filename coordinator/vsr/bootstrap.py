"""Bootstrap: how a cluster of blank replicas gets op 1, and never a second one.

A replica whose disk was lost looks blank too, and must not help to found the cluster again. So the
bootstrap primary sequences op 1 only when *all* replicas say they are blank. Answers echo its boot
nonce, so that an old answer does not count. The Founded entry names the boot nonces of all initial
members. A replica takes part only if its present boot is among them: it was blank then and has not
restarted since.

The entry is durable before the first superblock is written, and the superblock before anyone
vouches for the entry. So a superblock without op 1 means that the journal was lost, and no cluster
is bootstrapped over it.
"""

from __future__ import annotations

from coordinator.vsr import acknowledge, normal
from coordinator.vsr.effects import BootstrapReady, RefusalReason, Refused, ReplicaStatus, Send
from coordinator.vsr.errors import demand
from coordinator.vsr.events import Found, RecordsDurable
from coordinator.vsr.membership import FOUNDING_EPOCH
from coordinator.vsr.messages import (
    BlankAnswerMessage,
    BlankQueryMessage,
    CommittedMessage,
    Prepare,
    PrepareMessage,
    RepairMessage,
    RequestCommittedMessage,
    StartViewChangeMessage,
)
from coordinator.vsr.state import BOOTSTRAP_VIEW, ReplicaState
from coordinator.vsr.timeouts import TimeoutName

BOOTSTRAPPED_COMMANDS = 1
"""Founded is the one command of op 1, and has revision 1."""


def begin(state: ReplicaState) -> None:
    """Start as a blank replica; the bootstrap primary asks the others whether they are blank."""
    state.change_status(ReplicaStatus.BLANK)
    state.initial_members = {state.replica: state.boot_nonce}
    if state.is_primary and state.membership.epoch == FOUNDING_EPOCH:
        ask_initial_members(state)


def nonces(state: ReplicaState) -> tuple[bytes, ...]:
    """The boot nonces of all initial members in replica order; callable once all are known."""
    return tuple(state.initial_members[each] for each in state.membership.voters)


def all_blank(state: ReplicaState) -> bool:
    """Whether every replica, this one included, reported blank."""
    return len(state.initial_members) == state.replica_count


def ask_initial_members(state: ReplicaState) -> None:
    """Bootstrap primary: ask those who have not answered, and again after a timeout."""
    if all_blank(state):
        state.emit(BootstrapReady(nonces(state)))
        state.timeouts.stop(TimeoutName.BOOTSTRAP_QUERY)
        return
    query = BlankQueryMessage(state.configuration.cluster_id, state.replica, state.boot_nonce)
    for replica in state.others:
        if replica not in state.initial_members:
            state.emit(Send(replica, query))
    state.timeouts.arm(TimeoutName.BOOTSTRAP_QUERY, state.now_ticks)


def on_blank_query(state: ReplicaState, message: BlankQueryMessage) -> None:
    """Tell the bootstrap primary that this replica is blank, in this boot."""
    answer = BlankAnswerMessage(
        state.configuration.cluster_id, state.replica, message.nonce, state.boot_nonce
    )
    state.emit(Send(message.from_replica, answer))


def on_blank_answer(state: ReplicaState, message: BlankAnswerMessage) -> None:
    """Bootstrap primary: note an initial member. Its restart changes what op 1 must say."""
    if state.initial_members.get(message.from_replica) == message.nonce:
        return
    state.initial_members[message.from_replica] = message.nonce
    if all_blank(state):
        ask_initial_members(state)


def on_found(state: ReplicaState, event: Found) -> None:
    """Bootstrap primary: sequence op 1 with the body that the driver made for the initial
    members."""
    demand(
        state.is_primary and all_blank(state) and state.log.op == 0,
        "Found answers BootstrapReady, once",
        (state.replica, len(state.initial_members), state.log.op),
    )
    demand(event.wall_clock_us >= 0, "the wall clock is not before 1970", event.wall_clock_us)
    if state.read_initial_members and tuple(state.read_initial_members(event.body)) != nonces(
        state
    ):
        state.emit(Refused(RefusalReason.INITIAL_MEMBERS_CHANGED, None))
        return
    normal.append_new(state, event.body, BOOTSTRAPPED_COMMANDS, event.wall_clock_us)


def on_bootstrap_prepare(
    state: ReplicaState, message: PrepareMessage | RepairMessage | CommittedMessage
) -> None:
    """Blank backup: journal op 1, which names this boot among the initial members."""
    normal.journal(state, message.prepare)


def on_cluster_without_primary(state: ReplicaState, message: StartViewChangeMessage) -> None:
    """Blank replica: ask for op 1, because the sender misses the primary of a cluster.

    An initial member that missed op 1 may be needed to elect another primary, and no heartbeat
    tells it of the cluster. Where op 1 does not name this boot, nothing comes of the question.
    """
    if state.log.op == 0:
        state.send(
            message.from_replica,
            RequestCommittedMessage(state.configuration.cluster_id, state.replica, 1, 1),
        )


def on_records_durable(state: ReplicaState, event: RecordsDurable) -> None:
    """Once op 1 is durable, write the first superblock; normal status follows that."""
    acknowledge.on_records_durable(state, event)
    if state.log.durable_op == 1 and state.writing is None:
        state.view = state.log_view = BOOTSTRAP_VIEW
        state.persist_superblock()


def names_this_boot(
    state: ReplicaState, message: PrepareMessage | RepairMessage | CommittedMessage
) -> bool:
    """Whether the Founded entry lists this replica with the nonce of its present boot."""
    return names(state, message.prepare)


def names(state: ReplicaState, prepare: Prepare) -> bool:
    """Whether the Founded entry `prepare` lists this boot of this replica."""
    if state.read_initial_members is None or state.is_standby:
        return False
    listed = tuple(state.read_initial_members(prepare.body))
    if state.membership.epoch != FOUNDING_EPOCH or len(listed) != state.replica_count:
        return False
    return listed[state.replica] == state.boot_nonce
