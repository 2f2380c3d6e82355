"""The catalog machine: the snapshots that exist, and the outcome of commands about them.

Only its section and the log feed it. `catalog_decisions` says which command takes effect when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from coordinator.mux.catalog_decisions import (
    DECISIONS,
    CatalogVerdict,
    Decided,
    GenerationStanding,
    at_level,
    malformed,
)
from coordinator.mux.catalog_types import (
    GENERATION_ZERO,
    NO_DESCRIPTION,
    BeginEpoch,
    BeginSnapshot,
    CatalogCommand,
    CatalogCounters,
    CatalogDone,
    CatalogResult,
    ClusterMembers,
    CompleteSnapshot,
    CreateSnapshot,
    CreateSnapshotResult,
    DeleteSnapshot,
    Description,
    FailSnapshot,
    FeatureLevel,
    PruneSnapshots,
    PruneSnapshotsResult,
    RaiseFeatureLevel,
    RaiseFeatureLevelResult,
    Requested,
    RetentionClass,
    SetDescription,
    SetRetention,
    Snapshot,
    SnapshotState,
)
from coordinator.mux.codec import Codec
from coordinator.mux.entities import (
    COUNTERS_KIND,
    DESCRIPTION_KIND,
    FEATURE_LEVEL_KIND,
    MEMBERS_KIND,
    SNAPSHOT_KIND,
    CatalogValue,
    key_of,
)
from coordinator.mux.sessions import SessionApplied, SessionRefused
from coordinator.mux.snapshot_retention import expired
from viewstamp.limits import FEATURE_LEVEL_GUARDS
from viewstamp.machine.freezing import Entity, RowKind
from viewstamp.machine.tables import Table, UndoLog

_US_PER_MS: Final = 1_000


class _Place(NamedTuple):
    """Where in the log a command is, and whether its level notes that in what it changes."""

    op: int
    revision: int
    timestamp: int
    is_noted: bool


class CatalogMachine:
    """The snapshots of the cluster at one place of the log."""

    def __init__(self, codec: Codec) -> None:
        """Begin without snapshots."""
        self.codec = codec
        self._undo = UndoLog()
        self._snapshots: Table[int, Snapshot] = Table(self._undo)
        self._counters: Table[None, CatalogCounters] = Table(self._undo)
        self._level: Table[None, FeatureLevel] = Table(self._undo)
        self._description: Table[None, Description] = Table(self._undo)
        self._members: Table[None, ClusterMembers] = Table(self._undo)
        # Generations changed since the last call of `take_changes`.
        self._touched: list[int] = []
        self._mark = 0  # how many had changed at the savepoint

    # --- What there is ---

    def current(self) -> Snapshot:
        """Return the newest generation, whatever its state."""
        return max(self._all(), key=lambda snapshot: snapshot.generation, default=GENERATION_ZERO)

    def latest_completed(self) -> Snapshot:
        """Return the newest completed generation."""
        completed = (s for s in self._all() if s.state is SnapshotState.COMPLETED)
        return max(completed, key=lambda snapshot: snapshot.generation, default=GENERATION_ZERO)

    def get(self, generation: int) -> Snapshot | None:
        """Return a generation, None if it does not exist; 0 always exists and is never listed."""
        return self._snapshots.get(generation) if generation else GENERATION_ZERO

    def list_after(self, generation: int, limit: int) -> tuple[Snapshot, ...]:
        """Return up to `limit` generations older than one, newest first; 0 begins at the newest."""
        newest_first = reversed(self._snapshots.sorted_keys())
        older = [known for known in newest_first if not generation or known < generation]
        return tuple(self._existing(known) for known in older[:limit])

    @property
    def last_generation(self) -> int:
        """The highest number ever used."""
        counters = self._counters.get(None)
        return counters.last_generation if counters is not None else 0

    @property
    def feature_level(self) -> int:
        """The level that the last raise decided; 0 if there was none."""
        decided = self._level.get(None)
        return decided.level if decided is not None else 0

    @property
    def description(self) -> Description:
        """The purpose of the cluster."""
        return self._description.get(None) or NO_DESCRIPTION

    @property
    def members(self) -> ClusterMembers | None:
        """Who belongs to the cluster; None in the epoch that began with it."""
        return self._members.get(None)

    def standing(self, generation: int) -> GenerationStanding:
        """Return where a generation stands."""
        snapshot = self._snapshots.get(generation)
        if snapshot is None:
            if generation != self.last_generation + 1:
                return GenerationStanding.UNKNOWN
            is_blocked = self.current().state is SnapshotState.CREATED
            return GenerationStanding.BLOCKED if is_blocked else GenerationStanding.NEXT
        if snapshot.state is SnapshotState.CREATED:
            return GenerationStanding.CUT if snapshot.is_cut else GenerationStanding.RESERVED
        if snapshot.state is SnapshotState.FAILED:
            return GenerationStanding.FAILED
        is_latest = generation == self.latest_completed().generation
        return GenerationStanding.LATEST if is_latest else GenerationStanding.COMPLETED

    # --- Commands ---

    def apply(
        self,
        command: CatalogCommand,
        revision: int,
        op: int,
        timestamp: int,
        feature_level: int,
    ) -> SessionApplied | SessionRefused:
        """Apply one command; `timestamp` is log time in us, `feature_level` the level of its
        entry."""
        command = at_level(command, feature_level)
        why = malformed(command, feature_level)
        if why is not None:
            return SessionRefused(
                self.codec.encode_refusal("MALFORMED_REQUEST", why.details, why.case)
            )
        if isinstance(command, RaiseFeatureLevel):
            return self._raise_level(command, max(feature_level, self.feature_level))
        if isinstance(command, SetDescription):
            return self._describe(command, revision)
        if isinstance(command, BeginEpoch):
            return self._begin_epoch(command, op)
        if isinstance(command, PruneSnapshots):
            return self._applied(self._prune(command, timestamp))
        if isinstance(command, CreateSnapshot):
            generation = self.last_generation + 1
        else:
            generation = command.generation
        verdict = DECISIONS[type(command)][self.standing(generation)]
        if verdict is CatalogVerdict.NOTHING:
            return self._applied(CatalogDone())
        if verdict is not CatalogVerdict.APPLY:
            return self._refused(verdict, generation)
        if isinstance(command, DeleteSnapshot | SetRetention):
            expected = command.expected_revision
            modified = self._existing(generation).modified_revision
            if expected is not None and expected != modified:
                details = {"generation": str(generation)}
                return self._mismatch("snapshot", details, modified, expected)
        if isinstance(command, Requested) and command.validate_only:
            return self._applied(_result(command, generation))
        place = _Place(op, revision, timestamp, feature_level >= FEATURE_LEVEL_GUARDS)
        self._carry_out(command, generation, place)
        return self._applied(_result(command, generation))

    def savepoint(self) -> None:
        """Begin to remember changes, so that a transaction can be taken back."""
        self._undo.open_savepoint()
        self._mark = len(self._touched)

    def keep(self) -> None:
        """Let the changes since the savepoint stand."""
        self._undo.keep_savepoint()

    def revert(self) -> None:
        """Take back the changes since the savepoint."""
        self._undo.revert_savepoint()
        del self._touched[self._mark :]

    def take_changes(self) -> dict[int, Snapshot | None]:
        """Return the generations changed since the last call, None for deleted ones."""
        changes = {generation: self._snapshots.get(generation) for generation in self._touched}
        self._touched.clear()
        self._undo.settle()
        return changes

    # --- The section ---

    def entities(self) -> Iterator[Entity]:
        """Yield every entity in (kind, key) order; none if no snapshot was ever asked for."""
        for kind in self.row_kinds():
            yield from kind.entities(None)

    def row_kinds(self) -> tuple[RowKind[None], ...]:
        """Return the kinds of rows, ascending."""
        encode = self.codec.encode_entity
        return (
            RowKind(SNAPSHOT_KIND, lambda _: self._snapshots, encode, key_of),
            RowKind(COUNTERS_KIND, lambda _: self._counters, encode, key_of),
            RowKind(FEATURE_LEVEL_KIND, lambda _: self._level, encode, key_of),
            RowKind(DESCRIPTION_KIND, lambda _: self._description, encode, key_of),
            RowKind(MEMBERS_KIND, lambda _: self._members, encode, key_of),
        )

    def load(self, values: Iterable[CatalogValue]) -> None:
        """Load entities, which `restoring` has checked, into an empty machine."""
        for value in values:
            if isinstance(value, Snapshot):
                self._snapshots.put(value.generation, value)
            elif isinstance(value, FeatureLevel):
                self._level.put(None, value)
            elif isinstance(value, Description):
                self._description.put(None, value)
            elif isinstance(value, ClusterMembers):
                self._members.put(None, value)
            else:
                self._counters.put(None, value)
        self._undo.settle()

    # --- How it is done ---

    def _carry_out(self, command: Decided, generation: int, place: _Place) -> None:
        """Apply a command that the table lets through."""
        match command:
            case CreateSnapshot():
                kept_until = _kept_until(command.keep_for_ms, place.timestamp)
                self._reserve(generation, place, command.retention, kept_until)
            case BeginSnapshot():
                self._begin(command, place)
            case CompleteSnapshot():
                self._complete(command, place)
            case FailSnapshot():
                failed = replace(
                    self._existing(generation),
                    state=SnapshotState.FAILED,
                    failure=command.reason,
                    decided_at=place.timestamp,
                )
                self._put(failed, place)
            case DeleteSnapshot():
                self._drop(generation)
            case SetRetention():
                kept_until = _kept_until(command.keep_for_ms, place.timestamp)
                known = self._existing(generation)
                kept = replace(known, retention=command.retention, kept_until=kept_until)
                self._put(kept, place)

    def _reserve(
        self, generation: int, place: _Place, retention: RetentionClass, kept_until: int = 0
    ) -> None:
        """Reserve the next generation."""
        self._counters.put(None, CatalogCounters(generation))
        reserved = Snapshot(generation, SnapshotState.CREATED, retention=retention)
        self._put(replace(reserved, kept_until=kept_until), place)

    def _begin(self, command: BeginSnapshot, place: _Place) -> None:
        """Note the cut of the reserved generation, or of the next one."""
        if self._snapshots.get(command.generation) is None:
            self._reserve(command.generation, place, RetentionClass.LAST)
        cut = replace(
            self._existing(command.generation),
            cut_op=place.op,
            cut_revision=place.revision,
            created_at=place.timestamp,
            keep_last=command.keep_last,
            keep_daily=command.keep_daily,
        )
        self._put(cut, place)

    def _complete(self, command: CompleteSnapshot, place: _Place) -> None:
        """Note that a generation is good, and forget those that need no longer be kept."""
        completed = replace(
            self._existing(command.generation),
            state=SnapshotState.COMPLETED,
            root=command.root,
            tasks=command.tasks,
            decided_at=place.timestamp,
        )
        self._put(completed, place)
        for generation in expired(
            self._all(), completed.keep_last, completed.keep_daily, place.timestamp
        ):
            self._drop(generation)

    def _prune(self, command: PruneSnapshots, timestamp: int) -> PruneSnapshotsResult:
        """Forget, or only name, the generations that a retention does not keep."""
        generations = expired(self._all(), command.keep_last, command.keep_daily, timestamp)
        if not command.validate_only:
            for generation in generations:
                self._drop(generation)
        return PruneSnapshotsResult(generations)

    def _raise_level(
        self, command: RaiseFeatureLevel, in_force: int
    ) -> SessionApplied | SessionRefused:
        """Raise the level by one, known to this build or not: all replicas decide alike."""
        if command.expected != in_force or command.level != in_force + 1:
            details = {
                "level": str(command.level),
                "expected": str(command.expected),
                "in_force": str(in_force),
            }
            return SessionRefused(self.codec.encode_refusal("FEATURE_LEVEL_MISMATCH", details))
        if command.validate_only:
            return self._applied(RaiseFeatureLevelResult(in_force))
        self._level.put(None, FeatureLevel(command.level))
        return self._applied(RaiseFeatureLevelResult(command.level))

    def _begin_epoch(self, command: BeginEpoch, op: int) -> SessionApplied:
        """Note who belongs to the cluster. The core has decided that already, with this entry.

        Without voters the members are forgotten: a restore founds a new cluster, which has none.
        """
        if not command.voters:
            if self.members is not None:
                self._members.delete(None)
            return self._applied(CatalogDone())
        members = ClusterMembers(
            op, command.first_view, command.voters, command.standbys, command.next_replica_id
        )
        self._members.put(None, members)
        return self._applied(CatalogDone())

    def _describe(self, command: SetDescription, revision: int) -> SessionApplied | SessionRefused:
        """Set the purpose of the cluster, unless it changed since the caller read it."""
        before = self.description
        expected = command.expected_revision
        if expected is not None and expected != before.modified_revision:
            return self._mismatch("description", {}, before.modified_revision, expected)
        if not command.validate_only:
            if command.text:
                self._description.put(None, Description(command.text, revision))
            elif before.text:
                self._description.delete(None)
        return self._applied(CatalogDone())

    def _mismatch(
        self, case: str, details: Mapping[str, str], modified_revision: int, expected: int
    ) -> SessionRefused:
        """Return the refusal of a compare-and-set that lost."""
        revisions = {
            "modified_revision": str(modified_revision),
            "expected_revision": str(expected),
        }
        refusal = self.codec.encode_refusal("REVISION_MISMATCH", {**details, **revisions}, case)
        return SessionRefused(refusal)

    def _put(self, snapshot: Snapshot, place: _Place) -> None:
        """Set a generation."""
        if place.is_noted:
            snapshot = replace(snapshot, modified_revision=place.revision)
        self._touched.append(snapshot.generation)
        self._snapshots.put(snapshot.generation, snapshot)

    def _drop(self, generation: int) -> None:
        """Forget a generation."""
        self._touched.append(generation)
        self._snapshots.delete(generation)

    def _all(self) -> Iterator[Snapshot]:
        """Yield all generations, in no order that means anything; another thread may look, too."""
        return iter([*self._snapshots.rows.values()])

    def _existing(self, generation: int) -> Snapshot:
        """Return an existing generation."""
        snapshot = self._snapshots.get(generation)
        assert snapshot is not None, f"snapshot {generation} is not there"
        return snapshot

    def _applied(self, result: CatalogResult) -> SessionApplied:
        """Return the result of a command."""
        return SessionApplied(self.codec.encode_catalog_result(result))

    def _refused(self, verdict: CatalogVerdict, generation: int) -> SessionRefused:
        """Return why a command is refused."""
        if verdict is CatalogVerdict.IN_PROGRESS:
            generation = self.current().generation
        details = {"generation": str(generation)}
        return SessionRefused(self.codec.encode_refusal(verdict.value, details))


def _result(command: Decided, generation: int) -> CatalogResult:
    """Return the result of a command that takes effect, or only would."""
    if isinstance(command, CreateSnapshot):
        return CreateSnapshotResult(generation)
    return CatalogDone()


def _kept_until(keep_for_ms: int, timestamp: int) -> int:
    """Return the log time until which a snapshot is kept in any case; 0 if none was named."""
    return timestamp + keep_for_ms * _US_PER_MS if keep_for_ms else 0
