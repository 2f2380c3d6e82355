"""Everything one replica knows. Handlers change it; the settle rules and invariants read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from coordinator.vsr.effects import (
    NOT_ADMITTED,
    CoreState,
    DiscardAfter,
    Effect,
    PersistPrepares,
    PersistSuperblock,
    ReplicaStatus,
    Send,
    StatusChanged,
)
from coordinator.vsr.errors import check
from coordinator.vsr.log import LogEntry, LogTail
from coordinator.vsr.membership import FOUNDING_EPOCH, Membership, ReadMembership, founding
from coordinator.vsr.messages import (
    DoViewChangeMessage,
    Message,
    Prepare,
    PrepareHeader,
    ReadIndexRequestMessage,
    Seal,
)
from coordinator.vsr.quorum import QUORUMS, Quorums
from coordinator.vsr.timeouts import Timeouts
from viewstamp.limits import CLUSTER_ID_BYTES, STANDBYS_MAX

BOOTSTRAP_VIEW = 0
"""The view in which op 1 is sequenced; its primary is replica 0."""

ACTING = (ReplicaStatus.BLANK, ReplicaStatus.VIEW_CHANGE, ReplicaStatus.NORMAL)
"""Statuses in which a replica acts on an installed log; in others it waits, or has stopped."""

ReadInitialMembers: TypeAlias = Callable[[bytes], Sequence[bytes]]
"""Reads the boot nonces, in replica order, out of the body of a Founded entry."""


Jitter: TypeAlias = Callable[[int], int]
"""Returns a whole number from 0 to its argument."""


def no_jitter(limit: int) -> int:
    """Return 0: a lone replica has nobody to collide with."""
    return 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is fixed for the life of the process. `feature_level` is that of a new cluster.

    In the epoch that began with the cluster `replica_count` replicas vote, and those with the next
    `standby_count` ids follow. A replica that was added later is given the `membership` that it was
    told of, and one that restarts from the snapshot of another that of the snapshot.
    """

    cluster_id: bytes
    replica: int
    replica_count: int
    feature_level: int
    standby_count: int = 0
    membership: Membership | None = None

    @property
    def first_membership(self) -> Membership:
        """Who belongs to the cluster, as far as this process knows before it reads its disk."""
        return self.membership or founding(self.replica_count, self.standby_count)

    def __post_init__(self) -> None:
        if len(self.cluster_id) != CLUSTER_ID_BYTES:
            raise ValueError(
                f"cluster_id must be {CLUSTER_ID_BYTES} bytes, not {len(self.cluster_id)}"
            )
        if self.replica_count not in QUORUMS:
            raise ValueError(f"replica_count must be one of {list(QUORUMS)}: {self.replica_count}")
        standbys_max = STANDBYS_MAX if self.replica_count > 1 else 0
        if not 0 <= self.standby_count <= standbys_max:
            raise ValueError(
                f"standby_count beside {self.replica_count} replicas must be 0 to {standbys_max}: "
                f"{self.standby_count}"
            )
        if self.membership is None and self.replica not in self.first_membership.members:
            last = self.replica_count + self.standby_count - 1
            raise ValueError(f"replica must be 0 to {last}, an index: {self.replica}")


@dataclass(slots=True)
class ReadRounds:
    """Reads that want an index, by token in order of arrival. One round runs at a time; reads that
    come later share the next.

    A backup's round is a question to its primary, repeated until it is answered.
    """

    number: int = 0
    index_op: int = 0
    running: dict[int, None] = field(default_factory=dict)
    waiting: dict[int, None] = field(default_factory=dict)
    confirmed_by: set[int] = field(default_factory=set)
    backups_waiting: dict[int, ReadIndexRequestMessage] = field(default_factory=dict)
    """The last question of each backup that wants an index for its own reads."""
    backups_running: dict[int, ReadIndexRequestMessage] = field(default_factory=dict)
    newcomers_waiting: dict[int, bytes] = field(default_factory=dict)
    """Replicas that want to be admitted, with their nonces; a round confirms this view to them."""
    newcomers_running: dict[int, bytes] = field(default_factory=dict)
    newcomers_confirmed: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreVote:
    """A replica's pre-vote to be in `target_view` or a later one, as heard at a tick."""

    target_view: int
    heard_ticks: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A replica's vote for this view, as heard at a tick."""

    message: DoViewChangeMessage
    heard_ticks: int


@dataclass(frozen=True, slots=True)
class LogAdoption:
    """The log that a view begins with, while this replica takes it over.

    `headers` are its entries after `commit`, preceded by the committed ones that are known, in op
    order; `head_op` is the last. `source` knows what is committed; `holders` are asked in turn for
    entries whose header is known.
    """

    source: int
    holders: tuple[int, ...]
    commit: int
    headers: tuple[PrepareHeader, ...]
    head_op: int


@dataclass(slots=True)
class ReplicaState:
    """The state of one replica between two steps.

    `view` is the view the replica is in or moving to; `log_view` the last view whose log it
    adopted. `durable` is the superblock on disk and `writing` the one on its way there.
    `commit_max` is the highest op known to be committed and held, `commit_min` the highest handed
    out for execution, `commit_heard` the highest that peers say is committed.
    """

    configuration: Configuration
    seal: Seal
    read_initial_members: ReadInitialMembers | None
    jitter: Jitter = no_jitter
    read_membership: ReadMembership | None = None
    status: ReplicaStatus = ReplicaStatus.RECOVERING
    view: int = BOOTSTRAP_VIEW
    log_view: int = BOOTSTRAP_VIEW
    log: LogTail = field(default_factory=LogTail)
    commit_max: int = 0
    commit_min: int = 0
    applied_op: int = 0
    inherited_op: int = 0
    """Primary: the head of the inherited log, applied before anything is admitted. Backup: 0."""
    recorded_view: int = -1
    """The last view whose log this process adopted as a whole; the disk may not record it yet."""
    began_op: int = 0
    """The head of the log with which this view began here."""
    vouched_op: int = 0
    """The commit point with which this view's log began: entries above it are vouched for."""
    durable: CoreState | None = None
    writing: CoreState | None = None
    voting_view: int = 0
    commit_heard: int = 0
    commit_source: int = 0
    """The replica that said `commit_heard`, and so holds the entries lacking here."""
    peers_asked: int = 0
    """Counts questions without answer, so that the next goes to another peer."""
    asked_ops: frozenset[int] = frozenset()
    """The ops of the entries asked for."""
    asked_view: int = 0
    """The view whose primary was last asked for its log."""
    pre_votes: dict[int, PreVote] = field(default_factory=dict)
    votes: dict[int, Vote] = field(default_factory=dict)
    installation: LogAdoption | None = None
    stuck_op: int = 0
    """The op of the last `Stuck` alarm."""
    view_changes_failed: int = 0
    """Views that ended before they were normal here, since the last normal one."""
    follows_primary: bool = False
    """Whether the primary of `view` was heard from in time; for itself, whether it is installed."""
    primary_heard_ticks: int = 0
    heard_backups: set[int] = field(default_factory=set)
    quorum_heard_ticks: int = 0
    is_abdicating: bool = False
    is_unfit: bool = False
    """Whether this replica should not lead while others can."""
    is_epoch_over: bool = False
    """Whether the present epoch has ended, and its last entry is still to be fetched."""
    disk_id: bytes = b""
    """The random id of this replica's data directory."""
    redeliver: set[int] = field(default_factory=set)
    """Ops handed out without a body whose records turned out to be damaged here."""
    boot_nonce: bytes = b""
    initial_members: dict[int, bytes] = field(default_factory=dict)
    reads: ReadRounds = field(default_factory=ReadRounds)
    timeouts: Timeouts = field(default_factory=Timeouts)
    now_ticks: int = 0
    effects: list[Effect] = field(default_factory=list)

    replica: int = field(init=False)
    """This replica's id."""
    membership: Membership = field(init=False)
    """Who belongs to the cluster in the epoch of `view`."""
    former: tuple[int, ...] = ()
    """The members of the epoch before that were removed. Until they are stopped, they answer."""

    # Derived from the membership, because every step reads them many times.
    replica_count: int = field(init=False)
    """How many replicas have a vote. This one is among them unless it is a standby."""
    is_standby: bool = field(init=False)
    """Whether this replica only follows, and does not count."""
    is_alone: bool = field(init=False)
    """Whether this replica is the one that has a vote: its disk is the quorum."""
    others: tuple[int, ...] = field(init=False)
    """The ids of the other replicas that have a vote, in the order in which they lead."""
    followers: tuple[int, ...] = field(init=False)
    """The replicas that a primary keeps up to date: the voters, then the standbys."""
    quorums: Quorums = field(init=False)
    """The quorum sizes of this epoch."""

    def __post_init__(self) -> None:
        self.replica = self.configuration.replica
        self.membership = self.configuration.first_membership
        self.take_membership(self.membership)
        self.view = self.membership.first_view

    def take_membership(self, membership: Membership) -> None:
        """Go by the membership of another epoch; the caller moves to a view of it."""
        earlier, self.membership = self.membership, membership
        self.former = tuple(each for each in earlier.members if each not in membership.members)
        self.replica_count = len(membership.voters)
        self.is_standby = self.replica not in membership.voters
        self.followers = tuple(each for each in membership.members if each != self.replica)
        self.others = tuple(each for each in membership.voters if each != self.replica)
        self.is_alone = membership.voters == (self.replica,)
        self.quorums = membership.quorums
        self.is_epoch_over = False

    @property
    def primary(self) -> int:
        """The id of the primary of `view`; the role goes round with the view number."""
        return self.membership.primary_of(self.view)

    @property
    def is_primary(self) -> bool:
        """Whether this replica is the primary of `view`, in whatever status."""
        return self.replica == self.primary

    @property
    def is_installed(self) -> bool:
        """Whether the disk records that this replica adopted the log of `view`.

        Before that it may neither acknowledge nor commit in the view: after a crash it would not
        remember having been there.
        """
        return (
            self.durable is not None
            and self.durable.view == self.view
            and self.durable.log_view == self.view
        )

    @property
    def recordable_commit(self) -> int:
        """The highest commit that the superblock may record for the log on this disk.

        A committed entry may be on its way to the disk, where a crash leaves another entry; and a
        damaged record may have been another entry.
        """
        undamaged = (op - 1 for op in self.log.faulty)
        return min(self.commit_max, self.log.durable_op, *undamaged)

    @property
    def is_epoch_ending(self) -> bool:
        """Whether the log has the last entry of this epoch, behind which nothing is admitted."""
        return self.log.change_op > self.membership.began_op

    @property
    def may_journal(self) -> bool:
        """Whether this replica has a vote, or its disk records that it has none."""
        return self.voting_view != NOT_ADMITTED or self.durable is not None

    @property
    def is_voter(self) -> bool:
        """Whether this replica may vote and vouch in `view`: it has forgotten nothing it said."""
        return self.is_voter_in(self.view)

    def is_voter_in(self, view: int) -> bool:
        """Return whether this replica may vote and vouch in `view`."""
        return not self.is_standby and view >= self.voting_view

    @property
    def acts_in_view(self) -> bool:
        """Whether this replica may commit entries in `view`."""
        return self.is_installed and self.status in ACTING

    def emit(self, effect: Effect) -> None:
        """Add an effect to those of this step."""
        self.effects.append(effect)

    def change_status(self, status: ReplicaStatus) -> None:
        """Enter `status` and report it."""
        self.status = status
        self.emit(StatusChanged(status, self.view, self.primary))

    def send(self, to_replica: int, message: Message) -> None:
        """Send to one other replica."""
        self.emit(Send(to_replica, message))

    def broadcast(self, message: Message) -> None:
        """Send to all other replicas that have a vote."""
        for replica in self.others:
            self.emit(Send(replica, message))

    def hear_commit(self, commit: int, source: int) -> None:
        """Note that `source` says `commit` is committed; lacking entries are fetched."""
        if commit > self.commit_heard:
            self.commit_heard, self.commit_source = commit, source

    def write(self, prepare: Prepare, *, fills: bool = False) -> LogEntry:
        """Have `prepare` written, as the head of the log or in place of a damaged record."""
        entry = LogEntry(prepare.header, prepare, self.log_view)
        take = self.log.fill if fills else self.log.append
        take(entry)
        self.emit(PersistPrepares((prepare,)))
        return entry

    def discard_after(self, op: int) -> None:
        """Remove entries above `op` that a chosen log does not have; never a committed one."""
        check(op >= self.commit_max, "what is discarded is above the commit point", op)
        self.log.discard_after(op)
        self.emit(DiscardAfter(op))

    def persist_superblock(self) -> None:
        """Have the present views and commit written, after the write under way, if any."""
        if self.writing is None:
            self._write_superblock()

    def superblock_written(self) -> None:
        """Note that the write under way is durable; write again what has changed since."""
        written, self.writing = self.writing, None
        self.durable = written
        if written is not None and self._marks_of_views() != (
            written.view,
            written.log_view,
            written.voting_view,
        ):
            self._write_superblock()

    def _marks_of_views(self) -> tuple[int, int, int]:
        return self.view, self.log_view, self.voting_view

    def _write_superblock(self) -> None:
        commit = self.recordable_commit
        if self.durable is not None:
            commit = max(commit, self.durable.commit_max)
        is_founding = self.membership.epoch == FOUNDING_EPOCH
        membership = None if is_founding else self.membership
        state = CoreState(self.view, self.log_view, commit, self.voting_view, membership)
        check(
            self.durable is None or state.follows(self.durable),
            "no field of the superblock goes back",
            (self.durable, state),
        )
        self.writing = state
        self.emit(PersistSuperblock(state))
