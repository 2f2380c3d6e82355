"""The superblock: all copies read; a bad one is written anew, as every write of it is."""

from __future__ import annotations

import logging

from coordinator.scrub.ports import ScrubAlarm, ScrubPorts
from coordinator.scrub.remedies import DamagedPart
from coordinator.scrub.slow_disk import SlowDisk
from coordinator.scrub.tally import ScrubTally
from viewstamp.format.superblock import COPIES, COPY_BYTES
from viewstamp.telemetry import fields

_log = logging.getLogger(__name__)


class SuperblockScrub:
    """Looks at the superblock. Raises SuperblockFailed, which ends the process."""

    def __init__(self, ports: ScrubPorts, disk: SlowDisk, tally: ScrubTally) -> None:
        self._ports = ports
        self._disk = disk
        self._tally = tally

    async def look(self) -> None:
        """Read all copies, and write those anew that are not as they were written."""
        superblock = self._ports.superblock
        if not await self._disk.call(lambda: superblock.is_in_place):
            self._gone()
            return
        suspects = await self._disk.read(lambda: (COPIES * COPY_BYTES, superblock.deviating()))
        if not suspects:
            self._settle(())
            return
        # A write may have been under way. The second look waits for writes, and mends at once.
        found, left = await self._disk.call(superblock.mend)
        if found:
            _log.error(
                "copies of the superblock were damaged", extra=fields(found=found, left=left)
            )
        self._tally.found[DamagedPart.SUPERBLOCK] += len(found)
        self._tally.mended[DamagedPart.SUPERBLOCK] += len(found) - len(left)
        self._settle(left)

    def _gone(self) -> None:
        part = DamagedPart.SUPERBLOCK
        if self._tally.standing[part] != COPIES:
            _log.error("the file of the superblock is gone")
            self._tally.found[part] += COPIES
        self._tally.standing[part] = COPIES
        self._ports.alarms.tell(
            ScrubAlarm.SUPERBLOCK_DAMAGED,
            "the file of the superblock is gone from the data directory, and a restart is refused"
            " without it: do not restart this replica. Find out who removed it; replace the disk"
            " of a replica that has peers, and back up a lone one at once",
        )

    def _settle(self, left: tuple[int, ...]) -> None:
        self._tally.standing[DamagedPart.SUPERBLOCK] = len(left)
        if not left:
            self._ports.alarms.clear(ScrubAlarm.SUPERBLOCK_DAMAGED)
            return
        copies = ", ".join(map(str, left))
        self._ports.alarms.tell(
            ScrubAlarm.SUPERBLOCK_DAMAGED,
            f"copies {copies} of the superblock were damaged, were written anew, and cannot be"
            f" read back: the disk of the data directory is failing. Of {COPIES} copies two that"
            " agree are needed; move this replica to another disk",
        )
