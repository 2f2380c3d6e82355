"""When the core checks its timeouts: once they are due, or after it took in waiting messages.

A process that was held up, by its own work or by a machine without a free processor, finds
its timers due and its messages unread. A backup that checked its timers first would suspect a
primary whose heartbeats are still unread. Where one entry holds up all replicas, all backups would
do so at once. So a late backup takes in messages first, and only once. A late primary does not
wait, because its timers send the heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.base.clock import now_ticks
from viewstamp.limits import TICK_MS

# A tick this late means that the process was held up: normally ticks are 1 or 2 ms late.
LATE_MS: Final = 50
# Messages waiting in sockets reach the core within this, unless the process is held up again.
HEARING_MS: Final = 50


class Ticker:
    """The one timer of a replica. `hears_first` says whether messages go before a late tick."""

    def __init__(self, tick: Callable[[], None], hears_first: Callable[[], bool]) -> None:
        self._tick = tick
        self._hears_first = hears_first
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._hearing_until_s = 0.0

    def arm(self, at_ticks: int | None) -> None:
        """Tick at the given time and not before; None never ticks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_ticks is not None:
            delay_s = max(0, at_ticks - now_ticks()) * TICK_MS / 1000
            now_s = asyncio.get_running_loop().time()
            self._call_at(max(now_s + delay_s, self._hearing_until_s))

    def _call_at(self, due_s: float) -> None:
        self._due_s = due_s
        self._timer = asyncio.get_running_loop().call_at(due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        is_late = now_s - self._due_s > LATE_MS / 1000
        has_heard = self._due_s <= self._hearing_until_s
        if is_late and not has_heard and self._hears_first():
            self._hearing_until_s = now_s + HEARING_MS / 1000
            self._call_at(self._hearing_until_s)
        else:
            self._tick()
