"""Faults of disks that do something else than they say, and of superblocks that are put back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from testkit.memory_storage import Loss
from testkit.world.branches import OLDER_SUPERBLOCK, VANISHED
from testkit.world.ground import Ground
from testkit.world.replica import SUPERBLOCK
from testkit.world.schedule import NS_PER_MS
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.limits import FEATURE_LEVEL_NAMED_SUPERBLOCK

if TYPE_CHECKING:
    from testkit.world.disk import WorldDisk
    from testkit.world.replica import WorldReplica

_STALLS_MS: Final = (1_000, 3_000)
_VANISHES_MS: Final = (50, 1_500)
_LYING_SYNCS: Final = (1, 10)
_LIES_MS: Final = (20, 1_500)
_LOOK_MS: Final = (50, 100)


class LyingDiskFaults:
    """Each fault returns whether it happened."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.strikes: Mapping[str, Callable[[], bool]] = {
            "misdirected": self._misdirected,
            "lost_write": self._lost_write,
            "lost_syncs": self._lost_syncs,
            "older_superblock": self._older_superblock,
            "stalled_disk": self._stalled_disk,
        }

    def end(self) -> None:
        """Let the disks that stand still go on."""
        for replica in self._ground.replicas:
            if replica.process is not None:
                replica.process.stalled_until_ns = 0

    def _misdirected(self) -> bool:
        """Have the next record of a victim land elsewhere in its segment."""
        victim, options = self._ground.victim(), self._ground.options
        if victim is None:
            return False
        sectors = options.segment_bytes // SECTOR_BYTES
        victim.is_untrusted = True
        victim.machine.disk.sectors_misdirected = self._ground.random.randint(1, sectors)
        self._ground.note(victim, "writes its next record elsewhere")
        return True

    # --- Writes that are not there ---

    def _lost_write(self) -> bool:
        """Have a record of a victim vanish, and then the power."""
        victim = self._ground.victim()
        if victim is None:
            return False
        disk = victim.machine.disk
        victim.is_untrusted = True
        disk.next_record_vanishes = True
        self._ground.later(_VANISHES_MS, self._lose_power, victim, disk)
        return True

    def _lost_syncs(self) -> bool:
        """Have some syncs of a victim do nothing, and then the power fail."""
        victim, random = self._ground.victim(), self._ground.random
        if victim is None:
            return False
        disk = victim.machine.disk
        victim.is_untrusted = True
        disk.syncs_that_lie = random.randint(*_LYING_SYNCS)
        self._ground.later(_LIES_MS, self._lose_power, victim, disk)
        return True

    def _lose_power(self, victim: WorldReplica, disk: WorldDisk) -> None:
        if victim.machine.disk is not disk:
            return
        disk.syncs_that_lie, before = 0, disk.vanished
        disk.next_record_vanishes = False
        self._ground.note(victim, "loses power")
        victim.kill_all()
        disk.crash(Loss.PARTLY, self._ground.random.getrandbits(32))
        if disk.vanished > before:
            self._ground.branches.counts[VANISHED] += disk.vanished - before

    # --- A superblock of earlier ---

    def _older_superblock(self) -> bool:
        """Keep a copy of a victim's superblock, and put it back when its journal names a later."""
        victim = self._ground.victim()
        files = None if victim is None else victim.files
        if victim is None or files is None or not files.superblock.exists:
            return False
        disk = victim.machine.disk
        self._ground.note(victim, f"has its superblock {files.superblock.sequence} copied")
        self._look(victim, disk, disk.content(SUPERBLOCK), None)
        return True

    def _look(
        self,
        victim: WorldReplica,
        disk: WorldDisk,
        content: bytes,
        changed: tuple[int, int] | None,
    ) -> None:
        """Look until a record was written after the superblock had changed, or the disk is lost."""
        if victim.machine.disk is not disk or victim.has_older_superblock:
            return
        now = _place_of(victim)
        if now is not None and changed is not None and changed[0] == now[0] and changed[1] < now[1]:
            self._put_back(victim, content)
            return
        has_changed = disk.content(SUPERBLOCK) != content
        self._ground.later(
            _LOOK_MS, self._look, victim, disk, content, now if has_changed else None
        )

    def _put_back(self, victim: WorldReplica, content: bytes) -> None:
        self._ground.note(victim, "has an older superblock put back")
        self._ground.branches.counts[OLDER_SUPERBLOCK] += 1
        victim.put_superblock_back(content)

    # --- Time ---

    def _stalled_disk(self) -> bool:
        """Have the disk of a primary stand still for a while, while everybody asks it."""
        random = self._ground.random
        leading = [each for each in self._ground.replicas if each.is_primary]
        if not leading:
            return False
        primary = random.choice(leading)
        process, stalled_ms = primary.process, random.randint(*_STALLS_MS)
        assert process is not None, "it leads"
        self._ground.note(primary, f"has a disk that stands still for {stalled_ms} ms")
        now_ns = self._ground.world.schedule.now_ns
        process.stalled_until_ns = now_ns + stalled_ms * NS_PER_MS
        return True


def _place_of(victim: WorldReplica) -> tuple[int, int] | None:
    """Return the superblock's sequence and the head of a journal whose records name it."""
    head = None if victim.files is None else victim.files.journal.head
    if victim.files is None or head is None:
        return None
    if head.feature_level < FEATURE_LEVEL_NAMED_SUPERBLOCK or victim.machine.disk.syncs_that_lie:
        return None
    return victim.files.superblock.sequence, head.op
