"""A deadline that many waits share: one timer for all of them.

`asyncio.timeout` makes and cancels a timer for each wait. That was 7 % of what a unary command
cost the coordinator. Waits of one length end in the order in which they began, so the timer of the
oldest is enough.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, TypeVar

Result = TypeVar("Result")


class SharedDeadline:
    """Ends waits for futures that take longer than `timeout_ms`."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        # When each wait is over, in seconds of the loop's clock: the oldest is the first.
        # A plain dictionary would go over all that were removed before.
        self._ends: OrderedDict[asyncio.Future[Any], float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, future: asyncio.Future[Result]) -> Result:
        """Return the result of a future that nobody else waits for here.

        Raises TimeoutError after the time; the future is cancelled then, as it is when the caller
        is cancelled. A cancellation of the caller goes on, whatever else happens at that moment.
        """
        loop = asyncio.get_running_loop()
        self._ends[future] = loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_s, self._end_old, loop)
        try:
            return await future
        except asyncio.CancelledError:
            if future in self._ends or _is_cancelled():
                raise
            raise TimeoutError from None
        finally:
            self._ends.pop(future, None)

    def _end_old(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what waits for too long, and wait for the next."""
        now, self._timer = loop.time(), None
        while self._ends:
            future, end = next(iter(self._ends.items()))
            if end > now:
                self._timer = loop.call_at(end, self._end_old, loop)
                return
            del self._ends[future]  # its wait sees by this that its time is over
            future.cancel()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
