"""Snapshots that are asked for under load, and where in the course of one a kill falls."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final, Protocol

from testkit.load.session import LoadFailed
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client.consistency import LINEARIZABLE, STALE, Consistency
from viewstamp.errors import Refusal

# How many of the last snapshots say how long it is from cut to decision.
DURATIONS_KEPT: Final = 9
# Until one was taken.
DURATION_FIRST_S: Final = 0.02


class Moment(StrEnum):
    """Where in the course of a snapshot a kill fell; the value is how a report names it."""

    ASKED = "asked for, not cut"
    CUT = "cut, not decided"
    DECIDED = "decided"


@dataclass(frozen=True, slots=True)
class CutKill:
    """The snapshot during which a kill was planned, and its outcome."""

    generation: int
    moment: Moment
    state: str


class Asking(Protocol):
    """The part of `client.snapshots` that is used here."""

    async def create(self) -> snapshots_pb2.CreateSnapshotResponse:
        """Ask for a snapshot."""

    async def current(self, *, consistency: Consistency = LINEARIZABLE) -> snapshots_pb2.Snapshot:
        """Return the newest generation."""

    async def decided(self, generation: int) -> snapshots_pb2.Snapshot:
        """Wait until a generation is completed or failed, and return it."""


@dataclass(slots=True, eq=False)
class Asked:
    """One request for a snapshot: `cut` is done when it was seen to be cut, then it is decided."""

    cut: asyncio.Future[None]
    decided: asyncio.Future[snapshots_pb2.Snapshot]
    # A kill fell into it: its times say nothing about others.
    is_disturbed: bool = False


class SnapshotRequests:
    """Asks for one snapshot after another, `pause_s` apart, from `start` to `finish`."""

    def __init__(self, snapshots: Asking, pause_s: float) -> None:
        # What was asked for; the others were the cluster's idea.
        self.generations: set[int] = set()
        self._snapshots = snapshots
        self._pause_s = pause_s
        self._durations_s: deque[float] = deque(maxlen=DURATIONS_KEPT)
        self._waiting: list[asyncio.Future[Asked]] = []
        self._hurry = asyncio.Event()
        self._finishing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def duration_s(self) -> float:
        """How long it takes from cut to decision if nothing is killed."""
        return median(self._durations_s) if self._durations_s else DURATION_FIRST_S

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._run())

    async def next_asked(self) -> Asked:
        """Return at the moment when the next request is sent, which is soon.

        Raises what asking raised if it has ended by that.
        """
        assert self._task is not None, "asking was not started"
        future: asyncio.Future[Asked] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._hurry.set()
        await asyncio.wait((future, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            self._task.result()
        return future.result()

    async def finish(self) -> None:
        """Ask no more, and return once the last one is decided. Raises what asking raised."""
        self._finishing = True
        self._hurry.set()
        assert self._task is not None, "asking was not started"
        await self._task

    async def cancel(self) -> None:
        """Stop at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._is_over():
            if not self._waiting:
                await self._pause()
            if not self._is_over():
                await self._ask()

    def _is_over(self) -> bool:
        return self._finishing

    async def _pause(self) -> None:
        self._hurry.clear()
        try:
            async with asyncio.timeout(self._pause_s):
                await self._hurry.wait()
        except TimeoutError:
            return

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        asked = Asked(loop.create_future(), loop.create_future())
        # Most are waited for by nobody: an exception that only ends the task must not be warned of.
        asked.decided.add_done_callback(lambda future: future.exception())
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(asked)
        try:
            generation = await create_snapshot(self._snapshots)
            if waiting:
                await self._until_cut(generation)
                asked.cut.set_result(None)
            snapshot = await self._snapshots.decided(generation)
        except BaseException as error:
            text = f"asking for snapshots ended: {type(error).__name__}: {error}"
            asked.decided.set_exception(LoadFailed(text))
            raise
        self.generations.add(snapshot.generation)
        asked.decided.set_result(snapshot)
        if not asked.is_disturbed:
            self._durations_s.append((snapshot.decided_at - snapshot.created_at) / 1e6)

    async def _until_cut(self, generation: int) -> None:
        """Look until it was cut, or is over. Such a read waits for nothing itself."""
        while True:
            newest = await self._snapshots.current(consistency=STALE)
            is_cut = newest.generation == generation and (newest.created_at or newest.decided_at)
            if newest.generation > generation or is_cut:
                return


async def create_snapshot(snapshots: Asking) -> int:
    """Ask for a snapshot, after one that the cluster began by itself; return its generation."""
    while True:
        try:
            return (await snapshots.create()).generation
        except Refusal as refusal:
            if refusal.reason != Reason.REASON_SNAPSHOT_IN_PROGRESS:
                raise
            await snapshots.decided((await snapshots.current()).generation)


def moment_of(killed_us: int, snapshot: snapshots_pb2.Snapshot) -> Moment:
    """Return where a kill fell. Log time is the clock of the primary, which is this machine's."""
    if killed_us >= snapshot.decided_at:
        return Moment.DECIDED
    if snapshot.created_at and killed_us >= snapshot.created_at:
        return Moment.CUT
    return Moment.ASKED


def wall_clock_us() -> int:
    """Return the time that primaries stamp prepares with, microseconds since 1970."""
    return time.time_ns() // 1000
