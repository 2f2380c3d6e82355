"""A supervised process: what its supervisor knows of its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from viewstamp.cluster.process import Program, Supervised

WAIT_S: Final = 20
READY: Final = "import time; print('{\"ready\": true}', flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def _told_by_the_loop() -> Iterator[None]:
    """Have the event loop itself ask for exit codes, as from Python 3.12 on, and no thread."""
    if sys.version_info >= (3, 12):
        yield
        return
    former = asyncio.get_child_watcher()
    asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    yield
    asyncio.set_child_watcher(former)


def until_a_zombie(pid: int) -> None:
    """Block until a process has ended and nobody has asked for its exit code."""
    ends_s = time.monotonic() + WAIT_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < ends_s


async def test_a_signal_to_one_that_just_died_hides_no_exit_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process is killed, and gets another signal before the event loop knows that; the supervisor
    tells of the kill, and starts it again."""
    changed = asyncio.Event()
    program = Program("sleeper", (sys.executable, "-c", READY))
    supervised = Supervised(program, tmp_path, os.environ, changed.set)

    async def ready() -> int:
        while not (supervised.is_ready and supervised.pid):
            changed.clear()
            await asyncio.wait_for(changed.wait(), WAIT_S)
        return supervised.pid

    supervised.start()
    first = await ready()
    with caplog.at_level(logging.WARNING):
        os.kill(first, signal.SIGKILL)
        until_a_zombie(first)
        supervised.send(signal.SIGTERM)
        assert await ready() != first
    assert [record.getMessage() for record in caplog.records] == [
        "sleeper was killed by SIGKILL: restarting"
    ]
    await supervised.stop(WAIT_S)
