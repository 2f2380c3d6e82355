"""How large a cluster TLC looks at, and how much may go wrong in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

INVARIANTS: Final = (
    "OneHistory",
    "CommittedOnQuorum",
    "AcknowledgedIsKept",
    "ViewsMonotonic",
    "OneLogPerView",
    "LogsAreWhole",
    "CoreInvariants",
)
"""Predicates of one state; the names are those of `testkit/simulation/checkers.py`, if it has
them."""

PROPERTY: Final = "NothingCommittedDiscarded"
"""A predicate of two states that follow each other."""


@dataclass(frozen=True, slots=True)
class TlaBounds:
    """The constants of the specification. The defaults are a small cluster without faults."""

    replica_count: int = 3
    replication_quorum: int = 2
    view_change_quorum: int = 2
    view_max: int = 1
    batches: int = 1
    restarts: int = 0
    lost_disks: int = 0
    damaged_records: int = 0
    pipeline: int = 1
    lazy_journal: Literal["none", "primary", "all"] = "none"
    lazy_superblock: bool = False
    removed: tuple[str, ...] = ()

    def configuration(self) -> str:
        """Return the configuration file that TLC reads."""
        return (
            "SPECIFICATION Spec\n"
            "VIEW Essence\n"
            f"INVARIANTS {' '.join(INVARIANTS)}\n"
            f"PROPERTIES {PROPERTY}\n"
            f"{self.constants()}"
        )

    def constants(self) -> str:
        """Return the part of a configuration file that gives values to the constants."""
        values = "\n".join(f"    {name} = {value}" for name, value in self._constants())
        return f"CONSTANTS\n{values}\n"

    def _constants(self) -> tuple[tuple[str, str], ...]:
        removed = ", ".join(f'"{name}"' for name in self.removed)
        return (
            ("ReplicaCount", f"{self.replica_count}"),
            ("ReplicationQuorum", f"{self.replication_quorum}"),
            ("ViewChangeQuorum", f"{self.view_change_quorum}"),
            ("MaxView", f"{self.view_max}"),
            ("MaxBatches", f"{self.batches}"),
            ("MaxRestarts", f"{self.restarts}"),
            ("MaxLostDisks", f"{self.lost_disks}"),
            ("MaxDamage", f"{self.damaged_records}"),
            ("PipelineMax", f"{self.pipeline}"),
            ("LazyJournal", f'"{self.lazy_journal}"'),
            ("LazySuperblock", f"{self.lazy_superblock}".upper()),
            ("Removed", f"{{{removed}}}"),
        )
