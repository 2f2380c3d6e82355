"""Where an earlier state can be built from: kept snapshots, and how far back the log goes here."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from coordinator.mux.catalog_types import Snapshot, SnapshotState


@dataclass(frozen=True, slots=True)
class StateBase:
    """A snapshot, by generation, op and revision of its cut; all 0 before the first entry."""

    generation: int
    op: int
    revision: int


EMPTY_BASE: Final = StateBase(0, 0, 0)


class PastBases:
    """The bases that there are at one moment.

    From a base whose log is here every later revision can be built. Any other one is a state by
    itself: its own revision can be read, and none behind it before the next base.
    """

    def __init__(
        self, snapshots: Iterable[Snapshot], stored: Collection[int], first_op: int
    ) -> None:
        """Take the snapshots of the catalog, the generations with files here, and the first entry
        of the log here."""
        kept = [
            StateBase(each.generation, each.cut_op, each.cut_revision)
            for each in snapshots
            if each.state is SnapshotState.COMPLETED and each.generation in stored
        ]
        self._all = [EMPTY_BASE, *sorted(kept, key=lambda base: base.revision)]
        self._first_op = first_op

    def best_for(self, revision: int) -> StateBase | None:
        """Return the newest base from which a revision can be built; None if there is none."""
        return next(
            (
                base
                for base in reversed(self._all)
                if base.revision <= revision
                and (self._has_log(base) or base.revision == revision > 0)
            ),
            None,
        )

    @property
    def oldest_revision(self) -> int:
        """The revision from which on all can be built; 0 if nothing is missing."""
        usable = (base.revision for base in self._all if self._has_log(base))
        return min(usable, default=self._all[-1].revision)

    def _has_log(self, base: StateBase) -> bool:
        """Whether the log behind a base is here."""
        return base.op + 1 >= self._first_op
