"""The replica: one event in, the effects out. All dispatch is by the tables in this file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from coordinator.vsr import (
    abdication,
    acknowledge,
    backup_reads,
    bootstrap,
    catch_up,
    commit,
    epochs,
    log_adoption,
    message_rules,
    normal,
    pre_votes,
    reads,
    rejoin,
    repair,
    start_view,
    startup,
    view_change,
)
from coordinator.vsr.effects import Arm, Dropped, DropRule, Effect, RefusalReason, ReplicaStatus
from coordinator.vsr.errors import CallerError, demand
from coordinator.vsr.events import (
    Abdicate,
    ClientBatch,
    Discarded,
    Event,
    Fit,
    Found,
    PrepareApplied,
    ReadIndexAbandoned,
    ReadIndexRequested,
    Received,
    RecordFaulty,
    RecordsDurable,
    Start,
    SuperblockDurable,
    Suspect,
    Tick,
    Unfit,
)
from coordinator.vsr.invariants import Marks, check_step
from coordinator.vsr.membership import Membership, ReadMembership
from coordinator.vsr.messages import (
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
    Seal,
    StartViewChangeMessage,
    StartViewMessage,
)
from coordinator.vsr.state import Configuration, Jitter, ReadInitialMembers, ReplicaState, no_jitter
from coordinator.vsr.timeouts import TimeoutName

Handler: TypeAlias = Callable[[ReplicaState, Any], None]

Receiver: TypeAlias = tuple[message_rules.Rules, Handler]


def by_members(rules: message_rules.Rules, handler: Handler) -> dict[ReplicaStatus, Receiver]:
    """Return this receiver for every status of a member of a bootstrapped cluster."""
    return dict.fromkeys(commit.MEMBER_STATUSES, (rules, handler))


def answered_by_all(rules: message_rules.Rules, handler: Handler) -> dict[ReplicaStatus, Receiver]:
    """Return this receiver for members, and for a replica that was removed: it has entries that
    others may still lack."""
    return {**by_members(rules, handler), ReplicaStatus.REMOVED: (rules, handler)}


HEARD_PRIMARY: Receiver = (message_rules.HEARD_PRIMARY_RULES, start_view.on_primary_at_work)
COUNT_COPY: Receiver = (message_rules.PREPARE_OK_RULES, acknowledge.on_prepare_ok)

# A message without an entry for a status is dropped in that status, by the rule "status".
MESSAGE_HANDLERS: dict[type, dict[ReplicaStatus, Receiver]] = {
    PrepareMessage: {
        ReplicaStatus.BLANK: (
            message_rules.BOOTSTRAP_PREPARE_RULES,
            bootstrap.on_bootstrap_prepare,
        ),
        ReplicaStatus.RECOVERING: HEARD_PRIMARY,
        ReplicaStatus.VIEW_CHANGE: HEARD_PRIMARY,
        ReplicaStatus.NORMAL: (message_rules.NORMAL_PREPARE_RULES, normal.on_prepare),
    },
    PrepareOkMessage: {ReplicaStatus.VIEW_CHANGE: COUNT_COPY, ReplicaStatus.NORMAL: COUNT_COPY},
    CommitMessage: {
        ReplicaStatus.BLANK: (
            message_rules.BOOTSTRAPPED_CLUSTER_RULES,
            rejoin.on_bootstrapped_cluster,
        ),
        ReplicaStatus.RECOVERING: HEARD_PRIMARY,
        ReplicaStatus.VIEW_CHANGE: HEARD_PRIMARY,
        ReplicaStatus.NORMAL: (message_rules.FROM_PRIMARY_RULES, normal.on_commit),
    },
    CommitOkMessage: {ReplicaStatus.NORMAL: (message_rules.COMMIT_OK_RULES, reads.on_commit_ok)},
    ReadIndexRequestMessage: {
        ReplicaStatus.NORMAL: (
            message_rules.READ_INDEX_REQUEST_RULES,
            backup_reads.on_read_index_request,
        )
    },
    ReadIndexReplyMessage: {
        ReplicaStatus.NORMAL: (
            message_rules.READ_INDEX_REPLY_RULES,
            backup_reads.on_read_index_reply,
        )
    },
    BlankQueryMessage: {
        ReplicaStatus.BLANK: (message_rules.BLANK_QUERY_RULES, bootstrap.on_blank_query)
    },
    BlankAnswerMessage: {
        ReplicaStatus.BLANK: (message_rules.BLANK_ANSWER_RULES, bootstrap.on_blank_answer)
    },
    StartViewChangeMessage: {
        ReplicaStatus.BLANK: ((), bootstrap.on_cluster_without_primary),
        **by_members(message_rules.PRE_VOTE_RULES, pre_votes.on_start_view_change),
    },
    DoViewChangeMessage: by_members(message_rules.VOTE_RULES, view_change.on_do_view_change),
    StartViewMessage: by_members(message_rules.START_VIEW_RULES, start_view.on_start_view),
    RequestStartViewMessage: by_members(
        message_rules.REQUEST_START_VIEW_RULES, start_view.on_request_start_view
    ),
    RequestPrepareMessage: answered_by_all(
        message_rules.REQUEST_PREPARE_RULES, repair.on_request_prepare
    ),
    RepairMessage: {
        ReplicaStatus.BLANK: (
            message_rules.BOOTSTRAP_REPAIR_RULES,
            bootstrap.on_bootstrap_prepare,
        ),
        **by_members(message_rules.REPAIR_RULES, repair.on_repair),
    },
    RequestCommittedMessage: answered_by_all(
        message_rules.REQUEST_COMMITTED_RULES, catch_up.on_request_committed
    ),
    CommittedMessage: {
        ReplicaStatus.BLANK: (
            message_rules.BOOTSTRAP_REPAIR_RULES,
            bootstrap.on_bootstrap_prepare,
        ),
        **by_members(message_rules.COMMITTED_RULES, catch_up.on_committed),
    },
    EpochEndedMessage: by_members(epochs.EPOCH_ENDED_RULES, epochs.on_epoch_ended),
    CommittedGoneMessage: by_members(
        message_rules.COMMITTED_GONE_RULES, catch_up.on_committed_gone
    ),
    RequestAdmissionMessage: {
        ReplicaStatus.NORMAL: (message_rules.REQUEST_ADMISSION_RULES, rejoin.on_request_admission)
    },
    AdmissionMessage: {ReplicaStatus.NORMAL: (message_rules.ADMISSION_RULES, rejoin.on_admission)},
    AdmissionDurableMessage: {
        ReplicaStatus.NORMAL: (message_rules.ADMISSION_DURABLE_RULES, rejoin.on_admission_durable)
    },
}

TIMEOUT_HANDLERS: dict[TimeoutName, Callable[[ReplicaState], None]] = {
    TimeoutName.BOOTSTRAP_QUERY: bootstrap.ask_initial_members,
    TimeoutName.HEARTBEAT: normal.send_heartbeat,
    TimeoutName.PREPARE_RESEND: normal.resend_prepares,
    TimeoutName.SUSPICION: pre_votes.on_suspicion_timeout,
    TimeoutName.PRE_VOTE_RESEND: pre_votes.tell_pre_vote,
    TimeoutName.VOTE_RESEND: view_change.resend_vote,
    TimeoutName.VIEW_CHANGE: view_change.on_view_change_timeout,
    TimeoutName.START_VIEW_REQUEST: start_view.on_request_timeout,
    TimeoutName.REPAIR: repair.on_repair_timeout,
    TimeoutName.ADMISSION: rejoin.on_admission_timeout,
    TimeoutName.READ_INDEX: backup_reads.ask,
    TimeoutName.ABDICATION: abdication.on_abdication_timeout,
}


# Signs of life, from the two sides of a view.
OF_PRIMARY = (PrepareMessage, CommitMessage)
OF_BACKUPS = (PrepareOkMessage, CommitOkMessage)


def on_received(state: ReplicaState, event: Received) -> None:
    """Drop the message by a named rule, or hand it to the handler for this status."""
    message = event.message
    hit = message_rules.first_hit(message_rules.ANY_RULES, state, message)
    if hit is None:
        hit = message_rules.first_hit(message_rules.rules_of_view(state, message), state, message)
    receiver = MESSAGE_HANDLERS.get(type(message), {}).get(state.status)
    if hit is None:
        listen(state, message)
    elif hit is DropRule.NEWER_VIEW and state.status in commit.MEMBER_STATUSES:
        follow(state, message)
    elif hit is DropRule.OTHER_EPOCH:
        epochs.on_other_epoch(state, message)
    if hit is None and receiver is None:
        hit = DropRule.STATUS
    if hit is None and receiver is not None:
        rules, handler = receiver
        hit = message_rules.first_hit(rules, state, message)
        if hit is None:
            handler(state, message)
    if hit is not None:
        state.emit(Dropped(hit, message))


def listen(state: ReplicaState, message: Message) -> None:
    """Note that the other side of this view lives, whatever else the message says."""
    if isinstance(message, OF_BACKUPS):
        if state.is_primary:
            abdication.heard_backup(state, message.from_replica)
    elif (
        isinstance(message, OF_PRIMARY)
        and message.from_replica == state.primary
        and state.status in commit.MEMBER_STATUSES
    ):
        pre_votes.heard_primary(state)


def follow(state: ReplicaState, message: Message) -> None:
    """Ask for the log of a later view if a message of its primary shows that it is at work."""
    if isinstance(message, OF_PRIMARY):
        start_view.on_newer_view(state, message)


def on_tick(state: ReplicaState, event: Tick) -> None:
    """Run the handlers of all timeouts that are due; each arms its own anew."""
    for name in state.timeouts.fired(state.now_ticks):
        # An earlier handler may have moved the replica on, and stopped this timeout.
        if state.timeouts.is_armed(name):
            TIMEOUT_HANDLERS[name](state)


def on_records_durable(state: ReplicaState, event: RecordsDurable) -> None:
    """Report durable records to the bootstrap while blank, otherwise to the acknowledgements."""
    if state.status is ReplicaStatus.BLANK:
        bootstrap.on_records_durable(state, event)
    else:
        acknowledge.on_records_durable(state, event)


def on_found(state: ReplicaState, event: Found) -> None:
    """Accept the Founded body on a blank replica only."""
    demand(state.status is ReplicaStatus.BLANK, "Found goes to a blank replica", state.status)
    bootstrap.on_found(state, event)


def on_suspect(state: ReplicaState, event: Suspect) -> None:
    """Pre-vote for the next view if a member suspects its own primary."""
    demand(event.replica != state.replica, "nobody suspects itself", event.replica)
    if state.status in commit.MEMBER_STATUSES and event.replica == state.primary:
        pre_votes.lost_primary(state)


EVENT_HANDLERS: dict[type, Handler] = {
    Start: startup.on_start,
    Tick: on_tick,
    Received: on_received,
    ClientBatch: normal.on_client_batch,
    Found: on_found,
    RecordsDurable: on_records_durable,
    SuperblockDurable: view_change.on_superblock_durable,
    PrepareApplied: commit.on_prepare_applied,
    Discarded: acknowledge.on_discarded,
    RecordFaulty: repair.on_record_faulty,
    Abdicate: abdication.on_abdicate,
    Unfit: abdication.on_unfit,
    Fit: abdication.on_fit,
    Suspect: on_suspect,
    ReadIndexRequested: reads.on_read_index_requested,
    ReadIndexAbandoned: reads.on_read_index_abandoned,
}

# What follows from the state alone, whatever the event was. One pass in this order reaches a fixed
# point: pre-votes begin a view; votes choose its log, which is adopted; commits let entries be
# handed out; that ends a view change; and that lets reads be served.
SETTLE_RULES: tuple[Callable[[ReplicaState], None], ...] = (
    view_change.follow_pre_votes,
    view_change.vote,
    view_change.choose_log,
    log_adoption.advance,
    commit.advance,
    epochs.settle,
    commit.deliver,
    view_change.finish,
    repair.settle,
    reads.settle,
    rejoin.recognize_initial_member,
    rejoin.settle,
)

# The rules that can do something in a normal replica, where most steps happen.
NORMAL_SETTLE_RULES: tuple[Callable[[ReplicaState], None], ...] = (
    view_change.follow_pre_votes,
    commit.advance,
    epochs.settle,
    commit.deliver,
    repair.settle,
    reads.settle,
    rejoin.settle,
)


class Replica:
    """One replica of the cluster, as a deterministic function of the events it is given.

    `seal` makes prepares. `read_initial_members` reads the boot nonces from a Founded body; only a
    cluster of several replicas needs it. `jitter(limit)` returns a whole number from 0 to `limit`,
    which keeps replicas from acting at the same moment. `read_membership` reads the last entry of
    an epoch; a core without it ends no epoch. `state` is what it knows; drivers leave it alone,
    checkers read it, and rare cases are made in it. The package docstring lists the
    caller's duties.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        seal: Seal,
        read_initial_members: ReadInitialMembers | None = None,
        jitter: Jitter = no_jitter,
        read_membership: ReadMembership | None = None,
    ) -> None:
        if configuration.replica_count > 1 and read_initial_members is None:
            raise ValueError("read_initial_members is needed when replica_count is more than 1")
        self.state = ReplicaState(
            configuration, seal, read_initial_members, jitter, read_membership
        )
        self._started = False
        self._broken = False
        self._armed_ticks: int | None = None
        self._marks = Marks.of(self.state)

    def step(self, event: Event, now_ticks: int) -> list[Effect]:
        """Take one event at `now_ticks`, which never goes back; return the effects, in order.

        Raises CallerError, with nothing changed, when the driver broke a duty, and
        InvariantViolation when this replica can no longer be trusted: then end the process.
        """
        state = self.state
        self._demand_step(event, now_ticks)
        earlier_ticks = state.now_ticks
        state.now_ticks = now_ticks
        try:
            EVENT_HANDLERS[type(event)](state, event)
            self._started = True
            is_normal = state.status is ReplicaStatus.NORMAL
            for settle in NORMAL_SETTLE_RULES if is_normal else SETTLE_RULES:
                settle(state)
            self._marks = check_step(self._marks, state)
        except CallerError:
            state.now_ticks = earlier_ticks
            raise
        except BaseException:
            # Half a step was taken: this state can no longer be relied on.
            self._broken = True
            raise
        self._arm()
        effects, state.effects = state.effects, []
        return effects

    def _demand_step(self, event: Event, now_ticks: int) -> None:
        """Check what every step demands of the driver, before the event is handled."""
        demand(not self._broken, "a replica that failed in a step is not stepped again", event)
        demand(
            now_ticks >= self.state.now_ticks,
            f"time never goes back, now {self.state.now_ticks}",
            now_ticks,
        )
        demand(
            isinstance(event, Start) != self._started,
            "Start is the first event, and comes once",
            event,
        )

    def _arm(self) -> None:
        """Emit when the next tick is needed, if that changed."""
        earliest = self.state.timeouts.earliest_ticks()
        if earliest != self._armed_ticks:
            self._armed_ticks = earliest
            self.state.emit(Arm(earliest))

    def batch_refusal(self) -> RefusalReason | None:
        """Why a ClientBatch would be refused now; None if it would be admitted."""
        return normal.refusal_of_batch(self.state)

    def holds(self, op: int, checksum: bytes) -> bool:
        """Return whether the tail has exactly this entry, and its record is not known as
        damaged."""
        log = self.state.log
        entry = log.get(op)
        return entry is not None and entry.header.checksum == checksum and op not in log.faulty

    @property
    def unapplied_count(self) -> int:
        """How many entries of the log are not yet applied."""
        return self.state.log.op - self.state.applied_op

    @property
    def status(self) -> ReplicaStatus:
        """The status after the last step."""
        return self.state.status

    @property
    def view(self) -> int:
        """The view the replica is in or moving to."""
        return self.state.view

    @property
    def is_voter(self) -> bool:
        """Whether this replica counts in its view; one that lost its disk at first does not."""
        return self.state.is_voter

    @property
    def is_standby(self) -> bool:
        """Whether this replica follows for ever, and never counts."""
        return self.state.is_standby

    @property
    def primary(self) -> int:
        """The id of the primary of `view`."""
        return self.state.primary

    @property
    def membership(self) -> Membership:
        """Who belongs to the cluster in the epoch of `view`."""
        return self.state.membership

    @property
    def log_time_us(self) -> int:
        """The time of the last entry, in microseconds since 1970; 0 for the empty log."""
        return self.state.log.timestamp_us

    @property
    def recordable_commit(self) -> int:
        """How far this disk has all committed entries, none of them damaged: the highest commit
        that a stopping driver may write to the superblock."""
        return self.state.recordable_commit

    @property
    def recordable_head(self) -> tuple[int, bytes | None]:
        """The op of `recordable_commit`, and the checksum of its entry; None if it is unknown."""
        op = self.state.recordable_commit
        return op, self.state.log.checksum_of(op)

    @property
    def marks(self) -> Marks:
        """The numbers that tell how far the replica is: views, op, commit and applied op."""
        return Marks.of(self.state)

    def __repr__(self) -> str:
        marks = self.marks
        role = "standby" if self.state.is_standby else "replica"
        return (
            f"<{role} {self.state.replica} of {self.state.replica_count}"
            f" {self.status.value} view={marks.view} log_view={marks.log_view}"
            f" op={marks.op} durable={marks.durable_op} commit={marks.commit_max}"
            f" executed={marks.commit_min} applied={marks.applied_op}>"
        )
