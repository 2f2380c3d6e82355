"""Bugs of the scrubber, planted for its judge (`scrub_judge`)."""

from __future__ import annotations

from typing import Any, Final

from coordinator.journal.kept_records import KeptRecords
from coordinator.scrub.copy_reading import CopyReading
from coordinator.scrub.snapshot_scrub import SnapshotScrub
from testkit.plants.core_bugs import Patch
from testkit.world.options import WorldOptions, flags
from testkit.world.plant import SCRUBBED, WorldPlant

_LAST_COPY: Final = "/copy-2/"
_SCRUB_INTERVAL_MS: Final = 1_000


def read_two_copies(patch: Patch) -> None:
    """The third copy of a file is taken for intact without being read."""
    real = CopyReading.next_slice

    def next_slice(self: CopyReading) -> tuple[int, bool]:
        return (0, False) if _LAST_COPY in self.path else real(self)

    patch.setattr(CopyReading, "next_slice", next_slice)


def read_no_snapshots(patch: Patch) -> None:
    """A pass leaves the files of snapshots out."""

    async def targets(self: SnapshotScrub) -> list[Any]:
        return []

    patch.setattr(SnapshotScrub, "targets", targets)


def believe_the_journal(patch: Patch) -> None:
    """A damaged record passes for one that the log has elsewhere."""
    patch.setattr(KeptRecords, "is_in_place", lambda self, record: False)


def _under(*faults: str) -> WorldOptions:
    return WorldOptions(
        seconds=4,
        clients=2,
        callers=2,
        readers=0,
        faults=faults,
        every_ms=(200, 800),
        flags=flags(15, 1_000, _SCRUB_INTERVAL_MS),
    )


SCRUB_PLANTS: Final = (
    WorldPlant(SCRUBBED, read_two_copies, _under("bad_copy")),
    WorldPlant(SCRUBBED, read_no_snapshots, _under("bad_copy")),
    WorldPlant(SCRUBBED, believe_the_journal, _under("rot")),
)
