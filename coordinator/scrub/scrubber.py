"""The scrubber: one pass after another over everything that is durable here."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from coordinator.scrub.journal_scrub import JournalScrub
from coordinator.scrub.pace import pause_between_passes_ms
from coordinator.scrub.plan import (
    ScrubTarget,
    SegmentTarget,
    SuperblockTarget,
    circle,
)
from coordinator.scrub.ports import ScrubPorts
from coordinator.scrub.slow_disk import SlowDisk
from coordinator.scrub.snapshot_scrub import SnapshotScrub
from coordinator.scrub.superblock_scrub import SuperblockScrub
from coordinator.scrub.tally import ScrubTally
from coordinator.storage import ERRORS_OF_THE_PROCESS
from viewstamp.format.superblock import COPIES, COPY_BYTES
from viewstamp.telemetry import fields

_log = logging.getLogger(__name__)


class Scrubber:
    """Goes round until it is cancelled. `tally` is what people see of it."""

    def __init__(self, ports: ScrubPorts, interval_ms: int) -> None:
        """Aim at one pass in `interval_ms`."""
        self.tally = ScrubTally()
        self._ports = ports
        self._interval_ms = interval_ms
        # A pass that left something out does not count: its gauge would hide that.
        self._has_left_out = False
        self._disk = SlowDisk(ports, self.tally, interval_ms)
        self._superblock = SuperblockScrub(ports, self._disk, self.tally)
        self._journal = JournalScrub(ports, self._disk, self.tally)
        self._snapshots = SnapshotScrub(ports, self._disk, self.tally, interval_ms)
        self._disk.recheck_with(self._journal.recheck)

    async def run(self) -> None:
        """Scrub until cancelled. Raises what makes going on impossible: JournalFailed,
        SuperblockFailed, CopiesFailed."""
        while True:
            # Also where there is nothing to read yet.
            await self._disk.rest(pause_between_passes_ms(self._interval_ms))
            if await self._able(self._pass()) and not self._has_left_out:
                self.tally.passed(self._ports.wall_clock_us())

    async def _pass(self) -> None:
        self._has_left_out = False
        targets = await self._targets()
        self._disk.begin_pass(sum(target.size_bytes for target in targets))
        for target in circle(targets, self._ports.wall_clock_us(), self._interval_ms):
            if not await self._able(self._look(target)):
                self._has_left_out = True
            await self._able(self._journal.look_again())
            await self._able(self._snapshots.look_again())

    async def _able(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do some work; return whether this process had what it took, such as a free descriptor."""
        try:
            await work
        except OSError as error:
            if error.errno not in ERRORS_OF_THE_PROCESS:
                raise
            _log.warning("left out by the scrubber", extra=fields(why=str(error)))
            return False
        return True

    async def _targets(self) -> list[ScrubTarget]:
        """Return everything that there is, in an order that stays."""
        found: list[ScrubTarget] = []
        if self._ports.superblock.exists:
            found.append(SuperblockTarget(COPIES * COPY_BYTES))
        records = self._ports.journal.kept_records
        for segment, size_bytes in await self._disk.in_journal(records.segments):
            found.append(SegmentTarget(segment, size_bytes))
        return [*found, *await self._snapshots.targets()]

    async def _look(self, target: ScrubTarget) -> None:
        if isinstance(target, SuperblockTarget):
            await self._superblock.look()
        elif isinstance(target, SegmentTarget):
            await self._journal.look(target)
        else:
            await self._snapshots.look(target)
