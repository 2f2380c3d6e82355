"""The gateway's access to the files of generations never holds up the event loop."""

from __future__ import annotations

import asyncio
import threading

from coordinator.snapshot.provider import StoredSnapshots
from testkit.generation_builders import Sections, entities, memory, open_files

GIVE_UP_S = 10


async def test_whoever_lets_go_of_files_waits_for_garbage_in_a_thread() -> None:
    """Collecting garbage takes a while on a slow disk, so it runs in a thread."""
    files = open_files(memory())
    Sections(files).write(1, entities(1, 3))
    is_held, let_go, outcomes = threading.Event(), threading.Event(), list[bool]()

    def collect() -> None:
        with files.pins.mutex:
            is_held.set()
            outcomes.append(let_go.wait(GIVE_UP_S))

    collecting = threading.Thread(target=collect)
    async with StoredSnapshots(files).pinned(1) as pinned:
        assert pinned.files
        collecting.start()
        await asyncio.to_thread(is_held.wait)
        asyncio.get_running_loop().call_later(0.01, let_go.set)
    await asyncio.to_thread(collecting.join)
    assert outcomes == [True]
