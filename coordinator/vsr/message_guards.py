"""Which messages have no effect, and why: named predicates, tested in order.

A `Dropped` effect names the rule that dropped a message. A message of normal operation in a newer
view is dropped too: it leads to a question (`start_view.py`), but says too little to act on.
"""

from __future__ import annotations

from typing import TypeAlias

from coordinator.vsr import bootstrap, catch_up, epochs, message_shapes, repair
from coordinator.vsr.effects import NOT_ADMITTED, ReplicaStatus
from coordinator.vsr.membership import FOUNDING_EPOCH, epoch_of
from coordinator.vsr.messages import (
    PARENT_OF_FIRST,
    AdmissionDurableMessage,
    AdmissionMessage,
    BlankAnswerMessage,
    BlankQueryMessage,
    CommitMessage,
    CommitOkMessage,
    CommittedGoneMessage,
    CommittedMessage,
    DoViewChangeMessage,
    EpochEndedMessage,
    Message,
    PrepareMessage,
    PrepareOkMessage,
    ReadIndexReplyMessage,
    ReadIndexRequestMessage,
    RepairMessage,
    RequestAdmissionMessage,
    RequestCommittedMessage,
    RequestPrepareMessage,
    RequestStartViewMessage,
    StartViewChangeMessage,
    StartViewMessage,
)
from coordinator.vsr.state import BOOTSTRAP_VIEW, ReplicaState
from viewstamp.limits import PIPELINE_PREPARES_MAX

Viewed: TypeAlias = (
    PrepareMessage
    | PrepareOkMessage
    | CommitMessage
    | CommitOkMessage
    | ReadIndexRequestMessage
    | ReadIndexReplyMessage
)
WithPrepare: TypeAlias = PrepareMessage | RepairMessage | CommittedMessage

OF_ENTRIES: tuple[type, ...] = (
    RequestPrepareMessage,
    RepairMessage,
    RequestCommittedMessage,
    CommittedMessage,
    CommittedGoneMessage,
    EpochEndedMessage,
)
"""Messages that mean the same in each epoch."""

AMONG_VOTERS = (
    PrepareOkMessage,
    CommitOkMessage,
    StartViewChangeMessage,
    DoViewChangeMessage,
    BlankQueryMessage,
    BlankAnswerMessage,
    RequestAdmissionMessage,
    AdmissionMessage,
    AdmissionDurableMessage,
)
"""Messages that standbys neither send nor take."""


def other_cluster(state: ReplicaState, message: Message) -> bool:
    """The cluster id keeps clusters apart: staging does not talk to production."""
    return message.cluster_id != state.configuration.cluster_id


def unknown_sender(state: ReplicaState, message: Message) -> bool:
    """Messages come from the other members.

    A replica of another epoch may ask, and tell, what is committed: that is the same in each epoch,
    and the shell knows who belongs to the cluster. A blank replica may not know its members yet.
    """
    if message.from_replica in state.followers:
        return False
    is_news = state.status is ReplicaStatus.BLANK and isinstance(message, epochs.NEWS_OF_CLUSTER)
    may_be_other = is_news or isinstance(message, OF_ENTRIES)
    return message.from_replica == state.replica or not may_be_other


def of_standby(state: ReplicaState, message: Message) -> bool:
    """Messages that make or count towards a quorum pass only between voters."""
    if not isinstance(message, AMONG_VOTERS):
        return False
    return state.is_standby or message.from_replica not in state.others


def newer_view(state: ReplicaState, message: Viewed) -> bool:
    """The sender is in a view that this replica does not know yet."""
    return message.view > state.view


def older_view(state: ReplicaState, message: Viewed) -> bool:
    """The sender is in a view that has ended, and may no longer be primary."""
    return message.view < state.view


def not_from_primary(state: ReplicaState, message: Viewed) -> bool:
    """Only the primary of the view sequences and commits."""
    return message.from_replica != state.primary


def not_for_backup(state: ReplicaState, message: Viewed) -> bool:
    """Only the primary of the view counts acknowledgements."""
    return not state.is_primary


def prepare_of_other_cluster(state: ReplicaState, message: WithPrepare) -> bool:
    """The entry itself names its cluster."""
    return message.prepare.header.cluster_id != state.configuration.cluster_id


def prepare_of_other_view(state: ReplicaState, message: PrepareMessage) -> bool:
    """A primary sends entries of its own view, and those that it inherited."""
    return message.prepare.header.view > state.view


def prepare_out_of_window(state: ReplicaState, message: PrepareMessage) -> bool:
    """The entry has left the tail: it was acknowledged long ago."""
    op = message.prepare.header.op
    return op <= state.log.op and state.log.get(op) is None


def prepare_gap(state: ReplicaState, message: PrepareMessage) -> bool:
    """An entry before this one is missing here; the primary repeats what is uncommitted."""
    return message.prepare.header.op > state.log.op + 1


def broken_chain(state: ReplicaState, message: PrepareMessage) -> bool:
    """The entry continues another log, or replaces an entry of this view."""
    header = message.prepare.header
    held = state.log.get(header.op)
    if held is not None:
        return held.header.checksum != header.checksum
    if state.log.head is None and state.log.op > 0:
        return True
    continues = header.first_revision == state.log.last_revision + 1
    return header.parent != state.log.checksum or not continues


def journal_backlog(state: ReplicaState, message: PrepareMessage) -> bool:
    """The disk here is too far behind to take more entries."""
    return message.prepare.header.op > state.log.op and not state.log.has_room


def stale_pre_vote(state: ReplicaState, message: StartViewChangeMessage) -> bool:
    """This replica is in that view already, or in a later one."""
    return message.target_view <= state.view


def not_primary_of(state: ReplicaState, message: DoViewChangeMessage) -> bool:
    """The message is for the primary of the view that it names; a later view concerns all."""
    is_other = state.membership.primary_of(message.view) != state.replica
    return message.view <= state.view and is_other


def not_from_primary_of(state: ReplicaState, message: StartViewMessage) -> bool:
    """Only the primary of a view announces its log."""
    return message.from_replica != state.membership.primary_of(message.view)


def malformed_log(state: ReplicaState, message: DoViewChangeMessage | StartViewMessage) -> bool:
    """The log in the message has a hole, or its entries do not follow each other."""
    return not message_shapes.is_whole(message)


def restarted_primary(state: ReplicaState, message: DoViewChangeMessage) -> bool:
    """A restarted primary never goes on in its view."""
    return message.view == state.view and state.status is ReplicaStatus.RECOVERING


def already_installed(state: ReplicaState, message: StartViewMessage) -> bool:
    """This replica has the log of that view, or is adopting it."""
    if message.view != state.view:
        return False
    if state.installation is not None:
        return True
    return state.is_installed and state.status is not ReplicaStatus.RECOVERING


def stale_start_view(state: ReplicaState, message: StartViewMessage) -> bool:
    """This replica has more of that same view's log, or an entry of a later view.

    It must not give up entries that it vouched for, or committed entries that it fetched before it
    had the log of the view: a restart makes it forget that they are committed. An entry proves that
    its view began, and the primary of a view never has less of its log than it gave away. Where a
    committed entry is damaged and unknown here, only a log asked for in this boot is believed.
    """
    last_view = state.log.last_view
    if last_view > message.view:
        return True
    if message.nonce != state.boot_nonce and catch_up.lacks_committed(state, message.commit):
        return True
    is_of_own_log = message.view in (state.log_view, last_view)
    return is_of_own_log and message.head_op < catch_up.head_vouched_for(state, message)


def unasked_start_view(state: ReplicaState, message: StartViewMessage) -> bool:
    """A late log meant for a newcomer's earlier boot may lack entries that it vouched for since."""
    is_newcomer = state.voting_view == NOT_ADMITTED and not state.is_standby
    return is_newcomer and message.nonce != state.boot_nonce


def not_installed(state: ReplicaState, message: RequestStartViewMessage) -> bool:
    """This replica does not lead its view yet, or no longer."""
    if message.view > state.view:
        return False
    leads = state.is_primary and state.is_installed and state.status is not ReplicaStatus.RECOVERING
    return not leads


def leads_no_more(state: ReplicaState, message: ReadIndexRequestMessage) -> bool:
    """This replica is giving up the lead, and the next primary will know what is committed."""
    return state.is_abdicating or state.is_epoch_ending


def abdicating(state: ReplicaState, message: RequestStartViewMessage) -> bool:
    """This replica is giving up the lead."""
    return state.is_abdicating and message.view <= state.view


def not_held(state: ReplicaState, message: RequestPrepareMessage) -> bool:
    """There is another entry at that op here, or none."""
    entry = state.log.get(message.op)
    if entry is not None:
        return entry.header.checksum != message.checksum
    return message.op > state.log.op or message.op in state.log.faulty


def not_committed(state: ReplicaState, message: RequestCommittedMessage) -> bool:
    """This replica does not know those entries to be committed."""
    return message.first_op < 1 or message.first_op > state.commit_max


def committed_not_lacking(state: ReplicaState, message: CommittedMessage) -> bool:
    """The entry is here, an earlier one must come first, or it is this primary's to commit.

    The last holds from the moment on at which this primary adopted its log, before its disk
    records that.
    """
    if not state.may_journal:
        return True
    op = message.prepare.header.op
    if op <= state.commit_max:
        return op not in state.log.faulty or state.log.is_being_written(op)
    has_log = state.is_installed or state.recorded_view == state.view
    decides = state.is_primary and has_log and not state.is_epoch_over
    return op != state.commit_max + 1 or decides


def log_replaced(state: ReplicaState, message: CommittedMessage) -> bool:
    """This view's log has another entry there: the log of a later view has replaced it.

    The later view's StartView must come first. A voter rarely holds such an entry, since the later
    view began with its log or with that of a replica that acknowledged the same; a standby can.
    """
    op = message.prepare.header.op
    if state.status is not ReplicaStatus.NORMAL or not state.commit_max < op <= state.log.op:
        return False
    if op in state.log.faulty:
        return not catch_up.belongs(state, message.prepare)
    held = state.log.get(op)
    return held is None or held.header.checksum != message.prepare.header.checksum


def head_damaged(state: ReplicaState, message: CommittedMessage | RepairMessage) -> bool:
    """The preceding entry is damaged here and must come first, unless this fills a known place."""
    log, header = state.log, message.prepare.header
    if header.op == 1:
        return False
    if log.checksum_of(header.op) == header.checksum:
        fits = log.checksum_of(header.op - 1) in (None, header.parent)
        return header.op in log.faulty and not fits
    if 0 < log.base_op == header.op - 1 and (log.is_at_base or log.base_op not in log.faulty):
        return False
    if header.op in log.faulty and catch_up.belongs(state, message.prepare):
        return not repair.joins(state, header)
    return log.get(header.op - 1) is None


def of_later_epoch(state: ReplicaState, message: CommittedMessage | RepairMessage) -> bool:
    """The disk here does not know yet that the entry's epoch began: a restart would be in an
    earlier epoch, behind whose end the journal goes on."""
    durable_view = state.durable.view if state.durable is not None else BOOTSTRAP_VIEW
    return epoch_of(message.prepare.header.view) > epoch_of(durable_view)


def committed_backlog(state: ReplicaState, message: CommittedMessage | RepairMessage) -> bool:
    """The disk here is too far behind to take more entries."""
    return message.prepare.header.op > state.log.op and not state.log.has_room


def repair_not_lacking(state: ReplicaState, message: RepairMessage) -> bool:
    """This replica neither lacks the entry nor holds it."""
    if not state.may_journal:
        return True
    header = message.prepare.header
    held = state.log.get(header.op)
    if held is not None and held.header.checksum == header.checksum:
        return False
    return repair.wanted(state).get(header.op) != header.checksum


def repair_gap(state: ReplicaState, message: RepairMessage) -> bool:
    """An entry before this one is lacking here, and comes first."""
    return message.prepare.header.op > state.log.op + 1


def snapshot_not_needed(state: ReplicaState, message: CommittedGoneMessage) -> bool:
    """The snapshot covers no entry that is lacking here, or damaged here and truncated there."""
    covered = min(message.cut_op, message.first_held_op - 1)
    is_damage_covered = any(op <= covered for op in state.log.faulty if op != state.log.base_op)
    return message.cut_op <= state.commit_max and not is_damage_covered


def prepare_unknown(state: ReplicaState, message: PrepareOkMessage) -> bool:
    """The acknowledged entry is not in the tail: long committed, or of another history."""
    entry = state.log.get(message.op)
    return entry is None or entry.header.checksum != message.checksum


def old_read_round(state: ReplicaState, message: CommitOkMessage) -> bool:
    """A confirmation from before the running round began proves nothing about it."""
    return message.read_round != state.reads.number


def not_asked(state: ReplicaState, message: ReadIndexReplyMessage) -> bool:
    """The answer is to an earlier question, perhaps of another boot; its index is too old."""
    asked = (state.boot_nonce, state.reads.number)
    return not state.reads.running or (message.nonce, message.token) != asked


def stale_nonce(state: ReplicaState, message: BlankAnswerMessage) -> bool:
    """The answer is to a question of an earlier boot."""
    return message.echo != state.boot_nonce


def not_bootstrapped(state: ReplicaState, message: CommitMessage) -> bool:
    """Nothing is committed yet: this replica may be one of the initial members."""
    return message.commit == 0 or state.log.op > 0


def lags_behind(state: ReplicaState, message: RequestAdmissionMessage) -> bool:
    """The newcomer does not hold this primary's log yet, or the primary leads no more."""
    if state.is_epoch_ending:
        return True
    return state.is_abdicating or message.commit + PIPELINE_PREPARES_MAX < state.commit_max


def not_a_newcomer(state: ReplicaState, message: AdmissionMessage) -> bool:
    """This replica has a vote already, or asked in another boot."""
    return state.voting_view != NOT_ADMITTED or message.nonce != state.boot_nonce


def abdicating_already(state: ReplicaState, message: AdmissionDurableMessage) -> bool:
    """This primary has already resigned in favour of that view."""
    own = state.pre_votes.get(state.replica)
    return own is not None and own.target_view >= message.voting_view


def already_bootstrapped(state: ReplicaState, message: Message) -> bool:
    """Op 1 exists here, or did when this replica was added: it must not be bootstrapped over."""
    return state.log.op > 0 or state.membership.epoch != FOUNDING_EPOCH


def not_from_bootstrap_primary(state: ReplicaState, message: Message) -> bool:
    """The bootstrap is led by the primary of the bootstrap view."""
    return message.from_replica != state.membership.primary_of(BOOTSTRAP_VIEW)


def not_the_bootstrap_prepare(state: ReplicaState, message: WithPrepare) -> bool:
    """A blank replica can begin only with op 1."""
    header = message.prepare.header
    return (header.op, header.parent, header.first_revision) != (1, PARENT_OF_FIRST, 1)


def not_an_initial_member(state: ReplicaState, message: WithPrepare) -> bool:
    """This boot of this replica was not asked: it may have forgotten acknowledgements."""
    return not bootstrap.names_this_boot(state, message)
