"""The clocks of one process: wall time for the log, monotonic time for everything else."""

from __future__ import annotations

import time
from typing import Final

from viewstamp.limits import TICK_MS

_NS_PER_MS: Final = 1_000_000
_NS_PER_US: Final = 1_000


def monotonic_ms() -> int:
    """Return milliseconds since some moment; they never go back, and mean nothing elsewhere."""
    return time.monotonic_ns() // _NS_PER_MS


def monotonic_us() -> int:
    """Return the same in microseconds."""
    return time.monotonic_ns() // _NS_PER_US


def slice_clock_ns() -> int:
    """Return nanoseconds of the finest clock, which measures how long one thing has the loop."""
    return time.perf_counter_ns()


def now_ticks() -> int:
    """Return what `monotonic_ms` counts in ticks of the core."""
    return time.monotonic_ns() // (TICK_MS * _NS_PER_MS)


def wall_clock_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // _NS_PER_US
