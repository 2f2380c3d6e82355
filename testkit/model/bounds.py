"""How large a cluster TLC looks at, and how much may go wrong in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Step: TypeAlias = tuple[str, int, int]
"""An action of `Directed.tla`, its replica, and the view that an EnterView enters."""

INVARIANTS: Final = (
    "OneHistory",
    "CommittedOnQuorum",
    "AcknowledgedIsKept",
    "ViewsMonotonic",
    "OneLogPerView",
    "LogsAreWhole",
    "CoreInvariants",
)
"""Predicates of one state; the names are those of `testkit/checkers`, if it has
them."""

PROPERTY: Final = "NothingCommittedDiscarded"
"""A predicate of two states that follow each other."""


@dataclass(frozen=True, slots=True)
class TlaBounds:
    """The constants of the specification. The defaults are a small cluster without faults."""

    replica_count: int = 3
    change: str = "none"
    """The plan in `Membership.tla`: who has a vote in each epoch."""
    view_max: int = 1
    batches: int = 1
    restarts: int = 0
    lost_disks: int = 0
    damaged_records: int = 0
    lost_tails: int = 0
    older_copies: int = 0
    blank_replicas: int = 0
    pipeline: int = 1
    lazy_journal: Literal["none", "primary", "all"] = "none"
    lazy_superblock: bool = False
    removed: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    """A script: TLC goes through these actions alone. Empty, it visits all states."""

    @property
    def module(self) -> str:
        """The module that TLC checks."""
        return "Directed" if self.steps else "Viewstamp"

    def files(self) -> dict[str, str]:
        """Return the files that TLC reads beside the modules, by name."""
        files = {f"{self.module}.cfg": self.configuration()}
        return files | ({"DirectedData.tla": self._script()} if self.steps else {})

    def configuration(self) -> str:
        """Return the configuration file that TLC reads."""
        beginning = "DirectedSpec\n" if self.steps else "Spec\nVIEW Essence\n"
        return (
            f"SPECIFICATION {beginning}"
            f"INVARIANTS {' '.join(INVARIANTS)}\n"
            f"PROPERTIES {PROPERTY}\n"
            f"{self.constants()}"
        )

    def constants(self) -> str:
        """Return the part of a configuration file that gives values to the constants."""
        values = "\n".join(f"    {name} = {value}" for name, value in self._constants())
        return f"CONSTANTS\n{values}\n"

    def _script(self) -> str:
        steps = ",\n    ".join(f'<<"{name}", {id}, {view}>>' for name, id, view in self.steps)
        return f"---- MODULE DirectedData ----\nSteps == <<\n    {steps}>>\n====\n"

    def _constants(self) -> tuple[tuple[str, str], ...]:
        removed = ", ".join(f'"{name}"' for name in self.removed)
        return (
            ("ReplicaCount", f"{self.replica_count}"),
            ("Change", f'"{self.change}"'),
            ("MaxView", f"{self.view_max}"),
            ("MaxBatches", f"{self.batches}"),
            ("MaxRestarts", f"{self.restarts}"),
            ("MaxLostDisks", f"{self.lost_disks}"),
            ("MaxDamage", f"{self.damaged_records}"),
            ("MaxLostTails", f"{self.lost_tails}"),
            ("MaxOlderCopies", f"{self.older_copies}"),
            ("BlankReplicas", f"{self.blank_replicas}"),
            ("PipelineMax", f"{self.pipeline}"),
            ("LazyJournal", f'"{self.lazy_journal}"'),
            ("LazySuperblock", f"{self.lazy_superblock}".upper()),
            ("Removed", f"{{{removed}}}"),
        )
