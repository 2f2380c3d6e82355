"""Taking over the log that a view begins with, on the primary-elect and on its backups alike.

First what is committed is caught up with, then the entries above are compared with the headers of
the chosen log. An own entry that equals the chosen one stays on the disk all the time: it may be
part of the quorum that committed it. One that differs was never committed, and is discarded; it is
the only time that anything is. What is lacking is fetched by op and checksum. Once all of it is
durable, and not before, the log view says so; and once that is durable, the view has its log.
"""

from __future__ import annotations

from coordinator.vsr import acknowledge, normal, pre_votes
from coordinator.vsr.effects import ReplicaStatus
from coordinator.vsr.errors import check
from coordinator.vsr.messages import PrepareHeader, StartViewMessage
from coordinator.vsr.state import LogAdoption, ReplicaState
from viewstamp.limits import BOOT_NONCE_BYTES

NO_NONCE = bytes(BOOT_NONCE_BYTES)
"""In a StartView that nobody asked for."""


def advance(state: ReplicaState) -> None:
    """Settle rule: go on with taking the log over, as far as what is here allows."""
    installation = state.installation
    if installation is None:
        return
    # First, since it says how far the logs are compared: an entry that differs above it is
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
    """Own entries that equal committed ones of the chosen log are committed."""
    for header in installation.headers:
        follows = header.op == state.commit_max + 1
        if header.op <= installation.commit and follows and held_alike(state, header):
            state.commit_max = header.op


def is_superseded(state: ReplicaState, installation: LogAdoption) -> bool:
    """Whether a later view went on without the chosen log.

    It did if an entry committed here is not in that log, or if one here was made in a later view.
    Then nothing of that log is fetched, discarded or recorded. This replica waits for the later
    view, of which it hears by its primary or by the pre-votes of the others. Were it to lead
    instead, it would put an entry of this view behind one of a later view.
    """
    is_contradicted = any(contradicts(state, header) for header in installation.headers)
    return is_contradicted or state.log.last_view > state.view


def contradicts(state: ReplicaState, header: PrepareHeader) -> bool:
    """Whether an entry committed here is in the place of this one, or of its parent."""
    if header.op > state.commit_max + 1:
        return False
    if header.op <= state.commit_max:
        return not state.log.may_be(header)
    return state.log.checksum_of(header.op - 1) not in (None, header.parent)


def held_alike(state: ReplicaState, header: PrepareHeader) -> bool:
    """Whether this log has that very entry, intact or on its way to the disk."""
    entry = state.log.get(header.op)
    intact = header.op not in state.log.faulty or state.log.is_being_written(header.op)
    return entry is not None and intact and entry.header.checksum == header.checksum


def lacking(state: ReplicaState, installation: LogAdoption) -> list[PrepareHeader]:
    """The known entries of the chosen log that have to be fetched, what is committed first."""
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
    """Discard from the first entry on that is not of the chosen log, as far as that can be told.

    An entry is not if the chosen log has another in its place, or one after it of another parent.
    A damaged one is compared, too, by the checksum that is known of it: were the chosen entry
    written in its place, the log would go on with a child of another one.
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
    """Discard what lies beyond the chosen log; but what is committed here is part of it."""
    head_op = max(installation.head_op, state.commit_max)
    if state.log.op > head_op:
        check(
            state.log_view < state.view,
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
    """Have the log view written, once; a replica that restarted in the view has it already."""
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
    """The view has its log here, and a crash cannot make this replica forget it any more.

    The primary vouches for its copy, tells the others the log, and lets them hear that it lives.
    """
    state.installation = None
    if not state.is_primary:
        return
    acknowledge.acknowledge_uncommitted(state)
    if state.is_abdicating:
        # It was asked to resign while it was being elected: nobody hears of its log.
        return
    if state.replica_count > 1 and state.status is ReplicaStatus.VIEW_CHANGE:
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
