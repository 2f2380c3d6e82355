"""Starts processes in a world, and lets time pass."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from testkit.world.process import WorldProcess
from testkit.world.schedule import NS_PER_MS
from testkit.world.world import World


def started(world: World, host: str, main: Callable[[], Coroutine[Any, Any, None]]) -> WorldProcess:
    """Start a process on a machine of its own."""
    process = world.process(host, world.machine(host))
    process.run(main)
    return process


def pass_ms(world: World, milliseconds: int) -> None:
    """Let time pass; something must be due until then."""
    world.schedule.after(milliseconds * NS_PER_MS, lambda: None)
    end_ns = world.schedule.now_ns + milliseconds * NS_PER_MS
    world.run(lambda: world.schedule.now_ns >= end_ns, milliseconds * NS_PER_MS)
