"""The parts of the world: clocks, turns, threads, pauses and deaths.

Method: small coroutines in processes of a world, which note what they see and when.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from testkit.oracles.history import Operation
from testkit.world.process import WorldThread
from testkit.world.schedule import NS_PER_MS, NS_PER_S, WorldSchedule
from testkit.world.workload import Callers, Heard
from testkit.world.world import World
from tests.testkit.world.passing import pass_ms, started
from viewstamp.worker_thread import DiskHangsError


@pytest.fixture
def world() -> Iterator[World]:
    """Give a world that is below everything."""
    world = World(7)
    with world.running():
        yield world


class Left:
    """What only the collector finds, and what then draws and logs, as a closed coroutine may."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        random.random()
        logging.getLogger().error("the past speaks")


def test_what_earlier_worlds_left_touches_no_run() -> None:
    """Garbage of an earlier world stays while the next one has a transcript and chance."""

    def seen() -> tuple[float, str]:
        later = World(7)
        with later.running():
            return random.random(), later.schedule.digest

    expected = seen()
    gc.disable()
    try:
        Left()
        assert seen() == expected
    finally:
        gc.enable()


def test_sleeping_takes_virtual_time(world: World) -> None:
    """An hour passes at once, and every clock of the machine has moved by it."""
    seen: list[float] = []

    async def main() -> None:
        begun = (time.monotonic(), time.time(), asyncio.get_running_loop().time())
        await asyncio.sleep(3_600)
        ended = (time.monotonic(), time.time(), asyncio.get_running_loop().time())
        seen.extend(after - before for before, after in zip(begun, ended, strict=True))

    process = started(world, "10.0.0.1", main)
    assert world.run(lambda: not process.is_alive, 3_700 * NS_PER_S)
    assert seen == pytest.approx([3_600] * 3, abs=0.1)


def test_clocks_of_machines_differ(world: World) -> None:
    """Two machines disagree a little about the time of day, and their clocks drift apart."""
    seen: dict[str, list[int]] = {"10.0.0.1": [], "10.0.0.2": []}

    def main_of(host: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def main() -> None:
            for _ in range(2):
                seen[host].append(time.time_ns())
                await asyncio.sleep(1_000)

        return main

    processes = [started(world, host, main_of(host)) for host in seen]
    assert world.run(lambda: not any(p.is_alive for p in processes), 2_100 * NS_PER_S)
    first, second = seen.values()
    assert first[0] != second[0]
    assert abs(first[0] - second[0]) < NS_PER_S


def test_randomness_comes_from_the_seed() -> None:
    """What a process draws from the operating system is the same in each run of a seed."""
    drawn = []

    async def main() -> None:
        drawn.append((os.urandom(8), secrets.token_hex(8), random.random()))

    for seed in (1, 1, 2):
        world = World(seed)
        with world.running():
            started(world, "10.0.0.1", main)
            world.run(lambda: bool(len(drawn) % 3), NS_PER_S)
            pass_ms(world, 10)
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize("bounds", [(0, 0), (1, 2), (-5, 5), (20_000, 2_000_000), (0, 1 << 40)])
def test_a_schedule_draws_as_the_standard_library_does(bounds: tuple[int, int]) -> None:
    """Its own way of drawing is faster, and has the same results."""
    schedule, other = WorldSchedule(5), random.Random(5)

    assert [schedule.draw(*bounds) for _ in range(200)] == [
        other.randint(*bounds) for _ in range(200)
    ]


def test_a_killed_process_does_nothing_more(world: World) -> None:
    """Neither a `finally` block nor a callback runs after a kill."""
    seen: list[str] = []

    async def main() -> None:
        try:
            while True:
                await asyncio.sleep(0.001)
                seen.append("alive")
        finally:
            seen.append("finally")

    process = started(world, "10.0.0.1", main)
    pass_ms(world, 20)
    process.kill()
    before = list(seen)
    pass_ms(world, 20)
    assert before
    assert seen == before
    assert set(seen) == {"alive"}


def test_a_paused_process_goes_on_where_it_was(world: World) -> None:
    """A pause is not noticed by the process itself, but for the clock."""
    seen: list[int] = []

    async def main() -> None:
        while True:
            seen.append(world.schedule.now_ns // NS_PER_MS)
            await asyncio.sleep(0.001)

    process = started(world, "10.0.0.1", main)
    pass_ms(world, 10)
    process.pause()
    count = len(seen)
    pass_ms(world, 50)
    assert len(seen) == count
    process.resume()
    pass_ms(world, 10)
    assert len(seen) > count
    assert seen[count] - seen[count - 1] >= 50


def test_a_thread_works_before_it_reports(world: World) -> None:
    """A process that is killed between the two has done the work without knowing it."""
    done: list[int] = []
    known: list[int] = []

    async def main() -> None:
        await asyncio.to_thread(done.append, world.schedule.now_ns)
        known.append(world.schedule.now_ns)

    for _ in range(10):
        process = started(world, "10.0.0.1", main)
        count = len(done)
        assert world.run(lambda count=count: len(done) > count, NS_PER_S)  # type: ignore[misc]
        process.kill()
    pass_ms(world, 50)
    assert len(done) == 10
    assert known == []


def test_a_thread_may_wait_for_its_event_loop(world: World) -> None:
    """A call in a thread gets the result of a coroutine that takes its time on the loop."""
    seen: list[int] = []

    async def slow() -> int:
        await asyncio.sleep(0.05)
        return 5

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call = asyncio.run_coroutine_threadsafe
        seen.append(await asyncio.to_thread(lambda: call(slow(), loop).result()))

    process = started(world, "10.0.0.1", main)
    assert world.run(lambda: not process.is_alive, NS_PER_S)
    assert seen == [5]


def test_a_waiting_thread_dies_with_its_process(world: World) -> None:
    """A thread that waits for its loop in vain ends when the process is killed."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call = asyncio.run_coroutine_threadsafe
        await asyncio.to_thread(lambda: call(asyncio.sleep(1_000), loop).result())

    process = started(world, "10.0.0.1", main)
    world.schedule.after(100 * NS_PER_MS, process.kill)
    assert world.run(lambda: not process.is_alive, NS_PER_S)


def test_a_hanging_disk_never_answers(world: World) -> None:
    """A call in a thread of a process whose disk hangs does nothing, and a closing says so."""
    done: list[int] = []
    ends: list[BaseException | None] = []

    async def main() -> None:
        thread = WorldThread("journal", process)
        process.hangs = True
        call = thread.call(lambda: done.append(1))
        await asyncio.sleep(100)
        assert not call.done()
        thread.close()

    process = world.process("p", world.machine("10.0.0.1"))
    process.ended = ends.append
    process.run(main)
    assert world.run(lambda: not process.is_alive, 200 * NS_PER_S)
    assert isinstance(ends[0], DiskHangsError)
    assert done == []


def test_callers_that_vanish_leave_their_writes_open(world: World) -> None:
    """A write under way may have happened or not; a read under way tells nothing."""
    heard = Heard()
    callers = Callers(world, 1, 7, heard, only_reads=False)
    written, read = Operation(1, "create", 5, 10), Operation(2, "get", 0, 20)
    callers.under_way = {1: ("key-0", written), 2: ("key-1", read)}
    callers.vanish()
    assert heard.operations == [("key-0", written)]
    assert heard.unknown == 1


def test_blocking_is_refused(world: World) -> None:
    """What would stop the whole world is an error, and not a delay."""
    ends: list[BaseException | None] = []

    async def main() -> None:
        time.sleep(1)  # noqa: ASYNC251 - what is refused

    process = world.process("p", world.machine("10.0.0.1"))
    process.ended = ends.append
    process.run(main)
    assert world.run(lambda: not process.is_alive, NS_PER_S)
    assert isinstance(ends[0], AssertionError)


def test_only_a_healthy_cluster_owes_answers() -> None:
    """A call may fail under faults and shortly afterwards; later it is a complaint."""
    heard = Heard()
    heard.gave_up(1, "key", 100 * NS_PER_S)
    heard.healed_ns = 100 * NS_PER_S
    heard.gave_up(2, "key", 110 * NS_PER_S)
    heard.gave_up(3, "key", 130 * NS_PER_S)
    assert [call.partition(" on ")[0] for call in heard.neglected] == ["client 3"]
