"""The broker programs of a run, their keeper, and their judge (docs/brokers.md).

They are judged by what the library tells them, through every fault of the cluster and of their own:
they die, pause, are cut off, resign, lose their storage, and come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Final
from unittest import mock

from coordinator.gateway import member_checks
from testkit.world.broker_acts import BrokerActs
from testkit.world.broker_book import BrokerBook
from testkit.world.broker_disks import BrokerDisk
from testkit.world.broker_judge import BrokerJudge
from testkit.world.broker_keeper import BrokerKeeper
from testkit.world.broker_programs import TIMEOUT_MS, BrokerLives, BrokerStage
from testkit.world.broker_records import AcknowledgedRecords
from testkit.world.broker_wire import BrokerWire
from testkit.world.process import telling
from testkit.world.schedule import NS_PER_MS
from viewstamp import limits
from viewstamp.client import broker_session

if TYPE_CHECKING:
    from testkit.world.clients import Access
    from testkit.world.process import WorldMachine, WorldProcess
    from testkit.world.world import World

_TIMEOUT_NS: Final = TIMEOUT_MS * NS_PER_MS
_HEARTBEAT_MS: Final = 300
_CHECK_INTERVAL_MS: Final = 250
_RACKS: Final = ("a", "b", "a", "c")
# A run takes seconds, in which none of the product's times would pass.
_SHORT: Final = (
    (limits, "BROKER_TIMEOUT_MIN_US", 100_000),
    (limits, "BROKER_HEARTBEAT_MS", _HEARTBEAT_MS),
    (broker_session, "BROKER_HEARTBEAT_MS", _HEARTBEAT_MS),
    (member_checks, "MEMBER_CHECK_INTERVAL_MS", _CHECK_INTERVAL_MS),
)


@contextmanager
def short_broker_times() -> Iterator[None]:
    """Let silent brokers be fenced within a second or two."""
    with ExitStack() as stack:
        for module, name, value in _SHORT:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


class WorldBroker:
    """One broker: its machine and its disk, and the process that runs there now."""

    def __init__(
        self, name: str, rack: str, machine: WorldMachine, storage_ids: Iterator[str]
    ) -> None:
        self.name = name
        self.machine = machine
        self.disk = BrokerDisk(next(storage_ids))
        self.process: WorldProcess | None = None
        self.program: BrokerLives | None = None
        self.rack = rack
        self._storage_ids = storage_ids

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.is_alive

    @property
    def leads(self) -> bool:
        """Whether it leads anything, as far as it knows."""
        session = None if self.program is None else self.program.session
        return session is not None and bool(session.leads)

    def kill(self) -> None:
        """End its process as SIGKILL does."""
        if self.process is not None:
            self.process.kill()

    def lose_disk(self) -> None:
        """Have another, empty disk in place of its own; its process must be dead."""
        self.disk = BrokerDisk(next(self._storage_ids))


class WorldBrokers:
    """All brokers of a run. `failed` is told of each that ended by an error.

    `leading` tells who leads the cluster, in which view.
    """

    def __init__(
        self, world: World, failed: Callable[[str], None], leading: Callable[[], object]
    ) -> None:
        self.all: list[WorldBroker] = []
        self.names: Sequence[str] = ()
        self.records = AcknowledgedRecords()
        self.book = BrokerBook(world)
        self.acts = BrokerActs(world.schedule, self.book)
        self.judge = BrokerJudge(self.book, self.acts, self.records, _TIMEOUT_NS)
        self.keeper: BrokerKeeper | None = None
        self._world = world
        self._failed = failed
        self._leading = leading
        self._stage: BrokerStage | None = None
        self._keeping: WorldProcess | None = None
        self._is_quiet = self._is_ending = False
        self._held: set[str] = set()

    # --- Life ---

    def begin(self, access: Access, brokers_count: int, *, is_busy: bool) -> None:
        """Start so many, and their keeper; it changes things by itself if it is busy."""
        if not brokers_count:
            return
        world = self._world
        self._stage = BrokerStage(
            access,
            world.schedule,
            BrokerWire(world),
            self.records,
            self.book,
            self.acts,
            self.judge,
        )
        storage_ids = (f"disk-{number}" for number in count())
        for number in range(brokers_count):
            machine = world.machine(f"10.0.100.{number + 1}")
            self.all.append(WorldBroker(f"b{number}", _RACKS[number], machine, storage_ids))
        self.names = tuple(each.name for each in self.all)
        self._begin_keeper(is_busy)
        for broker in self.all:
            self.start(broker)

    def _begin_keeper(self, is_busy: bool) -> None:
        assert self._stage is not None, "they have begun"
        seed = self._world.schedule.random.getrandbits(64)
        self.keeper = keeper = BrokerKeeper(seed, self._stage, self, _TIMEOUT_NS, is_busy)
        process = self._world.process("bk", self._world.machine("10.0.100.100"))
        process.ended = telling(self._failed, "the keeper of brokers")
        self._keeping = process
        process.run(lambda: keeper.run(process))

    def start(self, broker: WorldBroker) -> None:
        """Start a broker that does not run, unless it has ended for good."""
        if broker.is_alive or broker.name in self._held or self._has_ended(broker):
            return
        assert self._stage is not None, "they have begun"
        process = self._world.process(broker.name, broker.machine)
        seed = self._world.schedule.random.getrandbits(64)
        name, host = broker.name, broker.machine.host
        program = BrokerLives(name, host, broker.rack, broker.disk, seed, self._stage)
        program.is_quiet, program.is_ending = self._is_quiet, self._is_ending
        broker.process, broker.program = process, program
        process.ended = telling(self._failed, f"broker {name}")
        process.run(program.run)

    def _has_ended(self, broker: WorldBroker) -> bool:
        return self._is_ending and broker.program is not None and broker.program.is_ending

    def end(self) -> None:
        """Let the keeper see to the end."""
        for broker in self.all:
            self.start(broker)
        if self.keeper is not None:
            self.keeper.is_ending = True

    @property
    def are_over(self) -> bool:
        """Whether the keeper and each broker have ended."""
        keeping = self._keeping is not None and self._keeping.is_alive
        return not keeping and not any(each.is_alive for each in self.all)

    @property
    def processes(self) -> Sequence[WorldProcess]:
        """Those that run now."""
        return [each.process for each in self.all if each.process and each.is_alive]

    # --- For their keeper ---

    @property
    def are_settled(self) -> bool:
        """Whether each runs, and everything that it leads is acknowledged and reported."""
        programs = [each.program for each in self.all if each.is_alive]
        return len(programs) == len(self.all) and all(p and p.is_settled for p in programs)

    @property
    def leading(self) -> object:
        """Who leads the cluster, in which view; compared alone."""
        return self._leading()

    def quiet(self) -> None:
        """Have them write no more records."""
        self._is_quiet = True
        for broker in self.all:
            if broker.program is not None:
                broker.program.is_quiet = True

    def kill(self, name: str) -> None:
        """Kill a broker for good."""
        self._held.add(name)
        self.named(name).kill()

    def dismiss(self) -> None:
        """Let all end in order that run."""
        self._is_ending = True
        for broker in self.all:
            if broker.program is not None:
                broker.program.is_ending = True

    def named(self, name: str) -> WorldBroker:
        """Return a broker by its name."""
        return next(each for each in self.all if each.name == name)

    # --- The verdict ---

    def violations(self) -> list[str]:
        """Return what is wrong with what the brokers were told."""
        if self.keeper is None:
            return []
        disks = {
            row.id: (row.name, self.named(row.name).disk)
            for row in self.book.now.brokers.values()
            if row.name in self.names
        }
        return [*self.keeper.failures, *self.judge.violations(disks)]

    @property
    def fenced_silent(self) -> int:
        """How many epochs of brokers ended without a resignation."""
        return len(self.book.fenced_ns.keys() - self.acts.resigned)

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged."""
        return sum(self.records.counts.values())
