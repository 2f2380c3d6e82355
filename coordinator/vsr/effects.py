"""What the core wants done. The driver carries out effects in the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from coordinator.vsr.membership import Membership
from coordinator.vsr.messages import Message, Prepare

NOT_ADMITTED = 2**64 - 1
"""The voting view of a replica that lost its disk and has not been admitted again."""


class ReplicaStatus(Enum):
    """Where a replica stands. Only `NORMAL` admits batches and grants read indexes."""

    BLANK = "blank"
    RECOVERING = "recovering"
    VIEW_CHANGE = "view_change"
    NORMAL = "normal"
    HALTED = "halted"
    REMOVED = "removed"


class RefusalReason(Enum):
    """Why a batch or a read was not taken. A refusal changed nothing: the caller may try again."""

    BLANK = "blank"
    VIEW_CHANGE = "view_change"
    HALTED = "halted"
    NOT_PRIMARY = "not_primary"
    PIPELINE_FULL = "pipeline_full"
    TOO_MANY_UNAPPLIED = "too_many_unapplied"
    JOURNAL_BACKLOG = "journal_backlog"
    TOO_MANY_READS = "too_many_reads"
    INITIAL_MEMBERS_CHANGED = "initial_members_changed"
    ABDICATING = "abdicating"
    EPOCH_ENDING = "epoch_ending"
    OTHER_EPOCH = "other_epoch"


class DropRule(Enum):
    """Why a message had no effect. The value is the rule's name in transcripts and metrics."""

    OTHER_CLUSTER = "other_cluster"
    UNKNOWN_SENDER = "unknown_sender"
    STATUS = "status"
    NEWER_VIEW = "newer_view"
    OLDER_VIEW = "older_view"
    NOT_FROM_PRIMARY = "not_from_primary"
    NOT_FOR_BACKUP = "not_for_backup"
    PREPARE_OF_OTHER_VIEW = "prepare_of_other_view"
    PREPARE_OUT_OF_WINDOW = "prepare_out_of_window"
    PREPARE_GAP = "prepare_gap"
    BROKEN_CHAIN = "broken_chain"
    JOURNAL_BACKLOG = "journal_backlog"
    PREPARE_UNKNOWN = "prepare_unknown"
    OLD_READ_ROUND = "old_read_round"
    STALE_NONCE = "stale_nonce"
    ALREADY_BOOTSTRAPPED = "already_bootstrapped"
    NOT_THE_BOOTSTRAP_PREPARE = "not_the_bootstrap_prepare"
    NOT_AN_INITIAL_MEMBER = "not_an_initial_member"
    STALE_PRE_VOTE = "stale_pre_vote"
    ALREADY_INSTALLED = "already_installed"
    NOT_INSTALLED = "not_installed"
    STALE_START_VIEW = "stale_start_view"
    UNASKED_START_VIEW = "unasked_start_view"
    RESTARTED_PRIMARY = "restarted_primary"
    ABDICATING = "abdicating"
    NOT_HELD = "not_held"
    NOT_LACKING = "not_lacking"
    HEAD_DAMAGED = "head_damaged"
    NOT_BOOTSTRAPPED = "not_bootstrapped"
    NOT_A_NEWCOMER = "not_a_newcomer"
    LAGS_BEHIND = "lags_behind"
    STANDBY = "standby"
    LOG_REPLACED = "log_replaced"
    MALFORMED_LOG = "malformed_log"
    OTHER_EPOCH = "other_epoch"


@dataclass(frozen=True, slots=True)
class CoreState:
    """The core's part of the superblock. View, log view and commit only ever grow.

    A replica votes and vouches for entries from `voting_view` on: 0 for an initial member. One that
    lost its disk begins with `NOT_ADMITTED`, and is given its view once. `membership` is that of
    the epoch of `view`; None in the epoch that began with the cluster.
    """

    view: int
    log_view: int
    commit_max: int
    voting_view: int = 0
    membership: Membership | None = None

    def follows(self, earlier: CoreState) -> bool:
        """Whether this may be written after `earlier`."""
        return (
            self.view >= earlier.view
            and self.log_view >= earlier.log_view
            and self.commit_max >= earlier.commit_max
            and earlier.voting_view in (self.voting_view, NOT_ADMITTED)
        )


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to one other replica; it may be lost, delayed, repeated or reordered."""

    to_replica: int
    message: Message


@dataclass(frozen=True, slots=True)
class PersistPrepares:
    """Append these to the journal, in order, and sync; answer with `RecordsDurable`."""

    prepares: tuple[Prepare, ...]


@dataclass(frozen=True, slots=True)
class PersistSuperblock:
    """Write `state` durably; answer with `SuperblockDurable(state)`. One is in flight at a time."""

    state: CoreState


@dataclass(frozen=True, slots=True)
class DiscardAfter:
    """Remove every entry above `op` from the journal, durably; answer with `Discarded(op)`.

    It takes its turn among the `PersistPrepares`: entries above `op` that were to be written before
    it are removed too, and entries that come after it are written.
    """

    op: int


@dataclass(frozen=True, slots=True)
class SendCommitted:
    """Send these committed entries, as the journal holds them, each as a `CommittedMessage`.

    Damaged entries are left out, and reported by `RecordFaulty`. If the first was truncated, one
    `CommittedGoneMessage` goes instead.
    """

    to_replica: int
    first_op: int
    last_op: int


@dataclass(frozen=True, slots=True)
class SendHeld:
    """Send entry `op` as a `RepairMessage` if the journal holds it intact with this checksum.

    If its record is damaged, report `RecordFaulty(op)`.
    """

    to_replica: int
    op: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class SnapshotNeeded:
    """Peers no longer have the entries this replica lacks: restart from that peer's snapshot.

    It is repeated as long as that is so, and means nothing while the snapshot is on its way.
    """

    from_replica: int
    generation: int
    cut_op: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """All replicas were heard and none can settle what entry `op` is: raise an alarm for people."""

    op: int
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Entry `op` is committed: execute it. Ops come in order, each exactly once per start.

    `prepare` is None when the core no longer holds the body; the driver then reads entry `op` of
    its own journal. If the record is damaged the driver gives `RecordFaulty(op)`, and the entry
    comes again with its body. An entry that the driver had read before it found the damage may come
    again too; the driver may ignore it.
    """

    op: int
    prepare: Prepare | None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The batch, or the bootstrap entry, of this same step is entry `op` of the log."""

    op: int
    checksum: bytes
    first_revision: int
    command_count: int
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The batch of this same step was not taken; `primary` is the replica to ask, if known."""

    reason: RefusalReason
    primary: int | None


@dataclass(frozen=True, slots=True)
class ReadIndexGranted:
    """A read answered after entry `op` is applied is linearizable."""

    token: int
    op: int


@dataclass(frozen=True, slots=True)
class ReadIndexRefused:
    """No read index for `token` from this replica now; `primary` is the one to ask, if known."""

    token: int
    reason: RefusalReason
    primary: int | None


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The replica is now in `status` of `view`, whose primary has index `primary`."""

    status: ReplicaStatus
    view: int
    primary: int


@dataclass(frozen=True, slots=True)
class Halted:
    """This replica can never continue by itself; `reason` says what the operator can do."""

    reason: str


@dataclass(frozen=True, slots=True)
class BootstrapReady:
    """All replicas are blank: answer with `Found`, whose body holds `nonces` in replica order."""

    nonces: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """`message` had no effect, by `rule`. The driver only counts it."""

    rule: DropRule
    message: Message


@dataclass(frozen=True, slots=True)
class Arm:
    """Deliver a `Tick` once `now_ticks >= at_ticks`; None cancels. Replaces the previous `Arm`."""

    at_ticks: int | None


Effect: TypeAlias = (
    Send
    | PersistPrepares
    | PersistSuperblock
    | DiscardAfter
    | SendCommitted
    | SendHeld
    | SnapshotNeeded
    | Stuck
    | Commit
    | Admitted
    | Refused
    | ReadIndexGranted
    | ReadIndexRefused
    | StatusChanged
    | Halted
    | BootstrapReady
    | Dropped
    | Arm
)
