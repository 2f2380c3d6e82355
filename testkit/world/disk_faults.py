"""Faults of disks and of the power: rot, no room, failed and hanging writes, lost contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from coordinator.peers.hello import DiskMark
from testkit.checkers.history import held_ops
from testkit.memory_storage import CAPACITY_BYTES, Loss
from testkit.world.branches import DAMAGE_MET, HANDED_OVER, PUT_BACK
from testkit.world.disk import WorldDisk
from testkit.world.ground import LASTS_MS, Ground
from testkit.world.old_volumes import mark_of, remembers_more
from testkit.world.replica import SUPERBLOCK, WorldReplica
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.format.superblock import COPIES, COPY_BYTES

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess

_STEPS_UNTIL_DEATH: Final = 40
_POWER_ENDS_IN_RECORD: Final = 0.5
_SYNCS_UNTIL_FAILURE: Final = 4
_SLOWNESS_MAX: Final = 40
# Mostly longer than a disk may take until its replica is unfit, and until another one leads.
_HANGS_MS: Final = (2_000, 9_000)
_HANGS_ON_PRIMARY: Final = 0.8
_ROLLED_BACK_MS: Final = (200, 5_000)
_ROOM_SECTORS_MAX: Final = 40
# One damage of a journal in so many is that of the header of a segment.
_HEADER_ONE_IN: Final = 5
_UNREADABLE_JOURNALS: Final = 0.7
# The last entries are those that anybody asks for.
_OPS_BACK_MEAN: Final = 6


class DiskFaults:
    """Each fault returns whether it happened."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._hanging: dict[WorldProcess, bool] = {}
        """Whose disk hangs, and whether it led when that began."""
        # Superblocks with a rotten copy. Another rotten one might leave too few that agree.
        self._rotten: list[WorldProcess] = []
        self.strikes: Mapping[str, Callable[[], bool]] = {
            "kill_in_io": self._kill_in_io,
            "power": self._power,
            "power_in_io": self._power_in_io,
            "blackout": self._blackout,
            "lose_disk": self._lose_disk,
            "slow": self._slow,
            "rot": self._rot,
            "rot_superblock": self._rot_superblock,
            "unreadable": self._unreadable,
            "full_disk": self._full_disk,
            "failed_sync": self._failed_sync,
            "hang_disk": self._hang_disk,
            "rolled_back": self._rolled_back,
        }

    def end(self) -> None:
        """Let every disk work again, and kill whoever waits for one that never did."""
        self._ground.world.slow_disks.clear()
        for replica in self._ground.replicas:
            disk = replica.machine.disk
            disk.crash_at = None
            disk.failing_syncs.clear()
            disk.capacity_bytes = CAPACITY_BYTES
            disk.heal()
        for process in list(self._hanging):
            self._kill_hanging(process)

    # --- Power ---

    def _kill_in_io(self) -> bool:
        """Have the coordinator die between two steps of one of its calls to the disk."""
        disk = self._ground.replica().machine.disk
        disk.crash_at = disk.steps + self._ground.random.randint(0, _STEPS_UNTIL_DEATH)
        return True

    def _power(self) -> bool:
        """Have a machine lose power, and with it a part of what was not synced."""
        self._lose_power(self._ground.replica(), self._ground.random.getrandbits(32))
        return True

    def _power_in_io(self) -> bool:
        """Have a machine lose power between two steps of its disk, or while it writes a record."""
        replica, random = self._ground.replica(), self._ground.random
        process, disk = replica.process, replica.machine.disk
        if process is None or not process.is_alive:
            return False
        if random.random() < _POWER_ENDS_IN_RECORD:
            disk.stops_in_record = True
        else:
            disk.crash_at = disk.steps + random.randint(0, _STEPS_UNTIL_DEATH)
        seed = random.getrandbits(32)

        def killed() -> None:
            if not self._ground.is_ending:
                self._lose_power(replica, seed)

        process.killed.append(killed)
        return True

    def _blackout(self) -> bool:
        """Have every machine lose power at once."""
        for replica in self._ground.replicas:
            self._lose_power(replica, self._ground.random.getrandbits(32))
        return True

    def _lose_power(self, replica: WorldReplica, seed: int) -> None:
        self._ground.note(replica, "loses power")
        replica.kill_all()
        replica.machine.disk.crash(Loss.PARTLY, seed)

    # --- Whole disks ---

    def _lose_disk(self) -> bool:
        """Give a victim an empty disk."""
        victim = self._ground.victim()
        if victim is None:
            return False
        self._ground.note(victim, "loses its disk")
        victim.give_empty_disk()
        return True

    def _rolled_back(self) -> bool:
        """Put the volume of a victim back as it is now, once the others know that it is older."""
        victim = self._ground.victim()
        if victim is None:
            return False
        saved = victim.machine.disk.copy()
        saved.crash(Loss.PARTLY, self._ground.random.getrandbits(32))
        self._ground.note(victim, "has its volume saved")
        mark = mark_of(victim, saved)
        self._ground.later(_ROLLED_BACK_MS, self._put_back_if_known, victim, saved, mark)
        return True

    def _put_back_if_known(self, victim: WorldReplica, saved: WorldDisk, mark: DiskMark) -> None:
        """Wait until all others remember more: nobody can know what was told to nobody."""
        others = [each for each in self._ground.voters if each is not victim]
        if all(remembers_more(other, victim.number, mark) for other in others):
            self.put_back(victim, saved)
        else:
            self._ground.later(_ROLLED_BACK_MS, self._put_back_if_known, victim, saved, mark)

    def put_back(self, victim: WorldReplica, saved: WorldDisk) -> None:
        """Kill a replica, and let it go on with a volume of earlier."""
        self._ground.note(victim, "has its volume rolled back")
        self._ground.branches.counts[PUT_BACK] += 1
        victim.replace_disk(saved)

    def _slow(self) -> bool:
        """Slow the threads of one machine down, or those of all."""
        random, replicas = self._ground.random, list(self._ground.replicas)
        if random.random() < 0.5:
            replicas = [self._ground.replica()]
        slowness = random.randint(2, _SLOWNESS_MAX)
        for host in [replica.machine.host for replica in replicas]:
            self._ground.world.slow_disks[host] = slowness
            self._ground.later(LASTS_MS, self._ground.world.slow_disks.pop, host, None)
        return True

    def _full_disk(self) -> bool:
        """Leave little room or none, for a while."""
        replica = self._ground.replica()
        disk = replica.machine.disk
        used_bytes = disk.capacity_bytes - disk.free_bytes("")
        room_bytes = self._ground.random.randint(0, _ROOM_SECTORS_MAX) * SECTOR_BYTES
        self._ground.note(replica, f"has {room_bytes} bytes of disk left")
        disk.capacity_bytes = used_bytes + room_bytes
        self._ground.later(LASTS_MS, setattr, disk, "capacity_bytes", CAPACITY_BYTES)
        return True

    def _failed_sync(self) -> bool:
        """Let one of the next syncs fail: its process must end."""
        replica = self._ground.replica()
        disk = replica.machine.disk
        disk.failing_syncs.add(disk.syncs + self._ground.random.randrange(_SYNCS_UNTIL_FAILURE))
        self._ground.note(replica, "has a sync that will fail")
        return True

    def _hang_disk(self) -> bool:
        """Let no call to the disk return any more, until somebody kills the process."""
        replica = self._ground.replica(primary_share=_HANGS_ON_PRIMARY)
        process = replica.process
        if process is None or not process.is_alive:
            return False
        self._ground.note(replica, "has a disk that hangs")
        process.hangs = True
        self._hanging[process] = replica.is_primary
        self._ground.later(_HANGS_MS, self._kill_hanging, process)
        return True

    def _kill_hanging(self, process: WorldProcess) -> None:
        was_primary = self._hanging.pop(process, False)
        leads = [each.process for each in self._ground.replicas if each.is_primary]
        if was_primary and process.is_alive and any(each is not process for each in leads):
            self._ground.branches.counts[HANDED_OVER] += 1
        process.kill()

    # --- Rot ---

    def _rot(self) -> bool:
        """Damage an entry of a victim's journal, or the header of one of its segments."""
        victim, random = self._ground.victim(), self._ground.random
        if victim is None or victim.files is None:
            return False
        op = _recent_op(victim, random)
        place = victim.files.journal.index.get(op)
        if place is None:
            return False
        path = victim.files.journal.kept_records.path(place.segment)
        if random.randrange(_HEADER_ONE_IN) == 0:
            victim.machine.disk.rot(path, 0, SECTOR_BYTES, random)
        else:
            victim.damaged_ops.add(op)
            victim.machine.disk.rot(path, place.offset, place.extent_bytes, random)
        self._damaged(victim, f"{path}, op {op}")
        return True

    def _unreadable(self) -> bool:
        """Have sectors of a victim's journal fail each read, or one copy of any superblock."""
        random = self._ground.random
        return (
            self._unreadable_journal()
            if random.random() < _UNREADABLE_JOURNALS
            else self._unreadable_copy()
        )

    def _unreadable_journal(self) -> bool:
        """Sectors of an entry, or of the header of a segment."""
        victim, random = self._ground.victim(), self._ground.random
        if victim is None or victim.files is None:
            return False
        op = _recent_op(victim, random)
        place = victim.files.journal.index.get(op)
        if place is None:
            return False
        path, offset = victim.files.journal.kept_records.path(place.segment), place.offset
        if random.randrange(_HEADER_ONE_IN) == 0:
            offset = 0
        else:
            victim.damaged_ops.add(op)
        victim.machine.disk.make_unreadable(path, offset, 1)
        self._damaged(victim, f"{path} cannot be read at {offset}")
        return True

    def _unreadable_copy(self) -> bool:
        """One copy of a superblock, which is bad until it is written again."""
        replica = self._ground.replica()
        if not self._may_spoil_superblock(replica):
            return False
        at = self._ground.random.randrange(COPIES) * COPY_BYTES
        replica.machine.disk.make_unreadable(SUPERBLOCK, at, COPY_BYTES)
        self._damaged(replica, f"{SUPERBLOCK} cannot be read at {at}")
        return True

    def _rot_superblock(self) -> bool:
        """Damage one copy of the superblock, at most one for each process."""
        replica = self._ground.replica()
        if not self._may_spoil_superblock(replica):
            return False
        copy = self._ground.random.randrange(COPIES)
        replica.machine.disk.rot(SUPERBLOCK, copy * COPY_BYTES, COPY_BYTES, self._ground.random)
        self._damaged(replica, f"copy {copy} of the superblock")
        return True

    def _may_spoil_superblock(self, replica: WorldReplica) -> bool:
        """Whether this process has a superblock of which no copy is bad; one is from now on."""
        process, files = replica.process, replica.files
        if process is None or files is None or process in self._rotten:
            return False
        if files.superblock.exists:
            self._rotten.append(process)
        return files.superblock.exists

    def _damaged(self, replica: WorldReplica, what: str) -> None:
        """Half of the time, let the process come back to its damage at once."""
        self._ground.note(replica, f"has damage: {what}")
        process = replica.process
        if process is not None and process.is_alive and self._ground.random.random() < 0.5:
            self._ground.branches.counts[DAMAGE_MET] += 1
            process.kill()


def _recent_op(victim: WorldReplica, random: Random) -> int:
    """Return one of the last entries that a journal holds, 0 if it holds none."""
    held = [] if victim.files is None else held_ops(victim.files.journal)
    back = min(len(held) - 1, int(random.expovariate(1 / _OPS_BACK_MEAN)))
    return held[-1 - back] if held else 0
