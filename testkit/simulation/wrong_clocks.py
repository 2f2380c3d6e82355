"""Clocks that are wrong: they jump, drift, or are wrong from the start.

At most a minority of the voters has a wrong clock, the same ones throughout a run, and of two
voters one. Clocks of standbys may be wrong at any time. What is drawn here is drawn apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from testkit.simulation.options import FaultKind

if TYPE_CHECKING:
    from testkit.simulation.machine import Machine
    from testkit.simulation.simulation import Simulation

US_PER_S: Final = 1_000_000
# How wrong the clocks are that count as right.
CLOCK_SKEW_US_MAX: Final = 2 * US_PER_S
# Within the bound and beyond it: seconds, an hour, ten years.
JUMPS_S: Final = (5, 15, 3_600, 315_360_000)
DRIFTS_PER_MILLE: Final = (-900, -200, 200, 5_000)
WRONG_FROM_THE_START_SHARE: Final = 0.5
# How often the clock of whoever makes op 1 is among them, beside chance.
BOOTSTRAP_SHARE: Final = 0.5
RIGHT_AGAIN_SHARE: Final = 0.3
# A process that starts on a wrong clock believes it at once.
RESTART_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class WrongClock:
    """How wrong a clock is: it jumped so far, and since then it drifts."""

    jump_us: int = 0
    drift_per_mille: int = 0
    since_ms: int = 0

    def ahead_us(self, now_ms: int) -> int:
        """Return how far it is ahead."""
        return self.jump_us + (now_ms - self.since_ms) * self.drift_per_mille


class WrongClocks:
    """The wrong clocks of one run."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._random = Random(f"{world.options.seed} clocks")
        self._has_kind = FaultKind.CLOCK_JUMP in world.options.faults
        self._victims = self._drawn_victims()

    def _drawn_victims(self) -> list[Machine]:
        count = self._world.options.replica_count
        voters = self._random.sample(range(count), max(1, (count - 1) // 2))
        if 0 not in voters and self._random.random() < BOOTSTRAP_SHARE:
            voters[0] = 0
        standbys = range(count, self._world.options.machine_count)
        return [self._world.machines[index] for index in (*voters, *standbys)]

    def begin(self) -> None:
        """Let clocks be wrong before anything starts, if the seed has that."""
        if self._has_kind and self._random.random() < WRONG_FROM_THE_START_SHARE:
            for machine in self._victims:
                self._set_wrong(machine)

    def strike(self) -> str:
        """Set a clock: wrong, or right again; return what to count."""
        machine = self._random.choice(self._victims)
        if machine.wrong_clock != WrongClock() and self._random.random() < RIGHT_AGAIN_SHARE:
            machine.wrong_clock = WrongClock()
        else:
            self._set_wrong(machine)
        may_restart = FaultKind.CRASH in self._world.options.faults
        if may_restart and self._random.random() < RESTART_SHARE:
            machine.crash(reason="its clock was set")
        return "fault clock_jump"

    def stop(self) -> None:
        """Let all clocks be right."""
        for machine in self._victims:
            machine.wrong_clock = WrongClock()

    def _set_wrong(self, machine: Machine) -> None:
        drift = self._random.choice((0, 0, self._random.choice(DRIFTS_PER_MILLE)))
        sign = self._random.choice((-1, 1, 1))  # log time never goes back: forwards is worse
        jump_us = self._random.choice(JUMPS_S) * sign * US_PER_S
        machine.wrong_clock = WrongClock(jump_us, drift, self._world.schedule.now_ms)
        self._world.trace.note(machine.name, "fault", "clock", machine.wrong_clock)
