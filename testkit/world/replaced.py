"""The clocks and the randomness of the standard library, and what is dear or rare, replaced.

Whoever asks gets the clock of the machine that the running process is on, and randomness of the
process's own. Also libraries ask here, so nothing is forgotten; only names that a module has bound
before (`from time import monotonic`) would be, and the product has none.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import time
from asyncio import events
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn
from unittest import mock

import argon2

from coordinator.snapshot import compaction
from testkit.memory_storage import SimulatedCrash
from testkit.world.schedule import NS_PER_S
from viewstamp import passwords
from viewstamp.telemetry import sampling

if TYPE_CHECKING:
    from testkit.world.world import World

# How many processors each machine has, since pools of threads are sized by it.
_PROCESSORS: Final = 2
_PROCESS_ID: Final = 1
# Chains of layers are merged sooner: a run has too few generations for the product's number.
_LAYERS_MAX: Final = 4
# Passwords at the least cost that there is: a run has dozens of logins, which took a fifth of it.
_CHEAP_HASHER: Final = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def _refused(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise AssertionError(f"{what} would block the world: it must go through an executor")

    return refuse


def _clocks(world: World) -> Mapping[str, Callable[..., Any]]:
    def monotonic_ns() -> int:
        process = world.current
        return world.schedule.now_ns if process is None else process.machine.monotonic_ns()

    def time_ns() -> int:
        process = world.current
        return world.schedule.now_ns if process is None else process.machine.time_ns()

    return {
        "monotonic_ns": monotonic_ns,
        "monotonic": lambda: monotonic_ns() / NS_PER_S,
        "perf_counter_ns": monotonic_ns,
        "perf_counter": lambda: monotonic_ns() / NS_PER_S,
        "thread_time_ns": monotonic_ns,
        "process_time_ns": monotonic_ns,
        "time_ns": time_ns,
        "time": lambda: time_ns() / NS_PER_S,
        "sleep": _refused("time.sleep"),
    }


def _waiting_thread(world: World) -> Callable[..., Any]:
    """Return what a thread does that waits for its event loop: the world goes on meanwhile."""
    result = concurrent.futures.Future.result

    def wait(future: concurrent.futures.Future[Any], timeout: float | None = None) -> Any:
        process = world.current
        while process is not None and not future.done():
            assert events._get_running_loop() is None, "an event loop waits for a thread"
            with world.inside(None):
                assert world.schedule.step(), "a thread waits, and nothing is due"
            if not process.is_alive:
                raise SimulatedCrash("the process of a waiting thread")
        return result(future, timeout)

    return wait


@contextmanager
def replaced(world: World) -> Iterator[None]:
    """Replace clocks and randomness until the block ends."""

    def entropy(size: int) -> bytes:
        process = world.current
        chance = world.chance if process is None else process.chance
        return chance.randbytes(size)

    state, state_of_ids = random.getstate(), sampling.GENERATOR.getstate()
    random.seed(world.seed)
    sampling.GENERATOR.seed(world.seed)
    with ExitStack() as stack:
        for name, clock in _clocks(world).items():
            stack.enter_context(mock.patch.object(time, name, clock))
        waiting = _waiting_thread(world)
        stack.enter_context(mock.patch.object(concurrent.futures.Future, "result", waiting))
        stack.enter_context(mock.patch.object(os, "urandom", entropy))
        # What `secrets` asks; it was bound when `random` was imported.
        stack.enter_context(mock.patch.object(random, "_urandom", entropy))
        stack.enter_context(mock.patch.object(os, "cpu_count", lambda: _PROCESSORS))
        stack.enter_context(mock.patch.object(os, "getpid", lambda: _PROCESS_ID))
        stack.enter_context(mock.patch.object(passwords, "HASHER", _CHEAP_HASHER))
        stack.enter_context(mock.patch.object(compaction, "COMPACT_LAYERS_MAX", _LAYERS_MAX))
        try:
            yield
        finally:
            random.setstate(state)
            sampling.GENERATOR.setstate(state_of_ids)
