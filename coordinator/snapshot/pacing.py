"""How much of the machine a snapshot takes while commands arrive.

The work on a generation is a series of small steps: read a section, write its layer, then the
manifest; the superblock, the journal and old files follow once it is completed. Without pauses they
queue with commands for processors, disk and interpreter, and a caller who requests one snapshot
after another would only get more of them if they became cheaper. So while commands arrive, the work
rests after each step for a multiple of the step's time, as log-structured merge trees limit the
rate of their merges. On a slow disk or a busy machine, steps take longer, and so do rests.

Some work never rests: that of an idle replica, where nobody would benefit; of a replica whose disk
is full or whose item log is long, which a snapshot relieves; of one that still writes what the
others have completed; and of a generation whose rests have used their part of the deadline. A rest
ends soon after commands do.

Replicas need not agree on timing: how long a snapshot takes has no influence on its content.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from viewstamp.limits import SNAPSHOT_DEADLINE_MS

# A rest takes this many times as long as the step before it: the work has a tenth of the time.
REST_FACTOR: Final = 9
# A short step has longer effects, as messages to services and commits of the file system, and each
# one delays a few commands: so there must not be many in a second.
REST_US_MIN: Final = 20_000
# A longer step has most likely waited for somebody.
REST_US_MAX: Final = 250_000
# The part of a generation's deadline that its rests may take together.
RESTS_PERCENT: Final = 25
# Without a command for this long there is nobody to rest for.
QUIET_US: Final = 10_000
# How long to watch for commands before the first step; an idle replica can spare that.
LISTEN_US: Final = 3_000

_PERCENT: Final = 100
_US_PER_MS: Final = 1_000
_US_PER_S: Final = 1_000_000
_NS_PER_US: Final = 1_000


class PacingSituation(NamedTuple):
    """What a rest depends on, beside the length of the step before it.

    `is_busy` while commands arrive, `is_urgent` if the work must get done whoever waits. `left_us`
    is what the rests of this generation may still take, in microseconds.
    """

    is_busy: bool
    is_urgent: bool
    left_us: int


def rest_us(step_us: int, situation: PacingSituation) -> int:
    """Return how many microseconds to rest after a step of `step_us`."""
    if situation.is_urgent or not situation.is_busy:
        return 0
    wanted_us = max(REST_US_MIN, min(step_us * REST_FACTOR, REST_US_MAX))
    return max(0, min(wanted_us, situation.left_us))


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the work on snapshots must know of commands; by default there are none.

    `applied` is the revision of the last applied one, `waiting` how many requests and prepares are
    under way, `is_urgent` whether the work must get done whoever waits.
    """

    applied: Callable[[], int] = lambda: 0
    waiting: Callable[[], int] = lambda: 0
    is_urgent: Callable[[], bool] = lambda: False


def _monotonic_us() -> int:
    return time.monotonic_ns() // _NS_PER_US


async def _sleep_us(us: int) -> None:
    await asyncio.sleep(us / _US_PER_S)


class SnapshotPace:
    """Lets the work on snapshots rest. Everything is called on the event loop."""

    def __init__(
        self,
        traffic: Traffic | None = None,
        deadline_ms: int = SNAPSHOT_DEADLINE_MS,
        clock_us: Callable[[], int] = _monotonic_us,
        sleep_us: Callable[[int], Awaitable[None]] = _sleep_us,
    ) -> None:
        self.traffic = traffic or Traffic()
        self.clock_us = clock_us
        self._sleep_us = sleep_us
        self._rests_us_max = deadline_ms * _US_PER_MS * RESTS_PERCENT // _PERCENT
        self._left_us = self._rests_us_max
        self._command_us: int | None = None  # when the last command was seen
        self._turn = asyncio.Lock()

    async def begin_generation(self) -> None:
        """Watch for commands for a moment; the rests of the generation count from now on."""
        self._left_us = self._rests_us_max
        self._command_us = None
        seen = self.traffic.applied()
        await self._sleep_us(LISTEN_US)
        self._look(seen)

    def begin(self) -> Steps:
        """Begin a series of steps."""
        return Steps(self)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Steps]:
        """Begin a series of steps beside others: while commands arrive, one series after
        another."""
        if self._is_busy:
            async with self._turn:
                yield self.begin()
        else:
            yield self.begin()

    async def rest(self, step_us: int, seen: int) -> None:
        """Rest after a step, while commands arrive; `seen` is the revision at the step's begin."""
        self._look(seen)
        left_us = rest_us(step_us, self._situation())
        while left_us > 0 and rest_us(step_us, self._situation()) > 0:
            began_us, seen = self.clock_us(), self.traffic.applied()
            await self._sleep_us(min(left_us, QUIET_US))
            rested_us = self.clock_us() - began_us
            left_us -= rested_us
            self._left_us -= rested_us
            self._look(seen)

    def _situation(self) -> PacingSituation:
        return PacingSituation(self._is_busy, self.traffic.is_urgent(), self._left_us)

    @property
    def _is_busy(self) -> bool:
        return self._command_us is not None and self.clock_us() - self._command_us <= QUIET_US

    def _look(self, seen: int) -> None:
        """Note whether commands have been applied since a revision, or are under way."""
        if self.traffic.applied() != seen or self.traffic.waiting():
            self._command_us = self.clock_us()


class Steps:
    """Steps of work that follow one another, each with a rest behind it."""

    def __init__(self, pace: SnapshotPace) -> None:
        """Use `SnapshotPace.begin` or `SnapshotPace.turn`."""
        self._pace = pace
        self._begin()

    def _begin(self) -> None:
        self._began_us = self._pace.clock_us()
        self._seen = self._pace.traffic.applied()

    async def rest(self) -> None:
        """End a step, rest if it is time to, and begin the next one."""
        await self._pace.rest(self._pace.clock_us() - self._began_us, self._seen)
        self._begin()
