"""Faults of processes: they die, pause, hang, are slow, stay away, and callers vanish.

And of the clock that they see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from testkit.world.ground import LASTS_MS, Ground
from testkit.world.schedule import NS_PER_S

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess

# Long enough for the others to drop what was missed.
_AWAY_MS: Final = (1_500, 8_000)
# A service that does not answer for 5 s makes its replica unfit.
_HANGS_MS: Final = (5_500, 9_000)
_SLOWNESS: Final = (10, 500)
# How long a name leads to where nobody is any more.
_NAME_TOLD_MS: Final = (0, 5_000)
_CROWD_CALLERS: Final = (20, 40)
_JUMPS_S: Final = (0, 30, 7_200, 315_360_000)


class ProcessFaults:
    """Each fault returns whether it happened."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._troubled: list[WorldProcess] = []
        self._is_clock_wrong = False
        self.strikes: Mapping[str, Callable[[], bool]] = {
            "kill": self._kill,
            "stop": lambda: self._ground.replica().stop(),
            "kill_service": self._kill_service,
            "kill_client": self._kill_client,
            "pause": self._pause,
            "pause_service": self._pause_service,
            "pause_client": self._pause_client,
            "hang_service": self._hang_service,
            "slow_service": self._slow_service,
            "away": self._away,
            "move": self._move,
            "step_down": self._step_down,
            "crowd": self._crowd,
            "clock": self._clock,
        }

    def end(self) -> None:
        """Let everything run at its pace again."""
        for process in self._troubled:
            process.slowness = 1
            process.resume()
        self._troubled.clear()
        for replica in self._ground.replicas:
            replica.tell_name()
            replica.come_back()
            if self._is_clock_wrong:
                replica.machine.jump_ns = 0

    def _kill(self) -> bool:
        process = self._ground.replica().process
        if process is None or not process.is_alive:
            return False
        process.kill()
        return True

    def _kill_service(self) -> bool:
        process = self._service()
        is_alive = process.is_alive
        process.kill()
        return is_alive

    def _service(self) -> WorldProcess:
        services = self._ground.replica().services
        return services[self._ground.random.choice(list(services))]

    def _kill_client(self) -> bool:
        """Let all callers of a client vanish; nobody learns what became of their calls."""
        process = self._ground.client()
        if process is None:
            return False
        self._ground.clients.vanish(process)
        return True

    def _crowd(self) -> bool:
        """Let many callers ask at once, for a while."""
        callers = self._ground.clients.crowd(self._ground.random.randint(*_CROWD_CALLERS))
        self._ground.later(LASTS_MS, setattr, callers, "is_ending", True)
        return True

    def _pause(self) -> bool:
        return self._pause_process(self._ground.replica().process)

    def _pause_service(self) -> bool:
        return self._pause_process(self._service())

    def _pause_client(self) -> bool:
        return self._pause_process(self._ground.caller())

    def _pause_process(self, process: WorldProcess | None) -> bool:
        """Stop a process at any await for a while."""
        if process is None or not process.is_alive:
            return False
        process.pause()
        self._troubled.append(process)
        self._ground.later(LASTS_MS, process.resume)
        return True

    def _hang_service(self) -> bool:
        """Stop a service for ever; after a while somebody kills it."""
        process = self._service()
        if not process.is_alive:
            return False
        process.pause()
        self._troubled.append(process)
        self._ground.later(_HANGS_MS, process.kill)
        return True

    def _slow_service(self) -> bool:
        """Let every step of a service take many times longer."""
        process = self._service()
        process.slowness = self._ground.random.randint(*_SLOWNESS)
        self._troubled.append(process)
        self._ground.later(LASTS_MS, setattr, process, "slowness", 1)
        return process.is_alive

    def _away(self) -> bool:
        """Keep a replica down for a while; the others go on without it."""
        ground = self._ground
        replica = ground.replica()
        if not all(each.is_wanted for each in ground.there):
            return False
        ground.note(replica, "stays away")
        replica.stay_away()
        ground.later(_AWAY_MS, replica.come_back)
        return True

    def _move(self) -> bool:
        """Have a replica come back at another address, and its name lead there later."""
        replica = self._ground.replica()
        replica.move()
        self._ground.note(replica, f"moves to {replica.machine.host}")
        self._ground.later(_NAME_TOLD_MS, replica.tell_name)
        return True

    def _step_down(self) -> bool:
        """Have a primary resign, as an operator would."""
        replica = self._ground.replica()
        if replica.process is None or not replica.is_primary:
            return False
        replica.resign()
        return True

    def _clock(self) -> bool:
        """Set the clock of a victim wrong, or right again: most clocks stay right."""
        replica = self._ground.victim()
        if replica is None:
            return False
        random = self._ground.random
        jump_s = random.choice(_JUMPS_S) * random.choice((-1, 1))
        self._ground.note(replica, f"clock is set {jump_s} s ahead")
        replica.machine.jump_ns = jump_s * NS_PER_S
        self._is_clock_wrong = True
        return True
