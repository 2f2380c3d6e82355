"""Records real processes: three replicas of the shipped programs under load, which are hurt."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from testkit.model.observed import ObservedRun
from testkit.model.recorder import RunRecorder
from testkit.model.recording_coordinator import RECORD, merged, recorded
from testkit.model.simulated_runs import REPLICAS
from testkit.model.windows import windows
from testkit.world.options import SNAPSHOT_NEVER
from viewstamp.client import Client, connect
from viewstamp.client.errors import ClientError
from viewstamp.cluster import LocalReplicas
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal

CALLERS: Final = 2
ANSWERS: Final = 6
"""How many calls are answered before a fault, during it, and after it."""
STRIKES: Final = 4
CALL_TIMEOUT_S: Final = 60.0
ANSWERS_TIMEOUT_S: Final = 120.0


@dataclass(slots=True)
class RecordedLoad:
    """Callers that make streams, one after the other, as many as they may."""

    clients: list[Client]
    answered: int = 0
    allowed: int = 0
    is_over: bool = False
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def call(self, caller: int) -> None:
        """Make streams until the load is over."""
        for number in count():
            async with self._changed:
                await self._changed.wait_for(lambda: self.is_over or self.answered < self.allowed)
            if self.is_over:
                return
            with suppress(ClientError, Refusal):
                await self.clients[caller].streams.create(f"stream-{caller}-{number}")
            async with self._changed:
                self.answered += 1
                self._changed.notify_all()

    async def until_answered(self) -> None:
        """Let the callers have `ANSWERS` more answers, and wait for them."""
        async with asyncio.timeout(ANSWERS_TIMEOUT_S), self._changed:
            self.allowed = self.answered + ANSWERS
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self.answered >= self.allowed)

    async def end(self) -> None:
        """Let the callers return."""
        async with self._changed:
            self.is_over = True
            self._changed.notify_all()


@dataclass(slots=True)
class RecordedCluster:
    """Three recorded replicas under load."""

    replicas: LocalReplicas
    load: RecordedLoad

    async def primary(self) -> int:
        """Return the present primary."""
        return (await self.load.clients[0].status()).primary

    async def kill(self, replica: int) -> None:
        """Kill a coordinator, which is started again."""
        self.replicas.replicas[replica].kill(COORDINATOR)
        await self.load.until_answered()
        await self.replicas.wait_ready()

    async def pause(self, replica: int) -> None:
        """Stop a coordinator until the others have answered calls, and let it go on."""
        self.replicas.replicas[replica].kill(COORDINATOR, signal.SIGSTOP)
        try:
            await self.load.until_answered()
        finally:
            self.replicas.replicas[replica].kill(COORDINATOR, signal.SIGCONT)
        await self.replicas.wait_ready()

    async def hurt(self, seed: int, strikes: int) -> None:
        """Kill and pause the primary and a backup, in the order of a seed."""
        kinds: list[tuple[Callable[[int], Awaitable[None]], int]] = [
            (self.kill, 0),
            (self.pause, 0),
            (self.kill, 1),
            (self.pause, 1),
        ]
        random.Random(seed).shuffle(kinds)
        for strike, distance in kinds[:strikes]:
            await self.load.until_answered()
            await strike((await self.primary() + distance) % REPLICAS)
        await self.load.until_answered()


@asynccontextmanager
async def recorded_cluster(directory: Path) -> AsyncIterator[RecordedCluster]:
    """Run three recorded replicas under load during the block."""
    made = LocalReplicas(
        directory,
        REPLICAS,
        "127.0.0.1:0",
        coordinator_arguments=("--snapshot-commands", f"{SNAPSHOT_NEVER}"),
        adapt=recorded,
    )
    async with made as replicas:
        password = replicas.root_password_path.read_text().strip()
        clients = [
            await connect(
                replicas.addresses, username="root", password=password, timeout_s=CALL_TIMEOUT_S
            )
            for _ in range(CALLERS)
        ]
        load = RecordedLoad(clients)
        async with asyncio.TaskGroup() as group:
            for caller in range(CALLERS):
                group.create_task(load.call(caller))
            try:
                yield RecordedCluster(replicas, load)
            finally:
                await load.end()
        for client in clients:
            await client.close()


async def record_processes(directory: Path, seed: int, strikes: int = STRIKES) -> RunRecorder:
    """Hurt real processes, and return what their steps changed."""
    async with recorded_cluster(directory) as made:
        await made.hurt(seed, strikes)
    return merged([made.replicas.replica_directory(id) / RECORD for id in range(REPLICAS)])


def of_processes(seed: int, changes: int) -> Iterator[ObservedRun]:
    """Yield windows of a run of real processes."""
    with TemporaryDirectory() as folder:
        recorder = asyncio.run(record_processes(Path(folder), seed))
    yield from windows(recorder.entries, recorder.seen, replica_count=REPLICAS, changes=changes)
