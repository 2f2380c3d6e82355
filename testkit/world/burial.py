"""The end of a world: what still waits in it is closed, and may not complain.

A killed process runs no `finally` block, so its coroutines are kept, suspended, as long as the
world exists. Afterwards the interpreter has to close them, and they protest that they may not wait.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Iterable
from typing import Final

from testkit.world.loop import WorldLoop, WorldTask
from testkit.world.process import WorldProcess

# A coroutine that waits in a `finally` block has to be closed once more for each.
_CLOSINGS_MAX: Final = 50


def bury(processes: Iterable[WorldProcess]) -> None:
    """Close everything that waits in these processes, in silence."""
    known = list(processes)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for process in known:
                process.loop.abandon()
            for process in known:
                _close_all(process.loop)
            gc.collect()
    finally:
        logging.disable(logging.NOTSET)
        sys.unraisablehook = hook


def _close_all(loop: WorldLoop) -> None:
    """Close the tasks of a loop, and those that their `finally` blocks begin meanwhile.

    It counts as the running one. Otherwise asyncio would keep the new tasks on a loop of the
    test's own process, where they complain whenever somebody collects garbage.
    """
    closed = 0
    with loop.running():
        while len(tasks := loop.unfinished()) > closed:
            for task in tasks[closed:]:
                _close(task)
            closed = len(tasks)


def _close(task: WorldTask) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    for _ in range(_CLOSINGS_MAX):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # it waits again, in a `finally` block
        except Exception:
            return
        return
