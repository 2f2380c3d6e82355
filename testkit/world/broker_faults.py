"""Faults of brokers: they die, stand still, are cut off, resign, and lose their storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from testkit.world.ground import LASTS_MS, Ground

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.world_brokers import WorldBroker, WorldBrokers

_DEAD_MS: Final = (20, 4_000)
_RESIGNED_S: Final = (0.05, 2.0)


class BrokerFaults:
    """Each fault returns whether it happened."""

    def __init__(self, ground: Ground, brokers: WorldBrokers) -> None:
        self._ground = ground
        self._brokers = brokers
        self._paused: list[WorldProcess] = []
        self.strikes: Mapping[str, Callable[[], bool]] = {
            "kill_broker": self._kill,
            "pause_broker": self._pause,
            "cut_broker": self._cut,
            "resign_broker": self._resign,
            "lose_broker_disk": self._lose_disk,
        }

    def end(self) -> None:
        """Let all go on; their keeper starts those that are dead."""
        for process in self._paused:
            process.resume()
        self._paused.clear()

    def _one(self) -> WorldBroker | None:
        """Return a broker that runs, mostly one that leads something."""
        living = [each for each in self._brokers.all if each.is_alive]
        leading = [each for each in living if each.leads]
        return self._ground.random.choice((leading * 2) + living) if living else None

    def _kill(self) -> bool:
        """Let a broker die, and come back later."""
        broker = self._one()
        if broker is None:
            return False
        broker.kill()
        self._ground.later(_DEAD_MS, self._brokers.start, broker)
        return True

    def _lose_disk(self) -> bool:
        """Let a broker die, and come back without its data."""
        broker = self._one()
        if broker is None:
            return False
        broker.kill()
        broker.lose_disk()
        self._ground.later(_DEAD_MS, self._brokers.start, broker)
        return True

    def _pause(self) -> bool:
        broker = self._one()
        if broker is None or broker.process is None:
            return False
        broker.process.pause()
        self._paused.append(broker.process)
        self._ground.later(LASTS_MS, broker.process.resume)
        return True

    def _resign(self) -> bool:
        """Let a broker end its session in order, and begin another one later."""
        broker = self._one()
        if broker is None or broker.program is None:
            return False
        broker.program.leaves_for_s = self._ground.random.uniform(*_RESIGNED_S)
        return True

    def _cut(self) -> bool:
        """Cut a broker off from the cluster, from one replica, or from the other brokers."""
        broker = self._one()
        if broker is None:
            return False
        replicas = [each.machine.host for each in self._ground.replicas]
        others = [each.machine.host for each in self._brokers.all if each is not broker]
        random, host = self._ground.random, broker.machine.host
        hosts = random.choice((replicas, replicas, [random.choice(replicas)], others))
        links = [(host, other) for other in hosts] + [(other, host) for other in hosts]
        for link in links:
            self._ground.world.network.cut(*link)
        self._ground.later(LASTS_MS, self._heal, links)
        return bool(links)

    def _heal(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self._ground.world.network.heal(*link)
