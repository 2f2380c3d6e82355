"""The values of the catalog: snapshots, the commands about them, and reports to the shell.

They mirror `snapshots.v1`; nothing is encoded. `types` passes them on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeAlias

from coordinator.mux.stage import Stage
from viewstamp.machine.freezing import Change, Entity


class SnapshotState(IntEnum):
    """The state of a snapshot; numbered like `snapshots.v1.SnapshotState`."""

    CREATED = 1
    COMPLETED = 2
    FAILED = 3


class RetentionClass(IntEnum):
    """How long a snapshot is kept; numbered like `snapshots.v1.RetentionClass`."""

    LAST = 1
    DAILY = 2
    PINNED = 3


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """One section of a snapshot, as its writer reported it; `state_digest` has 32 bytes."""

    stage: Stage
    applied_revision: int
    state_digest: bytes
    entities: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One generation. Before its cut, op, revision and times are 0; times are log time in us."""

    generation: int
    state: SnapshotState
    cut_op: int = 0
    cut_revision: int = 0
    root: bytes = b""
    tasks: tuple[TaskSnapshot, ...] = ()
    created_at: int = 0
    retention: RetentionClass = RetentionClass.LAST
    failure: str = ""
    decided_at: int = 0
    keep_last: int = 0
    keep_daily: int = 0
    kept_until: int = 0
    # Of the last command that changed it; 0 below FEATURE_LEVEL_GUARDS.
    modified_revision: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether the stages were frozen for it."""
        return self.cut_op > 0


@dataclass(frozen=True, slots=True)
class CatalogCounters:
    """The counters of the catalog: generation numbers are never reused."""

    last_generation: int


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """The level that the last raise decided; without a raise, the level of bootstrap holds."""

    level: int


@dataclass(frozen=True, slots=True)
class Description:
    """The purpose of the cluster, never empty, and the revision that set it."""

    text: str
    modified_revision: int


@dataclass(frozen=True, slots=True)
class EpochMember:
    """A replica of an epoch: where it listens for the others, and the disk that got its vote.

    `disk_id` is empty for standbys, and for replicas that had their votes from the beginning.
    """

    replica_id: int
    peer_address: str
    disk_id: bytes = b""


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    """Who belongs to the cluster since entry `began_op`; `voters` are in the order in which they
    lead."""

    began_op: int
    first_view: int
    voters: tuple[EpochMember, ...]
    standbys: tuple[EpochMember, ...]
    next_replica_id: int


# No purpose was set. Never stored.
NO_DESCRIPTION = Description("", 0)

# What readers see before the first snapshot: the empty state, complete. Never stored.
GENERATION_ZERO = Snapshot(0, SnapshotState.COMPLETED)


# --- Commands ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateSnapshot:
    """Reserve the next generation; only check, if validating."""

    retention: RetentionClass = RetentionClass.LAST
    keep_for_ms: int = 0
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteSnapshot:
    """Forget a generation; only check, if validating."""

    generation: int
    expected_revision: int | None = None
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class PruneSnapshots:
    """Forget every generation that this retention does not keep; only name them if validating."""

    keep_last: int
    keep_daily: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class SetRetention:
    """Change how long a generation is kept; only check, if validating."""

    generation: int
    retention: RetentionClass
    keep_for_ms: int = 0
    expected_revision: int | None = None
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class BeginSnapshot:
    """Cut the next generation, or the reserved one (internal)."""

    generation: int
    keep_last: int
    keep_daily: int


@dataclass(frozen=True, slots=True)
class CompleteSnapshot:
    """Enough replicas hold the generation with this root (internal)."""

    generation: int
    root: bytes
    tasks: tuple[TaskSnapshot, ...]


@dataclass(frozen=True, slots=True)
class FailSnapshot:
    """Give a generation up (internal)."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class RaiseFeatureLevel:
    """Raise the feature level of later entries; only check, if validating."""

    level: int
    expected: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class SetDescription:
    """Set the purpose of the cluster, "" for none; only check, if validating."""

    text: str
    expected_revision: int | None = None
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """End the epoch; those named belong to the next one (internal)."""

    first_view: int
    voters: tuple[EpochMember, ...]
    standbys: tuple[EpochMember, ...]
    next_replica_id: int


# Commands about a generation that people send.
Requested: TypeAlias = CreateSnapshot | DeleteSnapshot | SetRetention
CatalogCommand: TypeAlias = (
    CreateSnapshot
    | DeleteSnapshot
    | PruneSnapshots
    | SetRetention
    | BeginSnapshot
    | CompleteSnapshot
    | FailSnapshot
    | RaiseFeatureLevel
    | SetDescription
    | BeginEpoch
)


# --- Results -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateSnapshotResult:
    """A generation was reserved."""

    generation: int


@dataclass(frozen=True, slots=True)
class PruneSnapshotsResult:
    """These generations were deleted, or would be; ascending."""

    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RaiseFeatureLevelResult:
    """The level in force after the command."""

    level: int


@dataclass(frozen=True, slots=True)
class CatalogDone:
    """The result of every other command, even if it did nothing."""


CatalogResult: TypeAlias = (
    CreateSnapshotResult | PruneSnapshotsResult | RaiseFeatureLevelResult | CatalogDone
)


# --- To the shell --------------------------------------------------------------------------------


class FrozenSection(Protocol):
    """The changes of a section between its base and a cut. It is immutable."""

    @property
    def generation(self) -> int:
        """The generation of the cut."""
        ...

    @property
    def base_generation(self) -> int:
        """The generation from which the changes count; 0 is the empty state."""
        ...

    def walk(self) -> Iterator[Change | None]:
        """Yield the changes by ascending (kind, key), encoded on the way, from any thread.

        Yields None now and then, where the next change takes a while.
        """
        ...


@dataclass(frozen=True, slots=True)
class CutTaken:
    """All stages are frozen at this prepare, which is applied now. Times are log time in us."""

    generation: int
    op: int
    view: int
    revision: int
    timestamp: int
    feature_level: int
    sessions: FrozenSection
    catalog: FrozenSection


@dataclass(frozen=True, slots=True)
class CatalogChanged:
    """The changes by the prepare that is applied next, each by ascending generation."""

    snapshots: tuple[Snapshot, ...]
    deleted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a mux continues: the sections of a generation, and the place of its cut.

    The entities are ascending by (kind, key). `generation` is the base of the next cut, except for
    sections that were `rewritten` since they were stored: all their entities count as changed.
    """

    op: int
    revision: int
    feature_level: int
    generation: int
    sessions: Iterable[Entity]
    catalog: Iterable[Entity]
    rewritten: frozenset[Stage] = frozenset()
