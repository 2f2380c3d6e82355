"""What still waits in a world at its end is closed, and nothing of it outlives the world."""

from __future__ import annotations

import asyncio
import gc

import pytest

from coordinator.snapshot.work import in_thread
from testkit.world.world import World
from tests.testkit.world.passing import pass_ms, started


async def wait_and_clean_up(steps: list[str]) -> None:
    """Wait for ever, and clean up in a thread at the end, as programs do with files."""
    try:
        await asyncio.Event().wait()
    finally:
        steps.append("cleans up")
        await in_thread(steps.append, "has cleaned up")


def tasks_alive() -> list[asyncio.Task[object]]:
    """Return the tasks of this process that are not done, wherever they were begun."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and not each.done()]


@pytest.mark.parametrize("is_killed", [False, True], ids=["at the end", "after a kill"])
def test_no_task_outlives_its_world(is_killed: bool) -> None:
    """A coroutine that begins more work when it is closed leaves no task behind."""
    steps: list[str] = []
    before = tasks_alive()
    world = World(1)
    with world.running():
        process = started(world, "a", lambda: wait_and_clean_up(steps))
        pass_ms(world, 10)
        if is_killed:
            process.kill()
    assert steps == ["cleans up"]
    del world, process
    assert [each for each in tasks_alive() if each not in before] == []
