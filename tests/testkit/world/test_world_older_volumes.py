"""A volume is put back while those who know better restart: acknowledged commands must stay.

Method: one scene in a world of the real programs. The primary is cut off from one backup, the
witness, which hears from the other backup how far its directory comes, and gets no entries. Then
the other backup comes back with the volume from before, the witness restarts, and the primary is
away: only the memory of the witness keeps the two from going on without the entries between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest

from coordinator.app.disk_memory import DiskMemory
from testkit.memory_storage import Loss
from testkit.world.branches import REFUSED
from testkit.world.options import WorldOptions, flags
from testkit.world.run import WorldRun
from testkit.world.schedule import NS_PER_MS

if TYPE_CHECKING:
    from testkit.world.replica import WorldReplica

BEGIN_MS: Final = 1_000
PUT_BACK_MS: Final = 3_000
HEAL_MS: Final = 5_000


class OlderVolumeTrial:
    """The scene, in a run without other faults."""

    def __init__(self, seed: int) -> None:
        # A snapshot of the victim would give the witness most of what it lacks.
        options = WorldOptions(
            clients=2, callers=2, keys=2, seconds=7, faults=(), flags=flags(10_000)
        )
        self.run = WorldRun(seed, options)
        self.primary: WorldReplica
        self.victim: WorldReplica
        self.witness: WorldReplica
        self._later(BEGIN_MS, self._begin)

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.run.world.schedule.after(delay_ms * NS_PER_MS, action)

    def _begin(self) -> None:
        """Save the victim's volume, and cut the witness off from the primary."""
        primary = self.run.primary
        assert primary is not None, "nothing has happened yet"
        self.primary = primary
        self.victim, self.witness = (each for each in self.run.replicas if each is not primary)
        self._saved = self.victim.machine.disk.copy()
        self._saved.crash(Loss.DROP)
        for source, target in self._cuts():
            self.run.world.network.cut(source, target)
        self._later(PUT_BACK_MS - BEGIN_MS, self._put_back)
        self._later(HEAL_MS - BEGIN_MS, self._heal)

    def _cuts(self) -> list[tuple[str, str]]:
        one, other = self.primary.machine.host, self.witness.machine.host
        return [(one, other), (other, one)]

    def _put_back(self) -> None:
        """Leave the witness and the victim alone, which has its volume of before.

        The witness restarts, so that it knows only what is in its files.
        """
        self.primary.stay_away()
        self.witness.kill_all()
        self.victim.kill_all()
        self.victim.replace_disk(self._saved)

    def _heal(self) -> None:
        for source, target in self._cuts():
            self.run.world.network.heal(source, target)
        self.primary.come_back()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_a_witness_remembers_after_its_restart(seed: int) -> None:
    """The witness refuses the older volume, and goes on with the primary once that is back."""
    trial = OlderVolumeTrial(seed)
    outcome = trial.run.run()
    assert outcome.violations == []
    assert outcome.branches[REFUSED] == 1


async def _forget(_: DiskMemory) -> None:
    """Begin without what the process before knew."""


@pytest.mark.long
def test_a_memory_that_ends_with_its_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A witness that forgets goes on with the older volume, and the judges see what is lost."""
    monkeypatch.setattr(DiskMemory, "load", _forget)
    assert OlderVolumeTrial(1).run.run().violations != []
