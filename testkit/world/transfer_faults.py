"""State transfers whose sources are struck: what a replica fetches from the others ends midway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from testkit.partitions import between
from testkit.world.branches import TRANSFER_BEGAN
from testkit.world.ground import Ground

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica

_WITHIN_MS: Final = (0, 20)
_LASTS_MS: Final = (20, 2_000)


class TransferFaults:
    """The fault waits for the next transfer, and returns whether one can come."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._awaited: Random | None = None
        self.strikes: Mapping[str, Callable[[], bool]] = {"struck_transfer": self._await}
        ground.world.logged.append(self._logged)

    def end(self) -> None:
        """Strike no transfer any more."""
        self._awaited = None

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
                self._ground.later(_WITHIN_MS, self._strike, replica, random)

    def _strike(self, fetching: WorldReplica, random: Random) -> None:
        """Kill all others, or cut the one that fetches off from them for a while."""
        self._ground.random = random
        self._ground.note(fetching, "has the sources of its transfer struck")
        others = [each for each in self._ground.replicas if each is not fetching]
        if random.random() < 0.5:
            for each in others:
                if each.process is not None:
                    each.process.kill()
            return
        links = between([[fetching.number], [each.number for each in others]])
        self._ground.cut(links)
        self._ground.later(_LASTS_MS, self._ground.heal, links)
