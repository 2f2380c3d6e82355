"""Many sessions at once, what they have in flight, and when commands get through again."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from testkit.load.records import RecordFile
from testkit.load.session import LoadFailed, LoadRequest, LoadSession
from testkit.load.workload import GroupName, LoadWorkload

# Longer than any restart, which tells the whole log again: past this the cluster hangs.
SILENCE_MAX_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How heavy the load is, and over which names it goes."""

    sessions: int
    seed: int
    groups: Sequence[GroupName]
    partitions_max: int


@dataclass(frozen=True, slots=True)
class Restoration:
    """How long a kill was felt, in milliseconds from the signal on."""

    # Until a command that was sent after the signal was acknowledged.
    first_new_ms: int
    # Until every command in flight at the signal was acknowledged.
    in_flight_ms: int


class LoadGenerator:
    """Sessions under load, from `start` to `finish`."""

    def __init__(
        self,
        addresses: Sequence[str],
        access_token: str,
        options: LoadOptions,
        records: RecordFile,
    ) -> None:
        self.acknowledged = 0
        self._waiting: deque[tuple[Callable[[LoadRequest], bool], asyncio.Future[None]]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._sessions = [
            LoadSession(
                addresses,
                access_token,
                LoadWorkload(f"{options.seed}/{index}", options.groups, options.partitions_max),
                records.append,
                self._on_answer,
            )
            for index in range(options.sessions)
        ]

    @property
    def in_flight(self) -> int:
        """How many commands were sent and have no answer."""
        return sum(session.in_flight for session in self._sessions)

    @property
    def reconnects(self) -> int:
        """How many streams ended early."""
        return sum(session.reconnects for session in self._sessions)

    def unanswered(self) -> set[LoadRequest]:
        """Return the requests that were sent and have no answer."""
        return {
            request
            for session in self._sessions
            for request in session.open_requests.values()
            if request.sends and not request.digest
        }

    def start(self) -> None:
        """Start every session."""
        self._tasks = [asyncio.create_task(session.run()) for session in self._sessions]
        for task in self._tasks:
            task.add_done_callback(self._on_end)

    async def finish(self) -> None:
        """Send nothing new, and wait until everything is answered. Raises LoadFailed."""
        for session in self._sessions:
            session.finish()
        await self._guarded(asyncio.gather(*self._tasks, return_exceptions=True))

    async def cancel(self) -> None:
        """Stop at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, holds: Callable[[LoadRequest], bool]) -> None:
        """Wait for an answer with which `holds` is true. Raises LoadFailed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((holds, future))
        await self._guarded(future)

    async def until_in_flight(self, commands: int) -> None:
        """Return at a moment with so many commands in flight. Raises LoadFailed."""
        if self.in_flight < commands:
            await self.until(lambda request: self.in_flight >= commands)

    async def until_restored(self, killed_ns: int, unanswered: set[LoadRequest]) -> Restoration:
        """Wait until what a kill interrupted is answered; return how long that took."""
        first_new_ns = 0

        def is_restored(request: LoadRequest) -> bool:
            nonlocal first_new_ns
            unanswered.discard(request)
            if not first_new_ns and request.sent_ns > killed_ns:
                first_new_ns = time.monotonic_ns()
            return bool(first_new_ns) and not unanswered

        await self.until(is_restored)
        now_ns = time.monotonic_ns()
        return Restoration((first_new_ns - killed_ns) // 10**6, (now_ns - killed_ns) // 10**6)

    def _on_answer(self, request: LoadRequest) -> None:
        self.acknowledged += len(request.commands)
        for _ in range(len(self._waiting)):
            holds, future = self._waiting.popleft()
            if future.done():
                continue
            if holds(request):
                future.set_result(None)
            else:
                self._waiting.append((holds, future))

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._failure.done():
            return
        error = task.exception()
        if error is not None:
            self._failure.set_result(error)

    async def _guarded(self, goal: asyncio.Future[Any]) -> None:
        """Wait for the goal, unless a session fails or nothing gets through any more."""
        await asyncio.wait(
            (goal, self._failure), timeout=SILENCE_MAX_S, return_when=asyncio.FIRST_COMPLETED
        )
        if self._failure.done():
            goal.cancel()
            raise LoadFailed(f"a session failed: {self._failure.result()}") from (
                self._failure.result()
            )
        if not goal.done():
            goal.cancel()
            raise LoadFailed(f"no progress within {SILENCE_MAX_S:g} s: the cluster hangs")
        goal.result()
