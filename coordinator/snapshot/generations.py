"""What a replica knows of its generations: their state in the applied log, and here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coordinator.mux.catalog_types import CutTaken, Snapshot, SnapshotState, TaskSnapshot
from coordinator.mux.stage import Stage
from coordinator.snapshot import values
from coordinator.snapshot.agreement import DurableReport
from coordinator.snapshot.decisions import Action, CatalogState, LocalState, Situation, decide
from coordinator.snapshot.work import Durable, LocalCut


@dataclass(slots=True)
class FrozenHere:
    """A generation frozen here, and the progress of the work on it."""

    cut: LocalCut
    tasks: tuple[Stage, ...]
    base_generation: int  # adopted when it was cut
    snapshot: Snapshot  # with the tasks that were reported here
    root: bytes = b""  # set once it is durable, as are
    durable_tasks: tuple[TaskSnapshot, ...] = ()  # those of this replica, whatever was decided
    broken: str = ""  # why writing it has failed
    broken_at_ms: int = 0
    running: asyncio.Task[None] | None = None

    def what_lacks(self) -> str:
        """Return, for people, what is not durable yet."""
        missing = values.missing_tasks(self.snapshot, self.tasks)
        return "lacks " + (", ".join(stage.name.lower() for stage in missing) or "its manifest")


class Generations:
    """The applied catalog, the works under way, and what was adopted last."""

    def __init__(self, adopted: Durable | None, snapshots: Iterable[Snapshot]) -> None:
        self.adopted = adopted
        self.catalog = {snapshot.generation: snapshot for snapshot in snapshots}
        self.works: dict[int, FrozenHere] = {}

    # --- The log ---

    def newest(self) -> Snapshot:
        """Return the newest generation of the catalog, generation 0 before the first."""
        return self.catalog[max(self.catalog)] if self.catalog else values.initial()

    def latest_completed(self) -> Snapshot:
        """Return the newest completed generation, generation 0 before the first."""
        completed = (s for s in self.catalog.values() if s.state is SnapshotState.COMPLETED)
        return max(completed, key=lambda s: s.generation, default=values.initial())

    def undecided(self) -> list[int]:
        """Return the generations that were asked for or cut, and are not decided."""
        return [g for g, s in self.catalog.items() if s.state is SnapshotState.CREATED]

    def catalog_state(self, generation: int) -> CatalogState:
        """Return the state of a generation in the log."""
        snapshot = self.catalog.get(generation)
        if snapshot is None:
            return CatalogState.ABSENT
        if snapshot.state is SnapshotState.CREATED:
            return CatalogState.CUT if snapshot.is_cut else CatalogState.ASKED
        return _DECIDED[snapshot.state]

    # --- What is here ---

    @property
    def adopted_generation(self) -> int:
        """The generation that this replica restarts from; 0 for the empty state."""
        return self.adopted.generation if self.adopted else 0

    def local_state(self, generation: int) -> LocalState:
        """Return the local state of a generation."""
        if generation == self.adopted_generation:
            return LocalState.DURABLE
        work = self.works.get(generation)
        if work is None:
            return LocalState.NOTHING
        if work.broken:
            return LocalState.BROKEN
        return LocalState.DURABLE if work.root else LocalState.FROZEN

    def durable(self, generation: int) -> Durable:
        """Return a generation that is durable here."""
        if self.adopted is not None and generation == self.adopted.generation:
            return self.adopted
        work = self.works[generation]
        cut = work.cut
        return Durable(generation, cut.taken.op, cut.checksum, work.root, work.durable_tasks)

    def report(self, generation: int) -> DurableReport | None:
        """Return this replica's report about a generation, None unless it is durable here."""
        if self.local_state(generation) is not LocalState.DURABLE:
            return None
        durable = self.durable(generation)
        return DurableReport(durable.root, durable.tasks)

    def what_lacks(self, generation: int) -> str:
        """Return, for people, why an undecided generation is not durable here; empty if it is."""
        if self.local_state(generation) is LocalState.DURABLE:
            return ""
        work = self.works.get(generation)
        if work is not None:
            return work.what_lacks()
        is_cut = self.catalog_state(generation) is CatalogState.CUT
        return "it is not here" if is_cut else "it was not cut"

    # --- Both ---

    def current(self) -> Snapshot:
        """Return the newest generation, with the tasks reported here if it is under way here."""
        newest = self.newest()
        work = self.works.get(newest.generation)
        return newest if work is None else work.snapshot

    def at_hand(self) -> list[int]:
        """Return the generations that may need an action, oldest first.

        Only the newest one of the catalog can be undecided.
        """
        return sorted({*self.works, self.newest().generation} - {0})

    def situation(self, generation: int) -> Situation:
        """Return what the decision about a generation depends on."""
        is_adopted = generation == self.adopted_generation
        return Situation(self.catalog_state(generation), self.local_state(generation), is_adopted)

    def is_to_be_adopted(self, generation: int) -> bool:
        """Return whether it only remains to be adopted."""
        return decide(self.situation(generation), is_overdue=False) is Action.ADOPT


def created_by(taken: CutTaken) -> Snapshot:
    """Return the catalog's entry for a cut, as far as the cut itself tells."""
    return Snapshot(
        generation=taken.generation,
        state=SnapshotState.CREATED,
        cut_op=taken.op,
        cut_revision=taken.revision,
        created_at=taken.timestamp,
    )


_DECIDED: Final = {
    SnapshotState.COMPLETED: CatalogState.COMPLETED,
    SnapshotState.FAILED: CatalogState.FAILED,
}
