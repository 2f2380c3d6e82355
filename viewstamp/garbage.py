"""When to collect garbage: in quiet moments, and never over the whole state.

Python's collector stops everything while it walks all objects, and a state has millions. So it does
not run by itself. Objects that survive a collection in a quiet moment are frozen: the collector
never walks them again. While commands flow, it walks only new objects, and so often that each walk
is short.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from viewstamp.limits import GARBAGE_INTERVAL_MS, GARBAGE_QUIET_MS


async def collect_when_quiet(activity: Callable[[], int]) -> None:
    """Control the collector until cancelled; the number from `activity` grows with garbage."""
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        await _watch(activity)
    finally:
        gc.unfreeze()
        gc.enable()


def spare_what_is_there() -> None:
    """Freeze what is in memory, such as a loaded state, if `collect_when_quiet` runs."""
    if not gc.isenabled():
        gc.freeze()


async def _watch(activity: Callable[[], int]) -> None:
    seen, is_clean, quiet_ms = activity(), True, 0
    while True:
        await asyncio.sleep(GARBAGE_INTERVAL_MS / 1000)
        now = activity()
        if now != seen:
            gc.collect(0)
            seen, is_clean, quiet_ms = now, False, 0
            continue
        quiet_ms += GARBAGE_INTERVAL_MS
        if quiet_ms >= GARBAGE_QUIET_MS and not is_clean:
            gc.collect()
            gc.freeze()
            is_clean = True
