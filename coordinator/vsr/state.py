"""Everything one replica knows. Handlers change it; the settle rules and invariants read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from coordinator.vsr.effects import (
    Effect,
    PersistSuperblock,
    Status,
    StatusChanged,
    SuperblockState,
)
from coordinator.vsr.errors import check
from coordinator.vsr.log import LogTail
from coordinator.vsr.messages import Seal
from coordinator.vsr.quorum import QUORUMS, Quorums
from coordinator.vsr.timeouts import Timeouts
from viewstamp.limits import CLUSTER_ID_BYTES

FOUNDING_VIEW = 0
"""The view in which op 1 is sequenced; its primary is replica 0."""

ACTING = (Status.BLANK, Status.VIEW_CHANGE, Status.NORMAL)
"""Statuses in which an installed log is acted on; the others wait, or have stopped."""

ReadFounders: TypeAlias = Callable[[bytes], Sequence[bytes]]
"""Reads the boot nonces, in replica order, out of the body of a Founded entry."""


Jitter: TypeAlias = Callable[[int], int]
"""Returns a whole number from 0 to its argument."""


def no_jitter(limit: int) -> int:
    """The jitter of a replica that has nobody to collide with."""
    return 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is fixed for the life of the process. `feature_level` is that of a new cluster."""

    cluster_id: bytes
    replica: int
    replica_count: int
    feature_level: int

    def __post_init__(self) -> None:
        if len(self.cluster_id) != CLUSTER_ID_BYTES:
            raise ValueError(
                f"cluster_id must be {CLUSTER_ID_BYTES} bytes, not {len(self.cluster_id)}"
            )
        if self.replica_count not in QUORUMS:
            raise ValueError(f"replica_count must be one of {list(QUORUMS)}: {self.replica_count}")
        if not 0 <= self.replica < self.replica_count:
            raise ValueError(
                f"replica must be 0 to {self.replica_count - 1}, an index: {self.replica}"
            )


@dataclass(slots=True)
class ReadRounds:
    """Reads that want an index. One round runs at a time; those who come later share the next."""

    number: int = 0
    index_op: int = 0
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    confirmed_by: set[int] = field(default_factory=set)


@dataclass(slots=True)
class State:
    """The state of one replica between two steps.

    `view` is the view the replica is in or moving to; `log_view` the last view whose log it took
    over. `durable` is the superblock on disk and `writing` the one on its way there. `commit_max`
    is the highest op known to be committed, `commit_min` the highest handed out for execution.
    """

    configuration: Configuration
    seal: Seal
    read_founders: ReadFounders | None
    jitter: Jitter = no_jitter
    status: Status = Status.RECOVERING
    view: int = FOUNDING_VIEW
    log_view: int = FOUNDING_VIEW
    log: LogTail = field(default_factory=LogTail)
    commit_max: int = 0
    commit_min: int = 0
    retired_op: int = 0
    inherited_op: int = 0
    """The head of the log that this view began with; committed before anything is admitted."""
    durable: SuperblockState | None = None
    writing: SuperblockState | None = None
    view_change_votes: set[int] = field(default_factory=set)
    boot_nonce: bytes = b""
    founders: dict[int, bytes] = field(default_factory=dict)
    reads: ReadRounds = field(default_factory=ReadRounds)
    timeouts: Timeouts = field(default_factory=Timeouts)
    now_ticks: int = 0
    effects: list[Effect] = field(default_factory=list)

    @property
    def replica(self) -> int:
        """This replica's index."""
        return self.configuration.replica

    @property
    def replica_count(self) -> int:
        """How many replicas the cluster has, this one included."""
        return self.configuration.replica_count

    @property
    def others(self) -> tuple[int, ...]:
        """The indexes of the other replicas, in order."""
        return tuple(index for index in range(self.replica_count) if index != self.replica)

    @property
    def quorums(self) -> Quorums:
        """The quorum sizes of this cluster."""
        return QUORUMS[self.replica_count]

    @property
    def primary(self) -> int:
        """The index of the primary of `view`; the role goes round with the view number."""
        return self.view % self.replica_count

    @property
    def is_primary(self) -> bool:
        """Whether this replica is the primary of `view`, in whatever status."""
        return self.replica == self.primary

    @property
    def is_installed(self) -> bool:
        """Whether the disk says that this replica took over the log of `view`.

        Before that it may neither acknowledge nor commit in the view: after a crash it would not
        remember having been there.
        """
        return (
            self.durable is not None
            and self.durable.view == self.view
            and self.durable.log_view == self.view
        )

    @property
    def acts_in_view(self) -> bool:
        """Whether commits of `view` may be found and handed out here."""
        return self.is_installed and self.status in ACTING

    def emit(self, effect: Effect) -> None:
        """Add to the effects of this step."""
        self.effects.append(effect)

    def change_status(self, status: Status) -> None:
        """Enter `status` and say so."""
        self.status = status
        self.emit(StatusChanged(status, self.view, self.primary))

    def persist_superblock(self) -> None:
        """Have the present view, log view and commit written."""
        check(self.writing is None, "one superblock write is in flight at a time", self.writing)
        self.writing = SuperblockState(self.view, self.log_view, self.commit_max)
        check(
            self.durable is None or self.writing.follows(self.durable),
            "no field of the superblock goes back",
            (self.durable, self.writing),
        )
        self.emit(PersistSuperblock(self.writing))
