"""Adopting the log that a view begins with, on the primary-elect and on its backups alike.

The replica first catches up with committed entries, then compares its entries above them with the
headers of the chosen log. An entry that equals the chosen one stays on the disk throughout: it may
be part of the quorum that committed it. An entry that differs was never committed, and is
discarded; nothing is discarded at any other time. Lacking entries are fetched by op and checksum.
The log view is recorded only once the whole log is durable, and the view has its log once that
record is durable.
"""

from __future__ import annotations

from coordinator.vsr import acknowledge, normal, pre_votes
from coordinator.vsr.effects import ReplicaStatus
from coordinator.vsr.errors import check
from coordinator.vsr.messages import PrepareHeader, StartViewMessage
from coordinator.vsr.state import LogAdoption, ReplicaState
from viewstamp.limits import BOOT_NONCE_BYTES

NO_NONCE = bytes(BOOT_NONCE_BYTES)
"""The nonce of a StartView that nobody asked for."""


def advance(state: ReplicaState) -> None:
    """Settle rule: continue adopting the log as far as the entries held here allow."""
    installation = state.installation
    if installation is None:
        return
    # The commit point says how far the logs are compared: an entry that differs above it is
    # discarded before its successor is asked for.
    learn_commits(state, installation)
    if is_superseded(state, installation):
        return
    discard_conflict(state, installation)
    if state.commit_max < installation.commit:
        return
    discard_rest(state, installation)
    if is_complete(state, installation):
        record(state, installation)


def learn_commits(state: ReplicaState, installation: LogAdoption) -> None:
    """Commit own entries that equal committed ones of the chosen log."""
    for header in installation.headers:
        follows = header.op == state.commit_max + 1
        if header.op <= installation.commit and follows and held_alike(state, header):
            state.commit_max = header.op


def is_superseded(state: ReplicaState, installation: LogAdoption) -> bool:
    """Return whether a later view went on without the chosen log.

    It did if an entry committed here is not in that log, or if an entry here was made in a later
    view. Then nothing of that log is fetched, discarded or recorded. This replica waits to hear of
    the later view from its primary or from pre-votes. If it led instead, it would append an entry
    of this view after an entry of a later view.
    """
    is_contradicted = any(contradicts(state, header) for header in installation.headers)
    return is_contradicted or state.log.last_view > state.view


def contradicts(state: ReplicaState, header: PrepareHeader) -> bool:
    """Return whether an entry committed here differs from this one, or from its parent."""
    if header.op > state.commit_max + 1:
        return False
    if header.op <= state.commit_max:
        return not state.log.may_be(header)
    return state.log.checksum_of(header.op - 1) not in (None, header.parent)


def held_alike(state: ReplicaState, header: PrepareHeader) -> bool:
    """Return whether this log has exactly that entry, intact or on its way to the disk."""
    entry = state.log.get(header.op)
    intact = header.op not in state.log.faulty or state.log.is_being_written(header.op)
    return entry is not None and intact and entry.header.checksum == header.checksum


def lacking(state: ReplicaState, installation: LogAdoption) -> list[PrepareHeader]:
    """Return the entries of the chosen log to fetch: up to its commit point, then up to its
    head."""
    if is_superseded(state, installation):
        return []
    reach = installation.commit
    if state.commit_max >= installation.commit:
        reach = installation.head_op
    return [
        header
        for header in installation.headers
        if (state.commit_max < header.op <= reach and not held_alike(state, header))
        or (header.op in state.log.faulty and not state.log.is_being_written(header.op))
    ]


def discard_conflict(state: ReplicaState, installation: LogAdoption) -> None:
    """Discard from the first entry on that is known not to be of the chosen log.

    It is not if the chosen log has another entry in its place, or an entry after it with another
    parent. A damaged entry is compared by its checksum, if known: if the chosen entry were written
    in its place, the log would continue with a child of another entry.
    """
    for header in lacking(state, installation):
        is_other_parent = state.log.checksum_of(header.op - 1) not in (None, header.parent)
        if is_other_parent and header.op - 1 > state.commit_max:
            discard_from(state, header.op - 1)
            return
        if not state.log.may_be(header):
            discard_from(state, header.op)
            return


def discard_from(state: ReplicaState, op: int) -> None:
    """Discard an entry that the chosen log does not have, and all after it."""
    check(
        state.log_view < state.view,
        "two logs of one view hold the same entries",
        (state.view, op),
    )
    state.discard_after(op - 1)


def discard_rest(state: ReplicaState, installation: LogAdoption) -> None:
    """Discard entries beyond the chosen log, except committed ones, which are part of it."""
    head_op = max(installation.head_op, state.commit_max)
    if state.log.op > head_op:
        check(
            state.log_view < state.view or state.log.intact_op <= head_op,
            "nothing of a view's own log is discarded in it",
            (state.view, state.log.op, head_op),
        )
        state.discard_after(head_op)


def is_complete(state: ReplicaState, installation: LogAdoption) -> bool:
    """Whether the disk holds the whole log that the view begins with."""
    log = state.log
    whole = log.op >= installation.head_op and not lacking(state, installation)
    return whole and not log.faulty and log.is_quiet


def record(state: ReplicaState, installation: LogAdoption) -> None:
    """Have the log view written once; a replica that restarted in the view has it already."""
    if state.is_installed:
        state.vouched_op = min(installation.commit, state.commit_max)
        state.installation = None
    elif state.log_view < state.view or state.writing is None:
        state.vouched_op = installation.commit
        state.log_view = state.view
        state.log.take_up(state.view)
        state.recorded_view = state.view
        state.began_op = state.log.op
        state.inherited_op = state.log.op if state.is_primary else 0
        state.persist_superblock()


def take_up(state: ReplicaState) -> None:
    """Begin the view: the disk records its log, so a crash cannot make this replica forget it.

    The primary vouches for its copy, sends the log to the others, and begins its heartbeat.
    """
    state.installation = None
    if not state.is_primary:
        return
    acknowledge.acknowledge_uncommitted(state)
    if state.is_abdicating:
        # It was asked to resign while it was being elected: it announces no log.
        return
    if state.followers and state.status is ReplicaStatus.VIEW_CHANGE:
        pre_votes.withdraw(state)
        for replica in state.others:
            send_start_view(state, replica, NO_NONCE)
        normal.lead(state)


def send_start_view(state: ReplicaState, to_replica: int, nonce: bytes) -> None:
    """Installed primary: tell a replica how the log of this view goes on from the commit point."""
    headers = tuple(entry.header for entry in state.log.above(state.commit_max))
    message = StartViewMessage(
        state.configuration.cluster_id,
        state.replica,
        state.view,
        nonce,
        state.commit_max,
        state.log.op,
        headers,
    )
    state.send(to_replica, message)
