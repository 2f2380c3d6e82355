"""A place that the cluster keeps for whoever shows life: a member of a group, or a broker.

The holder shows life at intervals. If it was not answered for its timeout it stops by itself: the
cluster may have given its place away. It counts from the moment at which the last call that was
answered was sent, the cluster from a later one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client.errors import ClientClosed, ClientError
from viewstamp.client.pulse import Pulse
from viewstamp.client.verdicts import Backoff, RetryVerdict, told_delay_s, verdict_on
from viewstamp.errors import Refusal

logger = logging.getLogger(__name__)

# A call is given this much while the holder has not been answered for its timeout.
_CALL_UNHEARD_S: Final = 1.0

T = TypeVar("T")


class Lease:
    """When its holder was answered last, and the task that shows life for it.

    `step` shows life once. `lose` is called when the holder may not count on its place any more,
    `end` with the failure that is final: one of the verdicts in `final`, or a defect.
    """

    def __init__(
        self,
        *,
        step: Callable[[], Awaitable[None]],
        lose: Callable[[], None],
        end: Callable[[BaseException], None],
        final: frozenset[RetryVerdict],
        timeout_s: float,
        interval_s: float,
        clock_s: Callable[[], float] | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        """Begin without an answer. Both durations count until an answer tells others.

        Holders with one `pulse` show life together.
        """
        self.timeout_s = timeout_s
        self.interval_s = interval_s
        self._step = step
        self._lose = lose
        self._fail = end
        self._final = final
        self._clock_s = clock_s or time.monotonic
        self._pulse = pulse or Pulse()
        self._heard_s: float | None = None
        self._wake = asyncio.Event()

    @property
    def now_s(self) -> float:
        """The time by its clock: give the one before a call to `hear` after its answer."""
        return self._clock_s()

    @property
    def is_heard(self) -> bool:
        """Whether the holder was answered lately enough to count on its place."""
        return self._left_s > 0

    def hear(self, sent_s: float) -> None:
        """Note that a call which was sent at that time was answered."""
        self._heard_s = sent_s

    def forget(self) -> None:
        """Note that the place is gone: nothing is left of what was heard."""
        self._heard_s = None

    def wake(self) -> None:
        """Have the next step at once."""
        self._wake.set()

    async def in_time(self, call: Awaitable[T]) -> T:
        """Await a call as long as the holder may count on its place. Raises TimeoutError."""
        async with asyncio.timeout(self._left_s if self.is_heard else _CALL_UNHEARD_S):
            return await call

    async def keep(self) -> None:
        """Show life until a failure that is final."""
        backoff = Backoff()
        while True:
            try:
                await self._step()
                backoff.reset()
                pause_s = self._pulse.pause_s(self.now_s, self.interval_s)
            except Refusal as refusal:
                if self._is_final(refusal):
                    self._fail(refusal)
                    return
                pause_s = max(told_delay_s(refusal), backoff.next_s())
            except ClientClosed as error:
                self._fail(error)
                return
            except (ClientError, TimeoutError) as error:
                logger.info("a sign of life was not answered: %r", error)
                pause_s = backoff.next_s()
            except Exception as error:
                # Else the program would wait for ever, and believe that it has what it lost.
                self._fail(error)
                raise
            await self._pause_and_look(pause_s)

    def _is_final(self, refusal: Refusal) -> bool:
        if refusal.reason == Reason.REASON_READ_DEADLINE:
            return False  # the primary lags, or is cut off
        return verdict_on(refusal) in self._final

    async def _pause_and_look(self, pause_s: float) -> None:
        """Pause, and give everything up once the holder was not answered for its timeout."""
        first_s = min(pause_s, max(0.0, self._left_s))
        if await self._is_woken_within(first_s):
            return
        if not self.is_heard:
            self._lose()
        await self._is_woken_within(pause_s - first_s)

    async def _is_woken_within(self, pause_s: float) -> bool:
        """Pause, unless the holder has something to tell; return whether it has."""
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    @property
    def _left_s(self) -> float:
        """How long the holder may still count on its place."""
        if self._heard_s is None:
            return 0.0
        return self._heard_s + self.timeout_s - self._clock_s()
