"""Waiting for a disk that may hang: people are told, and a cancelled task waits for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, ParamSpec, TypeVar

from coordinator.scrub.ports import ScrubAlarm, ScrubAlarms
from viewstamp.cancellation import end_if_cancelled
from viewstamp.worker_thread import WorkerThread

# What a slice takes on a disk that works is a thousandth of this.
STALL_MS: Final = 30_000

Result = TypeVar("Result")
P = ParamSpec("P")


class PatientThread:
    """The scrubber's thread. Everything is called on the event loop."""

    def __init__(self, thread: WorkerThread, alarms: ScrubAlarms) -> None:
        self._thread = thread
        self._alarms = alarms
        self._is_told = False

    async def __call__(
        self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        """Run a blocking call. One that a cancelled task asks for, to clean up, is still run; but
        nobody waits for it."""
        running = self._thread.call(partial(call, *args, **kwargs))
        end_if_cancelled()
        return await self.wait_for(running)

    async def wait_for(self, running: asyncio.Future[Result]) -> Result:
        """Wait for a result; raise an alarm while that takes too long."""
        while not (await asyncio.wait([running], timeout=STALL_MS / 1000))[0]:
            self._is_told = True
            self._alarms.tell(
                ScrubAlarm.STALLED,
                f"a disk has not answered the scrubber for {STALL_MS} ms or more: nothing is"
                " scrubbed until it does; look at the disks of this replica and of its snapshot"
                " directories, and restart the replica once they answer",
            )
        if self._is_told:
            self._is_told = False
            self._alarms.clear(ScrubAlarm.STALLED)
        return running.result()
