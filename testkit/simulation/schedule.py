"""Simulated time: what happens when, in whole milliseconds, one thing after the other."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Schedule:
    """A queue of actions by time; those of one moment happen in the order they were asked for."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.steps = 0
        self._queue: list[tuple[int, int, Action]] = []
        self._asked = 0

    def after(self, delay_ms: int, action: Action) -> None:
        """Let `action` happen `delay_ms` from now."""
        self._asked += 1
        heapq.heappush(self._queue, (self.now_ms + max(0, delay_ms), self._asked, action))

    def step(self) -> bool:
        """Go on to the next action and let it happen; False if there is none."""
        if not self._queue:
            return False
        self.now_ms, _, action = heapq.heappop(self._queue)
        self.steps += 1
        action()
        return True
