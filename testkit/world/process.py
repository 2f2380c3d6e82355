"""Simulated machines and the processes on them: turns, pauses, deaths, and work of threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from testkit.memory_storage import SimulatedCrash
from testkit.world.disk import WorldDisk
from testkit.world.loop import WorldLoop
from testkit.world.schedule import NS_PER_S, NS_PER_US
from viewstamp.worker_thread import DiskHangsError

if TYPE_CHECKING:
    from testkit.world.world import World

Result = TypeVar("Result")

# What one handle of an event loop takes.
_HANDLE_NS: Final = (2 * NS_PER_US, 40 * NS_PER_US)
# What a call in a thread takes, until it has done its work and until the loop hears of it.
_THREAD_NS: Final = (20 * NS_PER_US, 2_000 * NS_PER_US)
_DRIFT_PARTS: Final = 1_000_000


def telling(failed: Callable[[str], None], who: str) -> Callable[[BaseException | None], None]:
    """Return what a process calls at its end: it tells of an error, with who has failed."""

    def ended(error: BaseException | None) -> None:
        if error is not None:
            failed(f"{who} failed: {error!r}")

    return ended


class WorldMachine:
    """A machine: a disk, and a clock that was set once and drifts.

    `drift_ppm` is by how many parts in a million its clocks are too fast. `jump_ns` is how far a
    fault has set the wall clock ahead.
    """

    def __init__(self, world: World, host: str, *, drift_ppm: int = 0, wall_ns: int = 0) -> None:
        self.world = world
        self.host = host
        self.disk = WorldDisk()
        self.jump_ns = 0
        self._drift_ppm = drift_ppm
        self._wall_ns = wall_ns
        self._booted_ns = world.schedule.draw(NS_PER_S, 1_000_000 * NS_PER_S)

    def monotonic_ns(self) -> int:
        """Return nanoseconds since this machine was booted."""
        now_ns = self.world.schedule.now_ns
        return self._booted_ns + now_ns + now_ns * self._drift_ppm // _DRIFT_PARTS

    def time_ns(self) -> int:
        """Return nanoseconds since 1970, as this machine believes."""
        return self._wall_ns + self.jump_ns + self.monotonic_ns() - self._booted_ns

    def virtual_ns(self, monotonic_s: float) -> int:
        """Return the virtual time at which the monotonic clock will have reached a time."""
        # A microsecond more than needed, so that rounding never makes a timer early.
        passed_ns = int(monotonic_s * NS_PER_S) - self._booted_ns + NS_PER_US
        return passed_ns * _DRIFT_PARTS // (_DRIFT_PARTS + self._drift_ppm)


class WorldProcess:
    """One process: an event loop, threads, and the connections that end with it."""

    def __init__(self, world: World, name: str, machine: WorldMachine) -> None:
        self.world = world
        self.name = name
        self._encoded_name = name.encode()
        self.machine = machine
        self.is_alive = True
        self.paused_since_ns: int | None = None
        self.slowness = 1
        """How many times longer than usual each handle takes."""
        self.hangs = False
        """Whether calls in threads never return any more, as on a disk that does not answer."""
        # What a world has no use for is refused loudly by what asyncio defines.
        self.loop = WorldLoop(self)  # type: ignore[abstract]
        self.chance = Random(world.schedule.random.getrandbits(64))
        self.stalled_until_ns = 0
        """Until when calls in threads do not return, as on a disk that stands still."""
        self.ended: Callable[[BaseException | None], None] = lambda error: None
        """Called when the process has ended by itself."""
        self.killed: list[Callable[[], None]] = []
        """Called when the process dies, in whatever way."""
        self._lanes: dict[Any, Lane] = {}
        self._main: asyncio.Task[Any] | None = None
        self._has_turn = False
        self._busy_until_ns = 0

    def run(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Begin with a coroutine; the process ends when it does."""
        with self.world.inside(self):
            self._main = self.loop.start(main())
            self._main.add_done_callback(self._main_ended)

    def _main_ended(self, main: asyncio.Future[Any]) -> None:
        error = None if main.cancelled() else main.exception()
        self.world.schedule.note(self.name, f"ends: {error!r}" if error else "ends")
        self._die()
        self.ended(error)

    # --- Turns ---

    def wake(self) -> None:
        """Have the next handle get its turn."""
        if self._has_turn or not self.is_alive or self.paused_since_ns is not None:
            return
        self._has_turn = True
        schedule = self.world.schedule
        begin_ns = max(schedule.now_ns, self._busy_until_ns)
        schedule.at(begin_ns, self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        if not self.is_alive or self.paused_since_ns is not None or not self.loop.has_work:
            return
        schedule = self.world.schedule
        schedule.count_turn(self._encoded_name)
        self._busy_until_ns = schedule.now_ns + schedule.draw(*_HANDLE_NS) * self.slowness
        # What `inside` does; a context manager would take a twentieth of a run.
        world, before = self.world, self.world.current
        world.current = self
        try:
            self.loop.run_one()
        finally:
            world.current = before
        if self.loop.has_work:
            self.wake()

    # --- Faults ---

    def kill(self) -> None:
        """End the process as SIGKILL does: no more handle of it runs."""
        if self.is_alive:
            self.world.schedule.note(self.name, "is killed")
            self._die()

    def _die(self) -> None:
        self.is_alive = False
        self.loop.abandon()
        for hears in self.world.died:
            hears(self)
        for told in self.killed:
            told()
        self.killed.clear()

    def pause(self) -> None:
        """Stop at whatever it is doing, as SIGSTOP does."""
        if self.is_alive and self.paused_since_ns is None:
            self.world.schedule.note(self.name, "pauses")
            self.paused_since_ns = self.world.schedule.now_ns
            self.world.network.trouble(self)

    def resume(self) -> None:
        """Go on after a pause."""
        if self.paused_since_ns is not None:
            self.world.schedule.note(self.name, "goes on")
            self.paused_since_ns = None
            if self.loop.has_work:
                self.wake()
            for lane in self._lanes.values():
                lane.go_on()

    # --- Threads ---

    def lane_of(self, executor: Any, threads: int) -> Lane:
        """Return what runs the calls of an executor."""
        lane = self._lanes.get(executor)
        if lane is None:
            lane = self._lanes[executor] = Lane(self, threads)
        return lane


class Lane:
    """Threads that take calls in order. A call does its work at one time, and reports it later.

    So a process that is killed between the two has done the work without knowing it.
    """

    def __init__(self, process: WorldProcess, threads: int) -> None:
        self._process = process
        self._idle = threads
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()

    def submit(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Return a future of the result, or of what the function raises."""
        future: asyncio.Future[Result] = self._process.loop.create_future()
        self._waiting.append((function, future))
        self.go_on()
        return future

    def go_on(self) -> None:
        """Begin with what waits, as far as threads are idle and the process is not paused."""
        while self._idle and self._waiting and self._process.paused_since_ns is None:
            function, future = self._waiting.popleft()
            if not future.done():
                self._idle -= 1
                self._after(self._work, function, future)

    def finish(self) -> None:
        """Do at once everything that waits. Raises DiskHangsError."""
        if self._process.hangs:
            raise DiskHangsError("the simulated disk hangs")
        while self._waiting:
            function, future = self._waiting.popleft()
            _told(future, *_outcome(function))

    def _after(self, action: Callable[..., None], *arguments: Any) -> None:
        schedule = self._process.world.schedule
        delay_ns = schedule.draw(*_THREAD_NS) * self._process.world.slowness_of(self._process)
        schedule.after(delay_ns, action, *arguments)

    def _work(self, function: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        process = self._process
        if not process.is_alive or process.hangs:
            return
        if process.paused_since_ns is not None:
            self._after(self._work, function, future)
            return
        if process.stalled_until_ns > process.world.schedule.now_ns:
            process.world.schedule.at(process.stalled_until_ns, self._work, function, future)
            return
        with process.world.inside(process):
            try:
                outcome = _outcome(function)
            except SimulatedCrash:
                process.kill()
                return
        self._after(self._report, future, outcome)

    def _report(self, future: asyncio.Future[Any], outcome: tuple[Any, Any]) -> None:
        self._idle += 1
        if self._process.is_alive:
            self._process.loop.call_soon(_told, future, *outcome)
            self.go_on()


class WorldThread:
    """A `WorkerThread` of the running process: one thread, as the journal has."""

    def __init__(self, name: str, process: WorldProcess) -> None:
        self._lane = process.lane_of(name, 1)

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Return a future of the result, or of what the function raises."""
        return self._lane.submit(function)

    def abandon(self) -> None:
        """Wait for nothing: what was asked for is done later, if its process lives."""

    def close(self) -> None:
        """Finish the calls asked for. Raises DiskHangsError."""
        self._lane.finish()


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


def _told(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # whoever waited was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
