"""What goes wrong in a world: processes die and pause, links are cut, machines lose power."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from coordinator import vsr
from testkit.memory_storage import Loss, MemoryStorage
from testkit.world.replica import WorldReplica, host_of
from testkit.world.schedule import NS_PER_MS

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.world import World

_EVERY_MS: Final = (100, 2_500)
# A short pause is a busy machine; a long one outlives every timeout.
_LASTS_MS: Final = (20, 8_000)
_STEPS_UNTIL_DEATH: Final = 40
_SLOWNESS_MAX: Final = 40


class Faults:
    """Draws faults until told to end; then everything is healed, started and fast again."""

    def __init__(
        self,
        world: World,
        replicas: Sequence[WorldReplica],
        clients: Sequence[WorldProcess],
        kinds: Sequence[str],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._replicas = replicas
        self._clients = clients
        self._random = Random(world.schedule.random.getrandbits(64))
        self._victim = self._random.choice(replicas)
        self._paused: list[WorldProcess] = []
        self._is_ending = False
        known: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "kill_in_io": self._kill_in_io,
            "kill_service": self._kill_service,
            "pause": self._pause,
            "pause_service": self._pause_service,
            "cut": self._cut,
            "isolate": self._isolate,
            "lose": self._lose,
            "power": self._power,
            "blackout": self._blackout,
            "lose_disk": self._lose_disk,
            "slow": self._slow,
            "cut_client": self._cut_client,
            "pause_client": self._pause_client,
            "step_down": self._step_down,
        }
        self._kinds = {kind: known[kind] for kind in kinds}

    def begin(self) -> None:
        """Begin to draw."""
        self._later(_EVERY_MS, self._next)

    def end(self) -> None:
        """Heal everything; no fault comes any more."""
        self._is_ending = True
        self._world.network.heal_all()
        self._world.slow_disks.clear()
        for replica in self._replicas:
            replica.machine.disk.crash_at = None
        for process in self._paused:
            process.resume()
        self._paused.clear()

    def _later(
        self, bounds_ms: tuple[int, int], action: Callable[..., object], *what: object
    ) -> None:
        delay_ms = self._random.randint(*bounds_ms)
        self._world.schedule.after(delay_ms * NS_PER_MS, self._unless_ended, action, *what)

    def _unless_ended(self, action: Callable[..., object], *what: object) -> None:
        if not self._is_ending:
            action(*what)

    def _next(self) -> None:
        kind = self._random.choice(list(self._kinds))
        self.counts[kind] += 1
        self._kinds[kind]()
        self._later(_EVERY_MS, self._next)

    def _replica(self) -> WorldReplica:
        """Return a replica; every second time the primary, if there is one."""
        primaries = [replica for replica in self._replicas if replica.is_primary]
        if primaries and self._random.random() < 0.5:
            return self._random.choice(primaries)
        return self._random.choice(self._replicas)

    # --- Processes ---

    def _kill(self) -> None:
        process = self._replica().process
        if process is not None:
            process.kill()

    def _kill_in_io(self) -> None:
        """Have the coordinator die between two steps of one of its calls to the disk."""
        disk = self._replica().machine.disk
        disk.crash_at = disk.steps + self._random.randint(0, _STEPS_UNTIL_DEATH)

    def _kill_service(self) -> None:
        services = self._replica().services
        services[self._random.choice(list(services))].kill()

    def _pause(self) -> None:
        process = self._replica().process
        if process is not None:
            self._pause_process(process)

    def _pause_service(self) -> None:
        services = self._replica().services
        self._pause_process(services[self._random.choice(list(services))])

    def _pause_client(self) -> None:
        clients = [each for each in self._clients if each.is_alive]
        if clients:
            self._pause_process(self._random.choice(clients))

    def _pause_process(self, process: WorldProcess) -> None:
        process.pause()
        self._paused.append(process)
        self._later(_LASTS_MS, process.resume)

    def _power(self) -> None:
        """Have a machine lose power, and with it a part of what was not synced."""
        self._lose_power(self._replica())

    def _blackout(self) -> None:
        """Have every machine lose power at once."""
        for replica in self._replicas:
            self._lose_power(replica)

    def _lose_power(self, replica: WorldReplica) -> None:
        self._world.schedule.note(f"r{replica.number}", "loses power")
        self._kill_all_of(replica)
        replica.machine.disk.crash(Loss.PARTLY, self._random.getrandbits(32))

    def _kill_all_of(self, replica: WorldReplica) -> None:
        for process in (*replica.services.values(), replica.process):
            if process is not None:
                process.kill()

    def _lose_disk(self) -> None:
        """Give one replica an empty disk: always the same one, or a committed entry may be gone."""
        if len(self._replicas) > 1:
            self._world.schedule.note(f"r{self._victim.number}", "loses its disk")
            self._kill_all_of(self._victim)
            self._victim.machine.disk = MemoryStorage()

    def _step_down(self) -> None:
        """Have a primary resign, as an operator would."""
        replica = self._replica()
        coordinator, process = replica.coordinator, replica.process
        if coordinator is not None and process is not None and len(self._replicas) > 1:
            process.loop.call_soon(coordinator.driver.step, vsr.Abdicate("asked to"))

    def _slow(self) -> None:
        """Slow the threads of one machine down, or those of all."""
        replicas = [self._replica()] if self._random.random() < 0.5 else self._replicas
        slowness = self._random.randint(2, _SLOWNESS_MAX)
        for host in [replica.machine.host for replica in replicas]:
            self._world.slow_disks[host] = slowness
            self._later(_LASTS_MS, self._world.slow_disks.pop, host, None)

    # --- Network ---

    def _cut(self) -> None:
        """Cut one link, in one direction or both."""
        if len(self._replicas) > 1:
            source, target = self._random.sample(self._replicas, 2)
            self._cut_between([(source.machine.host, target.machine.host)])

    def _cut_client(self) -> None:
        """Cut a client off from one replica, or from all."""
        client = self._random.choice(self._clients).machine.host
        replicas = list(self._replicas)
        if self._random.random() < 0.5:
            replicas = [self._replica()]
        self._cut_between([(client, replica.machine.host) for replica in replicas])

    def _isolate(self) -> None:
        """Cut one replica off from the others, or make it deaf or mute."""
        host = self._replica().machine.host
        others = [host_of(r.number) for r in self._replicas if host_of(r.number) != host]
        self._cut_between([(host, other) for other in others])

    def _cut_between(self, links: list[tuple[str, str]]) -> None:
        ways = self._random.choice(("there", "back", "both"))
        cut = [(b, a) if ways == "back" else (a, b) for a, b in links]
        if ways == "both":
            cut += [(b, a) for a, b in links]
        for source, target in cut:
            self._world.network.cut(source, target)
        self._later(_LASTS_MS, self._heal, cut)

    def _heal(self, cut: list[tuple[str, str]]) -> None:
        for source, target in cut:
            self._world.network.heal(source, target)

    def _lose(self) -> None:
        """Break every connection between a replica and another one, or a client."""
        host = self._replica().machine.host
        hosts = [replica.machine.host for replica in self._replicas]
        hosts += [client.machine.host for client in self._clients]
        other = self._random.choice([each for each in hosts if each != host])
        self._world.network.lose_connections(host, other)


KINDS: Final = (
    "kill",
    "kill_in_io",
    "kill_service",
    "pause",
    "pause_service",
    "cut",
    "isolate",
    "lose",
    "power",
    "blackout",
    "lose_disk",
    "slow",
    "cut_client",
    "pause_client",
    "step_down",
)
