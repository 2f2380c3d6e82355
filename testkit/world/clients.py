"""The client processes of a run. One that vanishes leaves its calls open, and another one comes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testkit.world.process import WorldProcess
from testkit.world.workload import Callers, Demands, Heard

if TYPE_CHECKING:
    from testkit.world.options import WorldOptions
    from testkit.world.world import World


@dataclass(frozen=True, slots=True)
class Access:
    """Where the replicas are at the moment, and how to log in."""

    addresses: list[str]
    password: str
    has_brokers: bool = False
    """Whether brokers are registered, or may be."""


class Clients:
    """All client processes. `failed` is told of each that ended by an error.

    With `demands` their callers call only as often as these say.
    """

    def __init__(
        self,
        world: World,
        options: WorldOptions,
        heard: Heard,
        failed: Callable[[str], None],
        demands: Demands | None = None,
    ) -> None:
        self.processes: list[WorldProcess] = []
        """Also those that have vanished."""
        self._world = world
        self._options = options
        self._heard = heard
        self._failed = failed
        self._demands = demands
        self._callers: dict[WorldProcess, Callers] = {}
        self._access: Access | None = None

    # --- Life ---

    def begin(self, access: Access) -> None:
        """Start as many as the options say. The first ones only read."""
        self._access = access
        for number in range(self._options.clients):
            self._begin(only_reads=number < self._options.readers)

    def rush(self, *, is_rushing: bool) -> None:
        """Let all callers ask again as soon as they are answered, or no longer."""
        for callers in self._callers.values():
            callers.is_rushing = is_rushing

    def crowd(self, callers: int) -> Callers:
        """Start a client with many callers, on keys of their own; it goes on until told to end."""
        return self._begin(only_reads=False, crowd=callers)

    def run_alone(self, main: Callable[[], Coroutine[Any, Any, None]]) -> WorldProcess:
        """Start a process of its own that is no client."""
        process = self._process()
        process.run(main)
        return process

    def vanish(self, process: WorldProcess) -> None:
        """Kill a client with all its callers; another one comes in its place."""
        callers = self._callers[process]
        process.kill()
        callers.vanish()
        self._begin(only_reads=callers.only_reads)

    def end(self) -> None:
        """Let every caller end after its call."""
        for callers in self._callers.values():
            callers.is_ending = True

    # --- What is seen from outside ---

    @property
    def are_over(self) -> bool:
        """Whether every client has ended."""
        return not any(process.is_alive for process in self._callers)

    @property
    def answered(self) -> int:
        """How many calls were answered."""
        return sum(callers.answered for callers in self._callers.values())

    def _begin(self, *, only_reads: bool, crowd: int = 0) -> Callers:
        access = self._access
        assert access is not None, "the clients have begun"
        process = self._process()
        seed = self._world.schedule.random.getrandbits(64)
        demand = None
        if self._demands is not None:
            demand = self._demands.reads if only_reads else self._demands.changes
        number = len(self.processes)
        options, addresses = self._options, list(access.addresses)
        callers = Callers(
            *(self._world, number, seed, self._heard, only_reads, demand),
            pauses_ms=options.pauses_ms,
            name_bytes=options.name_bytes,
        )
        self._callers[process] = callers
        names = [f"key-{key}" for key in range(options.keys)]
        if crowd:
            # Few callers share a key: a judge has to try the orders of what goes on at once.
            names = [f"key-{process.name}-{key}" for key in range(crowd)]
        count = crowd or options.callers
        process.run(lambda: callers.run(addresses, access.password, count, names))
        return callers

    def _process(self) -> WorldProcess:
        number = len(self.processes)
        process = self._world.process(f"c{number}", self._world.machine(f"10.0.1.{number + 1}"))
        process.ended = lambda error: self._ended(process, error)
        self.processes.append(process)
        return process

    def _ended(self, process: WorldProcess, error: BaseException | None) -> None:
        if error is not None:
            self._failed(f"client {process.name} failed: {error!r}")
