"""The disk as the scrubber uses it: one thread, slices with rests between them, and patience that
is told to people.

A read may take for ever, on a disk that hangs. No other read would fare better, so there is one
thread, nothing else waits for it, and people are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from coordinator.scrub.pace import HOLD_LOOK_MS, HOLD_MS_MAX, pause_ms
from coordinator.scrub.patience import PatientThread
from coordinator.scrub.ports import ScrubPorts
from coordinator.scrub.tally import ScrubTally

# Standing damage is looked at this often, also in a long rest; more often in a short interval.
RECHECK_MS: Final = 5_000
RECHECK_PARTS: Final = 10

Result = TypeVar("Result")


class SlowDisk:
    """Reads for one pass at a time. Everything is called on the event loop."""

    def __init__(self, ports: ScrubPorts, tally: ScrubTally, interval_ms: int) -> None:
        self._ports = ports
        self._tally = tally
        self._interval_ms = interval_ms
        self._recheck_ms = min(RECHECK_MS, interval_ms // RECHECK_PARTS)
        self._total_bytes = 1
        self._recheck: Callable[[], Awaitable[None]] | None = None
        self._rechecked_ms = 0
        self._thread = PatientThread(ports.thread, ports.alarms)

    def begin_pass(self, total_bytes: int) -> None:
        """Spread reads over the interval from now on; `total_bytes` is what the pass reads."""
        self._total_bytes = max(1, total_bytes)

    def recheck_with(self, recheck: Callable[[], Awaitable[None]]) -> None:
        """Have this done in rests, every RECHECK_MS or more often."""
        self._recheck = recheck

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run a blocking call in the scrubber's thread, at once."""
        return await self._thread(function)

    async def in_journal(self, function: Callable[[], Result]) -> Result:
        """Run a call in the journal's thread, between its writes."""
        return await self._thread.wait_for(asyncio.ensure_future(self._ports.writer.call(function)))

    def later(self, function: Callable[[], None]) -> None:
        """Run a call in the scrubber's thread behind those asked for; nobody waits for it."""
        self._ports.thread.call(function)

    async def read(self, function: Callable[[], tuple[int, Result]]) -> Result:
        """Read a slice as soon as the replica has nothing better to do, and rest.

        `function` returns how many bytes it has read, and what is returned here.
        """
        await self._hold()
        began_ms = self._ports.clock_ms()
        read_bytes, result = await self.call(function)
        self._tally.read_bytes += read_bytes
        read_ms = self._ports.clock_ms() - began_ms
        await self.rest(
            pause_ms(
                read_bytes,
                self._total_bytes,
                self._interval_ms,
                read_ms,
                is_busy=self._ports.is_busy(),
            )
        )
        return result

    async def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that may take long, such as a fetch from peers, with looks at standing damage."""
        running = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([running], timeout=self._recheck_ms / 1000))[0]:
                await self._look_again()
        finally:
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        running.result()

    async def rest(self, duration_ms: int) -> None:
        """Rest, with looks at standing damage."""
        end_ms = self._ports.clock_ms() + duration_ms
        left_ms = duration_ms
        while True:
            await asyncio.sleep(min(left_ms, self._recheck_ms) / 1000)
            await self._look_again()
            left_ms = end_ms - self._ports.clock_ms()
            if left_ms <= 0:
                return

    async def _look_again(self) -> None:
        now_ms = self._ports.clock_ms()
        if self._recheck is not None and now_ms - self._rechecked_ms >= self._recheck_ms:
            self._rechecked_ms = now_ms
            await self._recheck()

    async def _hold(self) -> None:
        for _ in range(HOLD_MS_MAX // HOLD_LOOK_MS):
            if not self._ports.is_held():
                return
            await self.rest(HOLD_LOOK_MS)
