"""One world: machines, processes and a network, driven by one schedule."""

from __future__ import annotations

import gc
import io
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from random import Random
from typing import Any, Final
from unittest import mock

from testkit.stand_in_transport import stand_in
from testkit.world.burial import bury
from testkit.world.grpc_transport import WorldTransport
from testkit.world.network import WorldNetwork
from testkit.world.process import WorldMachine, WorldProcess
from testkit.world.replaced import replaced
from testkit.world.schedule import NS_PER_S, WorldSchedule
from testkit.world.wire_transport import WorldWireTransport
from viewstamp.grpc_transport import Transport
from viewstamp.transports import GRPCIO, WIRE

# Wall clocks begin here: 1 January 2026, in seconds since 1970.
_BEGIN_S: Final = 1_767_225_600
_STEPS_PER_COLLECTION: Final = 100_000
# Many times what a long run takes.
STEPS_MAX: Final = 20_000_000
_DRIFT_PPM_MAX: Final = 200
_WALL_SKEW_NS_MAX: Final = NS_PER_S // 2
_TRANSPORTS: Final[Mapping[str, Callable[[World], Transport]]] = {
    GRPCIO: WorldTransport,
    WIRE: WorldWireTransport,
}


class NothingDue(Exception):  # noqa: N818  A state of the world, not an error of its parts.
    """Everything waits for something else."""


class TooManySteps(Exception):  # noqa: N818
    """The run goes on for ever."""


class Defect(Exception):  # noqa: N818  It is one of the programs that run in the world.
    """A process did what no fault explains."""


class World:
    """Use it within `running`; then nothing asks the real clock, or chance, or network."""

    def __init__(self, seed: int, transport: str = GRPCIO) -> None:
        """Carry calls by a transport of that name."""
        self.seed = seed
        self._transport = transport
        self.schedule = WorldSchedule(seed)
        self.chance = Random(self.schedule.random.getrandbits(64))
        self.network = WorldNetwork(self)
        self.authority: bytes | None = None
        """Whom clients trust, which then encrypt; None if nothing is encrypted."""
        self.current: WorldProcess | None = None
        """The process of which a handle or a call runs now."""
        self.processes: list[WorldProcess] = []
        """All, also the dead: they are kept so that no destructor runs anything of theirs."""
        self.slow_disks: dict[str, int] = {}
        """How many times slower the threads on a machine are, by host."""
        self.marks: Counter[str] = Counter()
        """How often each message was logged: what a run went through."""
        self.logged: list[Callable[[WorldProcess, str], None]] = []
        """Called with each message that a process logs, without its fields."""
        self.died: list[Callable[[WorldProcess], None]] = []
        """Called when a process dies, in whatever way."""
        self.failure: Exception | None = None
        """What ends the run at once."""
        self.defects: list[str] = []
        """What processes did that no fault explains."""
        self.ends_at_defects = False
        """Whether the first of them ends the run."""
        self._serial = 0

    # --- Parts ---

    def machine(self, host: str) -> WorldMachine:
        """Return a new machine, with a clock that is a little wrong and drifts."""
        draw = self.schedule.draw
        skew_ns = draw(-_WALL_SKEW_NS_MAX, _WALL_SKEW_NS_MAX)
        drift_ppm = draw(-_DRIFT_PPM_MAX, _DRIFT_PPM_MAX)
        return WorldMachine(self, host, drift_ppm=drift_ppm, wall_ns=_BEGIN_S * NS_PER_S + skew_ns)

    @property
    def true_us(self) -> int:
        """What a right wall clock would say, in microseconds since 1970."""
        return (_BEGIN_S * NS_PER_S + self.schedule.now_ns) // 1_000

    def process(self, name: str, machine: WorldMachine) -> WorldProcess:
        """Return a new process, which has nothing to do yet."""
        self.schedule.note(name, "starts")
        self.processes.append(WorldProcess(self, name, machine))
        return self.processes[-1]

    def next_serial(self) -> int:
        """Return a number that nothing else has."""
        self._serial += 1
        return self._serial

    def slowness_of(self, process: WorldProcess) -> int:
        """Return how many times slower than usual the threads of a process are."""
        return self.slow_disks.get(process.machine.host, 1)

    # --- Life ---

    @contextmanager
    def running(self) -> Iterator[None]:
        """Put this world below everything until the block ends."""
        with ExitStack() as stack:
            # First: what earlier worlds left may draw or log when it is collected.
            stack.enter_context(_collecting_by_hand())
            stack.enter_context(replaced(self))
            stack.enter_context(stand_in(_TRANSPORTS[self._transport](self)))
            stack.enter_context(redirect_stdout(io.StringIO()))  # lines for supervisors
            stack.enter_context(self._logging())
            stack.enter_context(self._burial())
            yield

    @contextmanager
    def inside(self, process: WorldProcess | None) -> Iterator[None]:
        """Say whose handle or call runs."""
        before, self.current = self.current, process
        try:
            yield
        finally:
            self.current = before

    def run(self, until: Callable[[], bool], limit_ns: int) -> bool:
        """Go on until a condition holds, at most for `limit_ns`; return whether it holds.

        Raises NothingDue, TooManySteps, and what `fail` was told.
        """
        end_ns = self.schedule.now_ns + limit_ns
        while not until():
            if self.schedule.now_ns >= end_ns:
                return False
            if self.schedule.steps >= STEPS_MAX:
                raise TooManySteps(f"the run has taken {STEPS_MAX} steps")
            if not self.schedule.step():
                raise NothingDue(f"nothing is due at {self.schedule.now_ns} ns")
            if self.failure is not None:
                raise self.failure
            if self.schedule.steps % _STEPS_PER_COLLECTION == 0:
                gc.collect()
        return True

    def fail(self, error: Exception) -> None:
        """End the run as soon as the handle under way has ended; the first failure counts."""
        if self.failure is None:
            self.failure = error
            self.schedule.note("world", f"fails: {error}")

    def defect(self, what: str) -> None:
        """Note what no fault explains; the run goes on, so that its end is judged, too."""
        self.defects.append(what)
        if self.ends_at_defects:
            self.fail(Defect(what))

    def uncaught(self, process: WorldProcess, context: dict[str, Any]) -> None:
        """Note what a process failed to catch."""
        error = context.get("exception")
        self.schedule.note(process.name, f"uncaught: {context['message']}: {error!r}")

    # --- The interpreter ---

    @contextmanager
    def _logging(self) -> Iterator[None]:
        """Have log records be lines of the transcript."""
        handler, root = _TranscriptHandler(self), logging.getLogger()
        level, handlers = root.level, root.handlers[:]
        root.handlers[:] = [handler]
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)

    @contextmanager
    def _burial(self) -> Iterator[None]:
        """Bury the dead in silence when the block ends."""
        try:
            yield
        finally:
            bury(self.processes)


@contextmanager
def _collecting_by_hand() -> Iterator[None]:
    """Let the world say when garbage is collected, and only its own.

    What was there before is set apart until the end. So a collection takes as long as the world is
    large, however much a thousand tests before it have left. Services set their state apart, too;
    here that would have it outlive the world.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        with mock.patch.object(gc, "freeze"):
            yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class _TranscriptHandler(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record with its fields."""
        process = self._world.current
        extra = getattr(record, "fields", None)
        text = f"{record.levelname.lower()} {record.getMessage()} {extra or ''}".rstrip()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._world.marks[f"{record.levelname.lower()} {record.msg}"] += 1
        if extra and "alarm" in extra:
            self._world.marks[f"{record.msg}: {extra['alarm']}"] += 1
        self._world.schedule.note("world" if process is None else process.name, text)
        if process is not None:
            for told in self._world.logged:
                told(process, str(record.msg))
