"""Soft timers at the primary: have the services tell what has been silent for too long.

They begin anew with every primary, which cannot know what others heard. A process that stood still
heard nothing either, so no step counts for longer than the interval between checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.mux.types import Tenure
from viewstamp.limits import MEMBER_CHECK_INTERVAL_MS


class MemberChecks:
    """Asks in steps, while this replica leads."""

    def __init__(self, ask: Callable[[Tenure], None], clock_ms: Callable[[], int]) -> None:
        self._ask = ask
        self._clock_ms = clock_ms
        self._tenure = 0
        self._elapsed_ms = 0
        self._checked_ms = 0
        self._leads = False

    def begin(self) -> None:
        """Begin to count anew: this replica leads from now on."""
        self._tenure += 1
        self._elapsed_ms = 0
        self._checked_ms = self._clock_ms()
        self._leads = True

    def stop(self) -> None:
        """Ask nothing more: another replica leads, or will."""
        self._leads = False

    async def run(self) -> None:
        """Check, until cancelled."""
        while True:
            await asyncio.sleep(MEMBER_CHECK_INTERVAL_MS / 1000)
            self.check()

    def check(self) -> None:
        """Ask what has been silent, while this replica leads."""
        if not self._leads:
            return
        now_ms = self._clock_ms()
        self._elapsed_ms += min(now_ms - self._checked_ms, MEMBER_CHECK_INTERVAL_MS)
        self._checked_ms = now_ms
        self._ask(Tenure(self._tenure, self._elapsed_ms))
