"""The entry at which a snapshot was cut, even before the journal has it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.app.snapshots import SnapshotAssembly
from coordinator.mux.catalog_types import CutTaken

CUT_OP = 7
OLD, NEW = b"o" * 16, b"n" * 16


@dataclass(frozen=True)
class WrittenCuts:
    """An entry on its way to the journal."""

    op: int
    checksum: bytes


class CutsTaken(SnapshotAssembly):
    """The snapshots of a replica whose journal holds `held` at the cut."""

    def __init__(self, held: bytes | None) -> None:
        """Hold the parts of a replica that the test needs."""
        header = None if held is None else SimpleNamespace(checksum=held)
        journal = SimpleNamespace(header=lambda op: header)
        around: Any = SimpleNamespace(files=SimpleNamespace(journal=journal))
        self._around = around
        self._unwritten = {}
        self.found: list[bytes] = []
        orchestrator: Any = SimpleNamespace(
            cut_taken=lambda _, checksum: self.found.append(checksum)
        )
        self.orchestrator = orchestrator

    def step(self, what: str, checksum: bytes) -> None:
        """Begin or end to write an entry at the cut."""
        entries: Any = [WrittenCuts(CUT_OP, checksum)]
        self.persisting(entries) if what == "persisting" else self.persisted(entries)


@pytest.mark.parametrize(
    ("held", "steps", "expected"),
    [
        (NEW, (), NEW),
        (None, (("persisting", NEW),), NEW),
        (NEW, (("persisting", NEW), ("persisted", NEW)), NEW),
        # Another primary's entry is in the journal until it is discarded there.
        (OLD, (("persisting", NEW),), NEW),
        (OLD, (("persisting", OLD), ("persisting", NEW), ("persisted", OLD)), NEW),
    ],
)
def test_the_cut_is_the_entry_that_was_executed(
    held: bytes | None, steps: tuple[tuple[str, bytes], ...], expected: bytes
) -> None:
    """An entry on its way to the journal is newer than the journal's entry of that op."""
    cuts = CutsTaken(held)
    for step in steps:
        cuts.step(*step)
    taken: Any = SimpleNamespace(op=CUT_OP)
    cut: CutTaken = taken
    cuts.cut_taken(cut)
    assert cuts.found == [expected]
