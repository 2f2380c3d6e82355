"""The catalog machine: which snapshots there are, and what becomes of commands about them.

Fed by section and log alone. `catalog_decisions` says which command takes effect when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from coordinator.mux.catalog_decisions import (
    DECISIONS,
    CatalogVerdict,
    Decided,
    GenerationStanding,
    malformed,
)
from coordinator.mux.catalog_types import (
    GENERATION_ZERO,
    NO_DESCRIPTION,
    BeginSnapshot,
    CatalogCommand,
    CatalogCounters,
    CatalogDone,
    CatalogResult,
    CompleteSnapshot,
    CreateSnapshot,
    CreateSnapshotResult,
    DeleteSnapshot,
    Description,
    Entity,
    FailSnapshot,
    FeatureLevel,
    PruneSnapshots,
    PruneSnapshotsResult,
    RaiseFeatureLevel,
    RaiseFeatureLevelResult,
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
    SNAPSHOT_KIND,
    CatalogValue,
    counters_key,
    number_key,
)
from coordinator.mux.freezing import RowKind
from coordinator.mux.sessions import SessionApplied, SessionRefused
from coordinator.mux.snapshot_retention import expired
from coordinator.mux.undo import EntityTable, UndoLog


class CatalogMachine:
    """The snapshots of the cluster at one place of the log."""

    def __init__(self, codec: Codec) -> None:
        """Begin without snapshots."""
        self._codec = codec
        self._undo = UndoLog()
        self._snapshots: EntityTable[int, Snapshot] = EntityTable(self._undo)
        self._counters: EntityTable[None, CatalogCounters] = EntityTable(self._undo)
        self._level: EntityTable[None, FeatureLevel] = EntityTable(self._undo)
        self._description: EntityTable[None, Description] = EntityTable(self._undo)
        # Generations changed since the last call of `take_changes`.
        self._touched: list[int] = []

    # --- What there is ---

    def current(self) -> Snapshot:
        """Return the newest generation, whatever its state."""
        return max(self._all(), key=lambda snapshot: snapshot.generation, default=GENERATION_ZERO)

    def latest_completed(self) -> Snapshot:
        """Return the newest completed generation."""
        completed = (s for s in self._all() if s.state is SnapshotState.COMPLETED)
        return max(completed, key=lambda snapshot: snapshot.generation, default=GENERATION_ZERO)

    def get(self, generation: int) -> Snapshot | None:
        """Return a generation, None if it is not there; 0 is always there and never listed."""
        return self._snapshots.get(generation) if generation else GENERATION_ZERO

    def list_after(self, generation: int, limit: int) -> tuple[Snapshot, ...]:
        """Return up to `limit` generations older than one, newest first; 0 begins at the newest."""
        newest_first = sorted(self._snapshots.keys(), reverse=True)
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
        """What the cluster is there for."""
        return self._description.get(None) or NO_DESCRIPTION

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
        """Apply one command; `timestamp` is log time in us, `feature_level` that of its entry."""
        why = malformed(command)
        if why is not None:
            return SessionRefused(
                self._codec.encode_refusal("MALFORMED_REQUEST", why.details, why.case)
            )
        if isinstance(command, RaiseFeatureLevel):
            return self._raise_level(command, max(feature_level, self.feature_level))
        if isinstance(command, SetDescription):
            return self._describe(command, revision)
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
        return self._applied(self._carry_out(command, generation, revision, op, timestamp))

    def savepoint(self) -> None:
        """Begin to remember changes, so that a transaction can be taken back."""
        self._undo.savepoint()

    def keep(self) -> None:
        """Let the changes since the savepoint stand."""
        self._undo.keep()

    def revert(self) -> None:
        """Take back the changes since the savepoint."""
        self._undo.revert()

    def take_changes(self) -> dict[int, Snapshot | None]:
        """Return the generations changed since the last call, None for deleted ones."""
        changes = {generation: self._snapshots.get(generation) for generation in self._touched}
        self._touched.clear()
        return changes

    # --- The section ---

    def entities(self) -> Iterator[Entity]:
        """Yield every entity in (kind, key) order; none if no snapshot was ever asked for."""
        for kind in self.row_kinds():
            yield from kind.entities()

    def row_kinds(self) -> tuple[RowKind[Any, Any], ...]:
        """Return the kinds of rows, ascending."""
        snapshots, counters, encode = self._snapshots, self._counters, self._codec.encode_entity
        level, described = self._level, self._description
        return (
            RowKind(
                SNAPSHOT_KIND, snapshots.log, snapshots.keys, snapshots.get, number_key, encode
            ),
            RowKind(COUNTERS_KIND, counters.log, counters.keys, counters.get, counters_key, encode),
            RowKind(FEATURE_LEVEL_KIND, level.log, level.keys, level.get, counters_key, encode),
            RowKind(
                DESCRIPTION_KIND,
                described.log,
                described.keys,
                described.get,
                counters_key,
                encode,
            ),
        )

    def load(self, values: Iterable[CatalogValue]) -> None:
        """Take over entities, which `restoring` has checked, into a machine that is empty."""
        for value in values:
            if isinstance(value, Snapshot):
                self._snapshots.load(value.generation, value)
            elif isinstance(value, FeatureLevel):
                self._level.load(None, value)
            elif isinstance(value, Description):
                self._description.load(None, value)
            else:
                self._counters.load(None, value)

    # --- How it is done ---

    def _carry_out(
        self, command: Decided, generation: int, revision: int, op: int, timestamp: int
    ) -> CatalogResult:
        """Apply a command that the table lets through."""
        match command:
            case CreateSnapshot():
                self._reserve(generation, command.retention)
                return CreateSnapshotResult(generation)
            case BeginSnapshot():
                self._begin(command, revision, op, timestamp)
            case CompleteSnapshot():
                self._complete(command, timestamp)
            case FailSnapshot():
                failed = replace(
                    self._existing(generation),
                    state=SnapshotState.FAILED,
                    failure=command.reason,
                    decided_at=timestamp,
                )
                self._put(failed)
            case DeleteSnapshot():
                self._drop(generation)
            case SetRetention():
                self._put(replace(self._existing(generation), retention=command.retention))
        return CatalogDone()

    def _reserve(self, generation: int, retention: RetentionClass) -> None:
        """Use up the next number."""
        self._counters.put(None, CatalogCounters(generation))
        self._put(Snapshot(generation, SnapshotState.CREATED, retention=retention))

    def _begin(self, command: BeginSnapshot, revision: int, op: int, timestamp: int) -> None:
        """Note the cut, of a generation that was reserved or of the next one."""
        if self._snapshots.get(command.generation) is None:
            self._reserve(command.generation, RetentionClass.LAST)
        cut = replace(
            self._existing(command.generation),
            cut_op=op,
            cut_revision=revision,
            created_at=timestamp,
            keep_last=command.keep_last,
            keep_daily=command.keep_daily,
        )
        self._put(cut)

    def _complete(self, command: CompleteSnapshot, timestamp: int) -> None:
        """Note that a generation is good, and forget those that need not be kept beside it."""
        completed = replace(
            self._existing(command.generation),
            state=SnapshotState.COMPLETED,
            root=command.root,
            tasks=command.tasks,
            decided_at=timestamp,
        )
        self._put(completed)
        for generation in expired(
            self._all(), completed.keep_last, completed.keep_daily, timestamp
        ):
            self._drop(generation)

    def _prune(self, command: PruneSnapshots, timestamp: int) -> PruneSnapshotsResult:
        """Forget, or only name, what a retention does not keep."""
        generations = expired(self._all(), command.keep_last, command.keep_daily, timestamp)
        if not command.validate_only:
            for generation in generations:
                self._drop(generation)
        return PruneSnapshotsResult(generations)

    def _raise_level(
        self, command: RaiseFeatureLevel, in_force: int
    ) -> SessionApplied | SessionRefused:
        """Raise the level by one. Whether this build knows it is no question: all decide alike."""
        if command.expected != in_force or command.level != in_force + 1:
            details = {
                "level": str(command.level),
                "expected": str(command.expected),
                "in_force": str(in_force),
            }
            return SessionRefused(self._codec.encode_refusal("FEATURE_LEVEL_MISMATCH", details))
        if command.validate_only:
            return self._applied(RaiseFeatureLevelResult(in_force))
        self._level.put(None, FeatureLevel(command.level))
        return self._applied(RaiseFeatureLevelResult(command.level))

    def _describe(self, command: SetDescription, revision: int) -> SessionApplied | SessionRefused:
        """Say what the cluster is there for, unless another has said it since the caller looked."""
        before = self.description
        expected = command.expected_revision
        if expected is not None and expected != before.modified_revision:
            details = {
                "modified_revision": str(before.modified_revision),
                "expected_revision": str(expected),
            }
            refusal = self._codec.encode_refusal("REVISION_MISMATCH", details, "description")
            return SessionRefused(refusal)
        if not command.validate_only:
            if command.text:
                self._description.put(None, Description(command.text, revision))
            elif before.text:
                self._description.drop(None)
        return self._applied(CatalogDone())

    def _put(self, snapshot: Snapshot) -> None:
        """Set a generation."""
        self._touch(snapshot.generation)
        self._snapshots.put(snapshot.generation, snapshot)

    def _drop(self, generation: int) -> None:
        """Forget a generation."""
        self._touch(generation)
        self._snapshots.drop(generation)

    def _touch(self, generation: int) -> None:
        """Note that a generation changes."""
        self._undo.record(self._touched.pop)
        self._touched.append(generation)

    def _all(self) -> Iterator[Snapshot]:
        """Yield all generations, in no order that means anything."""
        return map(self._existing, self._snapshots.keys())

    def _existing(self, generation: int) -> Snapshot:
        """Return a generation that is there."""
        snapshot = self._snapshots.get(generation)
        assert snapshot is not None, f"snapshot {generation} is not there"
        return snapshot

    def _applied(self, result: CatalogResult) -> SessionApplied:
        """Return the result of a command."""
        return SessionApplied(self._codec.encode_catalog_result(result))

    def _refused(self, verdict: CatalogVerdict, generation: int) -> SessionRefused:
        """Return why a command is refused."""
        if verdict is CatalogVerdict.IN_PROGRESS:
            generation = self.current().generation
        details = {"generation": str(generation)}
        return SessionRefused(self._codec.encode_refusal(verdict.value, details))
