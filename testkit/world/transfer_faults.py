"""State transfers that are struck midway: their sources, what they fetch, or who fetches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from coordinator.app.members import TRANSFER_FOLDER
from testkit.memory_storage import CAPACITY_BYTES
from testkit.partitions import between
from testkit.world.branches import TRANSFER_BEGAN
from testkit.world.ground import Ground
from testkit.world.replica import DIRECTORY
from testkit.world.snapshot_copies import spoil_all, spoil_one, whole_names

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica

_WITHIN_MS: Final = (0, 20)
_LASTS_MS: Final = (20, 2_000)
# Longer than a slow peer is waited for, and than a story waits for what must come meanwhile.
_STALLS_MS: Final = (40_000, 40_000)
_STALLS_AFTER_MS: Final = (30, 300)
# One is spoilt, and one is left.
_HEALTHY_MIN: Final = 2


class TransferFaults:
    """The fault waits for the next transfer, and returns whether one can come."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._awaited: Random | None = None
        self._stalled: list[WorldProcess] = []
        self.strikes: Mapping[str, Callable[[], bool]] = {"struck_transfer": self._await}
        self.ways: Mapping[str, Callable[[WorldReplica], None]] = {
            "die": self._die,
            "one": self._one,
            "stall": self._stall,
            "cut": self._cut,
            "copies": self._copies,
            "layers": self._layers,
            "partial": self._partial,
            "full": self._full,
            "sync": self._sync,
            "end": self._end,
        }
        """What may happen to the transfer of a replica."""
        ground.world.logged.append(self._logged)

    def end(self) -> None:
        """Strike no transfer any more, and let go on what stands still."""
        self._awaited = None
        for process in self._stalled:
            process.resume()
        self._stalled.clear()

    def strike(self, fetching: WorldReplica, way: str, random: Random) -> None:
        """Strike a transfer that is under way."""
        self._ground.random = random
        self._ground.note(fetching, f"has its transfer struck: {way}")
        self.ways[way](fetching)

    def _await(self) -> bool:
        """Have a victim lose its disk, which mostly makes it fetch a snapshot."""
        victim = self._ground.victim()
        if victim is None:
            return False
        self._awaited = Random(self._ground.random.getrandbits(64))
        self._ground.note(victim, "loses its disk")
        victim.give_empty_disk()
        return True

    def _logged(self, process: WorldProcess, message: str) -> None:
        if message != TRANSFER_BEGAN or self._awaited is None:
            return
        random, self._awaited = self._awaited, None
        self._ground.random = random
        for replica in self._ground.replicas:
            if replica.process is process:
                way = random.choice(list(self.ways))
                self._ground.later(_WITHIN_MS, self.strike, replica, way, random)

    def _others(self, fetching: WorldReplica) -> list[WorldReplica]:
        return [each for each in self._ground.replicas if each is not fetching]

    # --- Who sends ---

    def _die(self, fetching: WorldReplica) -> None:
        """Kill all others."""
        for each in self._others(fetching):
            if each.process is not None:
                each.process.kill()

    def _one(self, fetching: WorldReplica) -> None:
        """Kill one of those that send."""
        if (sending := self._one_that_sends(fetching)) is not None:
            sending.kill()

    def _stall(self, fetching: WorldReplica) -> None:
        """Let one of those that send stand still for a while, once it may have begun to send."""
        if (sending := self._one_that_sends(fetching)) is not None:
            self._stalled.append(sending)
            self._ground.later(_STALLS_AFTER_MS, sending.pause)
            self._ground.later(_STALLS_MS, sending.resume)

    def _one_that_sends(self, fetching: WorldReplica) -> WorldProcess | None:
        running = [each.process for each in self._others(fetching)]
        sending = [process for process in running if process is not None]
        return self._ground.random.choice(sending) if sending else None

    def _cut(self, fetching: WorldReplica) -> None:
        """Cut the one that fetches off from the others for a while."""
        links = between([[fetching.number], [each.number for each in self._others(fetching)]])
        self._ground.cut(links)
        self._ground.later(_LASTS_MS, self._ground.heal, links)

    def _copies(self, fetching: WorldReplica) -> None:
        """Spoil one copy of each file of all others: they repair it while they send."""
        for each in self._others(fetching):
            for name in whole_names(each.machine.disk):
                spoil_one(each.machine.disk, name, self._ground.random)

    def _layers(self, fetching: WorldReplica) -> None:
        """Spoil all copies on one replica that sends, of files that another one has whole, too.

        It is the same replica throughout a run, so that the others are left.
        """
        healthy = [each for each in self._ground.voters if not self._ground.is_victim(each)]
        if len(healthy) < _HEALTHY_MIN or fetching in healthy:
            return
        spoilt, *others = healthy
        ahead = [each for each in others if _is_as_far(each, spoilt)]
        kept = {name for each in ahead for name in whole_names(each.machine.disk)}
        for name in whole_names(spoilt.machine.disk):
            if name in kept:
                spoil_all(spoilt.machine.disk, name, self._ground.random)

    # --- Who fetches ---

    def _partial(self, fetching: WorldReplica) -> None:
        """Damage what was fetched so far."""
        disk, root = fetching.machine.disk, f"{DIRECTORY}/{TRANSFER_FOLDER}/"
        for path in [each for each in disk.paths() if each.startswith(root)]:
            content = bytearray(disk.content(path))
            content[self._ground.random.randrange(len(content))] ^= 1
            disk.replace(path, bytes(content))

    def _full(self, fetching: WorldReplica) -> None:
        """Leave no room for what is fetched, for a while."""
        disk = fetching.machine.disk
        disk.capacity_bytes -= disk.free_bytes("")
        self._ground.later(_LASTS_MS, setattr, disk, "capacity_bytes", CAPACITY_BYTES)

    def _sync(self, fetching: WorldReplica) -> None:
        """Let its next sync fail."""
        disk = fetching.machine.disk
        disk.failing_syncs.add(disk.syncs)

    def _end(self, fetching: WorldReplica) -> None:
        """Kill it; it goes on with what is there."""
        if fetching.process is not None:
            fetching.process.kill()


def _is_as_far(replica: WorldReplica, other: WorldReplica) -> bool:
    """Whether a replica restarts from the same snapshot as another one, or from a later one."""
    if replica.files is None or other.files is None:
        return False
    return replica.files.superblock.state.generation >= other.files.superblock.state.generation
