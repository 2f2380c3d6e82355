"""Programs that are not ours: they send what no client of ours sends, and are refused.

For each such request the reason is known with which it has to be refused. A stranger lives with the
refusals of a cluster that has faults, and asks again. Any other answer fails the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

import grpc.aio

from testkit.load.watcher import TRY_AGAIN
from testkit.world.process import telling
from testkit.world.stranger_requests import REQUESTS, StrangerAccess, StrangeRequest
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client.errors import ClientError
from viewstamp.client.transport import refusal_in
from viewstamp.errors import Refusal, reason_name

if TYPE_CHECKING:
    from testkit.world.clients import Access
    from testkit.world.process import WorldProcess
    from testkit.world.world import World

_PAUSE_MS: Final = (5, 20, 100)
_PATIENCE_S: Final = 5.0
# What a stranger is refused while there are faults, beside what a watcher is.
_LIVED_WITH: Final = TRY_AGAIN | {
    Reason.REASON_OUTCOME_UNKNOWN,
    Reason.REASON_SESSION_LIMIT,
    Reason.REASON_STREAM_REPLACED,
    Reason.REASON_NO_SPACE,
}


class StrangerProgram:
    """One program, which sends one request after another until told to end.

    `failed` is told of each that was not refused as it has to be.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        access: Access,
        failed: Callable[[str], None],
        marks: Counter[str],
    ) -> None:
        self.is_ending = False
        self._name = name
        self._random = Random(seed)
        self._stranger = StrangerAccess(name, self._random, access)
        self._failed = failed
        self._marks = marks

    async def run(self) -> None:
        """Send requests in a drawn order, all of them before any comes again."""
        left: list[StrangeRequest] = []
        while not self.is_ending:
            left = left or self._random.sample(REQUESTS, len(REQUESTS))
            request = left.pop()
            await self._send(request)
            pause_ms = self._random.randint(0, self._random.choice(_PAUSE_MS))
            await asyncio.sleep(pause_ms / 1_000)

    async def _send(self, request: StrangeRequest) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                told = await self._told(request)
        except (TimeoutError, EOFError, ClientError, asyncio.InvalidStateError):
            return
        except grpc.aio.AioRpcError as error:
            self._marks[f"strangers: {error.code().name}"] += 1
            self._stranger.go_elsewhere()
            return
        name = "an answer" if told is None else reason_name(told)
        self._marks[f"strangers: {request.what}: {name}"] += 1
        if told in _LIVED_WITH and told not in request.due:
            return
        if told not in request.due:
            due = " or ".join(map(_named, request.due))
            self._failed(f"{self._name} got {name} for {request.what}, and {due} is due")

    async def _told(self, request: StrangeRequest) -> Reason.ValueType | None:
        """Return the reason of a refusal, None for an answer. Raises what is no refusal."""
        try:
            return await request.send(self._stranger)
        except Refusal as refusal:
            found = refusal
        except grpc.aio.AioRpcError as error:
            told = refusal_in(error)
            if told is None:
                raise
            found = told
        self._stranger.was_refused(found)
        return found.reason


def _named(due: Reason.ValueType | None) -> str:
    return "an answer" if due is None else reason_name(due)


class Strangers:
    """The processes of a run that are not ours. `failed` is told of what they should not hear."""

    def __init__(self, world: World, failed: Callable[[str], None]) -> None:
        self._world = world
        self._failed = failed
        self._programs: dict[WorldProcess, StrangerProgram] = {}

    def begin(self, access: Access, count: int) -> None:
        """Start so many."""
        world = self._world
        for number in range(count):
            name = f"stranger{number}"
            process = world.process(name, world.machine(f"10.1.1.{number + 1}"))
            seed = Random(f"{name} of {world.seed}").getrandbits(64)
            program = StrangerProgram(name, seed, access, self._failed, world.marks)
            self._programs[process] = program
            process.ended = telling(self._failed, name)
            process.run(program.run)

    def end(self) -> None:
        """Let each end after its request."""
        for program in self._programs.values():
            program.is_ending = True

    @property
    def are_over(self) -> bool:
        """Whether each has ended."""
        return not any(process.is_alive for process in self._programs)
