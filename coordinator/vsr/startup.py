"""What a process does with what it found on its disk: an exhaustive and exclusive table."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import pairwise

from coordinator.vsr import bootstrap, changes, epochs, start_view, view_change
from coordinator.vsr.effects import NOT_ADMITTED, CoreState, Halted, ReplicaStatus
from coordinator.vsr.errors import demand
from coordinator.vsr.events import Start
from coordinator.vsr.membership import FOUNDING_EPOCH, founding
from coordinator.vsr.messages import PARENT_OF_FIRST, PrepareHeader
from coordinator.vsr.state import BOOTSTRAP_VIEW, ReplicaState
from viewstamp.limits import BOOT_NONCE_BYTES, PIPELINE_PREPARES_MAX


class Extent(Enum):
    """How far the journal reaches."""

    EMPTY = "empty"
    BOOTSTRAPPED = "bootstrapped"
    LONGER = "longer"


def extent(head_op: int) -> Extent:
    """Classify the op of the journal's last entry; 0 is the empty journal."""
    if head_op == 0:
        return Extent.EMPTY
    return Extent.BOOTSTRAPPED if head_op == 1 else Extent.LONGER


def on_start(state: ReplicaState, event: Start) -> None:
    """Take over what the disk holds, and start as the table says."""
    demand_start(event)
    superblock = event.superblock or CoreState(BOOTSTRAP_VIEW, BOOTSTRAP_VIEW, 0)
    state.boot_nonce, state.disk_id = event.boot_nonce, event.disk_id
    state.durable = event.superblock
    state.log_view = superblock.log_view
    state.voting_view = superblock.voting_view
    take_epoch(state, event)
    if state.replica in state.membership.standbys:
        state.voting_view = NOT_ADMITTED
    inherit(state, event)
    alone = state.is_alone
    if alone and event.base_op > state.log.op:
        halt_base_beyond_log(state, event.base_op)
        return
    state.commit_max = state.commit_min = state.applied_op = event.base_op
    if state.replica not in state.membership.members and event.superblock is not None:
        stay_away(state, superblock)
        return
    action = STARTUP[(alone, event.superblock is not None, extent(state.log.op))]
    action(state, superblock)
    if event.superblock is not None and event.superblock.view < state.membership.first_view:
        state.persist_superblock()


def stay_away(state: ReplicaState, superblock: CoreState) -> None:
    """Start as a replica that was removed: give others the entries that they still lack."""
    take_commit(state, superblock)
    epochs.retire(state)


def take_epoch(state: ReplicaState, event: Start) -> None:
    """Go on in the epoch of the superblock, or in the later one of a snapshot from a peer."""
    superblock = event.superblock
    configuration = state.configuration
    recorded = founding(configuration.replica_count, configuration.standby_count)
    if superblock is not None:
        recorded = superblock.membership or recorded
    if superblock is not None and recorded.epoch >= state.membership.epoch:
        state.take_membership(recorded)
        state.view = superblock.view
    elif superblock is not None:
        demand(
            event.base_op >= state.membership.began_op > 0,
            "a snapshot that reaches into a later epoch says where the epoch began",
            (event.base_op, state.membership),
        )
        if changes.gives_vote(state, state.membership):
            state.voting_view = state.membership.first_view
    demand_role(state, superblock)


def inherit(state: ReplicaState, event: Start) -> None:
    """Take over the log. A snapshot from peers may reach further than the own journal."""
    log = state.log
    log.inherit(event.suffix, state.log_view)
    for change in event.changes:
        log.inherit_change(change)
    faulty = tuple(op for op in event.faulty if op > event.base_op)
    log.inherit_faults(faulty, dict(event.faulty_checksums))
    log.head_uncertain = event.head_uncertain
    log.base_op = event.base_op
    if not state.is_alone and event.base_op > log.op:
        log.begin_after(event.base_op)


def demand_start(event: Start) -> None:
    """Hold the driver to a usable nonce, an ordered superblock and a connected suffix."""
    demand(
        len(event.boot_nonce) == BOOT_NONCE_BYTES,
        f"the boot nonce has {BOOT_NONCE_BYTES} bytes",
        len(event.boot_nonce),
    )
    superblock = event.superblock
    demand(
        superblock is None or 0 <= superblock.log_view <= superblock.view,
        "the superblock's log view is at most its view",
        superblock,
    )
    demand(event.base_op >= 0, "the base is an op", event.base_op)
    demand(
        list(event.faulty) == sorted(set(event.faulty)),
        "the faulty ops are in order",
        event.faulty,
    )
    if event.suffix:
        demand_suffix(event)
    bodies = {change.checksum for change in event.changes}
    demand(
        all(header.checksum in bodies for header in event.suffix if header.ends_epoch),
        "entries that end an epoch are given with their bodies",
        len(bodies),
    )


def demand_role(state: ReplicaState, superblock: CoreState | None) -> None:
    """Raise CallerError if a standby is given a disk that once had a vote."""
    is_standby = state.replica in state.membership.standbys
    demand(
        not is_standby or superblock is None or superblock.voting_view == NOT_ADMITTED,
        "the superblock of a standby was never admitted to a view",
        superblock,
    )


def demand_suffix(event: Start) -> None:
    """Check once more that the entries, each verified by the journal, follow each other."""
    suffix, faulty = event.suffix, frozenset(event.faulty)
    first, head = suffix[0], suffix[-1]
    lowest_op = max(event.base_op, head.op - PIPELINE_PREPARES_MAX) + 1
    demand(
        faulty.issuperset(range(lowest_op, first.op)),
        f"the suffix holds all entries or at least the last {PIPELINE_PREPARES_MAX}",
        (first.op, head.op),
    )
    demand(
        first.op > 1 or (first.parent == PARENT_OF_FIRST and first.first_revision == 1),
        "op 1 has no parent and holds revision 1",
        first,
    )
    for earlier, later in pairwise(suffix):
        gap = range(earlier.op + 1, later.op)
        connected = bool(gap) and faulty.issuperset(gap)
        demand(
            connected or follows(earlier, later), "entries of the suffix follow each other", later
        )


def follows(earlier: PrepareHeader, later: PrepareHeader) -> bool:
    """Return whether `later` can be the entry after `earlier`."""
    return (
        later.op == earlier.op + 1
        and later.parent == earlier.checksum
        and later.first_revision == earlier.last_revision + 1
        and later.timestamp > earlier.timestamp
        and later.view >= earlier.view
    )


def begin_blank(state: ReplicaState, superblock: CoreState) -> None:
    """Wait to be bootstrapped: nothing was ever written."""
    bootstrap.begin(state)


def finish_bootstrap(state: ReplicaState, superblock: CoreState) -> None:
    """Finish a bootstrap that crashed after op 1 was durable: a lone replica had told nobody."""
    take_over_alone(state)


def take_over_alone(state: ReplicaState) -> None:
    """Move to the next view, and with it record that the whole log is committed.

    A lone replica is its own quorum, so what its journal holds durably is committed. Once the
    superblock says so, damage to the last entries can no longer be taken for a torn tail.
    """
    state.commit_max = state.log.op
    view_change.enter(state, state.view + 1)


def recover_alone(state: ReplicaState, superblock: CoreState) -> None:
    """Hold a view change with oneself, if the log has all that the superblock knows of."""
    head = state.log.head
    if head is None or head.op < superblock.commit_max:
        halt_short_log(state, superblock)
    elif head.view > superblock.log_view:
        halt(
            state,
            f"journal entry {head.op} is of view {head.view}, but the superblock never reached it "
            f"(log view {superblock.log_view}): the superblock is older than the journal; "
            "bring back both from one backup, or restore a snapshot into a new cluster",
        )
    else:
        take_over_alone(state)


def halt_short_log(state: ReplicaState, superblock: CoreState) -> None:
    """Halt: committed entries are gone, and there is no peer to fetch them from."""
    halt(
        state,
        f"the journal ends at op {state.log.op}, but the superblock knows of op "
        f"{max(1, superblock.commit_max)}: entries were lost; bring the journal back, "
        "or restore a snapshot into a new cluster",
    )


def halt_base_beyond_log(state: ReplicaState, base_op: int) -> None:
    """Halt: the snapshot covers more than the journal holds, so acknowledged entries were lost."""
    halt(
        state,
        f"the snapshot to restart from was cut at op {base_op}, but the journal ends at op "
        f"{state.log.op}: entries were lost; bring the journal back, or restore the snapshot "
        "into a new cluster",
    )


def halt_without_superblock(state: ReplicaState, superblock: CoreState) -> None:
    """Halt: a longer journal was acknowledged in a view that nobody remembers."""
    halt(
        state,
        f"the journal reaches op {state.log.op}, but there is no superblock: it was lost; bring "
        "it back, or restore a snapshot into a new cluster",
    )


def await_peers(state: ReplicaState, superblock: CoreState) -> None:
    """Wait, as one of several after a restart, for peers to bring this replica up to date.

    Every entry says what was committed when it was made, and proves by its op that all entries
    before its pipeline were. The superblock records no commit that was not durable: if the journal
    ends before it, entries were lost. Those at its end may then be ones that a later log replaced,
    so the superblock does not make them committed.
    """
    take_commit(state, superblock)
    start_view.recover(state)


def take_commit(state: ReplicaState, superblock: CoreState) -> None:
    """Find out how far the log on this disk is committed, and how far peers' logs are at least."""
    said = max((entry.header.commit for entry in state.log.above(0)), default=0)
    known = max(said, state.log.op - PIPELINE_PREPARES_MAX)
    if state.log.op < superblock.commit_max:
        state.log.head_uncertain = True
    else:
        known = max(known, superblock.commit_max)
    state.commit_heard = max(known, superblock.commit_max)
    state.commit_max = max(min(known, state.log.op), state.commit_max)


def await_peers_without_journal(state: ReplicaState, superblock: CoreState) -> None:
    """Wait for peers with no journal: its entries were acknowledged, and none may be denied."""
    state.log.head_uncertain = True
    await_peers(state, superblock)


def found_anew(state: ReplicaState, superblock: CoreState) -> None:
    """Found the cluster anew as the bootstrap primary, which crashed before it told anyone of op 1.

    Another initial member knew of op 1 without vouching for it, and waits for peers as a member. A
    standby has lost its superblock, and records its role first.
    """
    if state.is_primary and state.membership.epoch == FOUNDING_EPOCH:
        state.discard_after(0)
        bootstrap.begin(state)
        return
    await_peers(state, superblock)
    if state.is_standby:
        state.persist_superblock()


def halt(state: ReplicaState, reason: str) -> None:
    """Halt for good, and say what the operator can do."""
    state.change_status(ReplicaStatus.HALTED)
    state.emit(Halted(reason))


STARTUP: dict[tuple[bool, bool, Extent], Callable[[ReplicaState, CoreState], None]] = {
    # (alone, superblock found, journal)
    (True, False, Extent.EMPTY): begin_blank,
    (True, False, Extent.BOOTSTRAPPED): finish_bootstrap,
    (True, False, Extent.LONGER): halt_without_superblock,
    (True, True, Extent.EMPTY): halt_short_log,
    (True, True, Extent.BOOTSTRAPPED): recover_alone,
    (True, True, Extent.LONGER): recover_alone,
    (False, False, Extent.EMPTY): begin_blank,
    (False, False, Extent.BOOTSTRAPPED): found_anew,
    (False, False, Extent.LONGER): halt_without_superblock,
    (False, True, Extent.EMPTY): await_peers_without_journal,
    (False, True, Extent.BOOTSTRAPPED): await_peers,
    (False, True, Extent.LONGER): await_peers,
}
