"""Long work in short steps. The event loop serves others between them.

One replica does everything on one loop. What takes it for long holds up heartbeats and whoever else
waits, so work that grows with a request is written as steps: a generator that yields where it may
be interrupted, and returns its result. It goes on for a slice at a time. What must not be divided
(nothing may be awaited between the look at a fence and a place in the log) is no such work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Final, Generic, TypeAlias, TypeVar

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]

# Heartbeats are due every 50 ms, and on a machine with more to do than processors a slice takes
# several times as long.
SLICE_MS: Final = 10
# A step is of so many items, each of which takes some microseconds.
STEP_ITEMS: Final = 128


class TimeSlice:
    """The time that work may take of the loop before it gives way."""

    def __init__(self) -> None:
        self._ends_s = time.perf_counter() + SLICE_MS / 1000

    @property
    def is_over(self) -> bool:
        """Whether others come first now."""
        return time.perf_counter() >= self._ends_s

    async def give_way(self) -> None:
        """Let the loop turn if the slice is over, and begin another."""
        if self.is_over:
            await asyncio.sleep(0)
            self._ends_s = time.perf_counter() + SLICE_MS / 1000


class SlicedWork(Generic[Result]):
    """Steps under way. `result` is there once they are done."""

    result: Result

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps = steps
        self.is_done = False

    def go_on(self) -> bool:
        """Work for one slice, and return whether the work is done. Errors of steps pass through."""
        own = TimeSlice()
        while not self.is_done:
            try:
                next(self._steps)
            except StopIteration as end:
                self.result, self.is_done = end.value, True
            else:
                if own.is_over:
                    break
        return self.is_done

    async def finish(self) -> Result:
        """Work until it is done, and let the loop turn between slices."""
        while True:
            if self.go_on():
                return self.result
            await asyncio.sleep(0)


def at_once(steps: Steps[Result]) -> Result:
    """Return the result of all steps without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
