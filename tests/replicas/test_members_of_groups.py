"""Members of a group on three replicas: no two read one partition, whatever happens to replicas.

The programs below run in one process, so what they read at one moment can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.replicas.trial import SETTLE_TIMEOUT_S, ReplicasTrial, trial
from viewstamp.client import Client, connect
from viewstamp.cluster.local import COORDINATOR
from viewstamp.limits import ROOT_USERNAME

pytestmark = pytest.mark.long

GROUP: Final = ("members", "events", "readers")
PARTITIONS: Final = 12
PROGRAMS: Final = 4
TIMEOUT_MS: Final = 6_000
LOOK_AGAIN_S: Final = 0.02


class PartitionReader:
    """A program that reads what its member owns."""

    def __init__(self, client: Client, instance_id: str = "") -> None:
        self.member = client.groups.member(*GROUP, instance_id=instance_id)
        self.lost = 0
        self.task = asyncio.create_task(self._run())

    @property
    def reads(self) -> frozenset[int]:
        """What it reads at this moment."""
        return self.member.owned

    async def _run(self) -> None:
        async with self.member:
            async for change in self.member:
                self.lost += len(change.lost)

    async def end(self) -> None:
        """Leave the group, or its place."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class ReadTogether:
    """All programs, and what several of them read at one moment."""

    def __init__(self) -> None:
        self.readers: list[PartitionReader] = []
        self.read_twice: list[int] = []

    async def watch(self) -> None:
        """Look again and again, for ever."""
        while True:
            reading = [partition for each in self.readers for partition in each.reads]
            self.read_twice += {each for each in reading if reading.count(each) > 1}
            await asyncio.sleep(LOOK_AGAIN_S)

    async def shared(self) -> None:
        """Wait until all partitions are read, in equal shares."""
        share = PARTITIONS // len(self.readers)
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while any(len(each.reads) != share for each in self.readers):
                for each in self.readers:
                    if each.task.done():
                        each.task.result()
                await asyncio.sleep(LOOK_AGAIN_S)


@asynccontextmanager
async def programs(made: ReplicasTrial) -> AsyncIterator[tuple[ReadTogether, list[Client]]]:
    """Create the group; yield clients, and the watch over their programs."""
    await made.admin.streams.create(GROUP[0])
    await made.admin.topics.create(*GROUP[:2], partitions_count=PARTITIONS)
    await made.admin.groups.create(*GROUP, member_timeout_ms=TIMEOUT_MS)
    password = made.replicas.root_password_path.read_text().strip()
    together = ReadTogether()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                await connect(made.replicas.addresses, username=ROOT_USERNAME, password=password)
            )
            for _ in range(PROGRAMS)
        ]
        watching = asyncio.create_task(together.watch())
        try:
            yield together, clients
        finally:
            watching.cancel()
            for reader in together.readers:
                await reader.end()
            await asyncio.gather(watching, return_exceptions=True)


async def test_no_partition_is_read_twice(tmp_path: Path) -> None:
    """Members come and go while the primary is killed; each partition has one reader at most."""
    async with trial(tmp_path, callers=0) as made, programs(made) as (together, clients):
        for client in clients[:3]:
            together.readers.append(PartitionReader(client))
            await together.shared()
            killed = made.replicas.replicas[await made.primary()]
            killed.kill(COORDINATOR)
        together.readers.append(PartitionReader(clients[3]))
        await together.shared()
        await together.readers.pop().end()
        await together.shared()
        assert together.read_twice == []
        # A failover alone takes nothing from anybody: a new primary gives all their full time.
        assert [each.lost for each in together.readers] == [0, 0, 0]


async def test_a_silent_member_is_replaced(tmp_path: Path) -> None:
    """A member that never shows life is removed after the timeout, also by a new primary."""
    async with trial(tmp_path, callers=0) as made, programs(made) as (together, clients):
        await clients[3].groups.join(*GROUP)
        together.readers.append(PartitionReader(clients[0]))
        await made.admin.step_down()
        await together.shared()
        assert together.read_twice == []
        group = await made.admin.groups.get(*GROUP)
        assert [member.session_id for member in group.members] == [clients[0].session_id]


async def test_a_static_member_comes_back(tmp_path: Path) -> None:
    """The next process of an instance gets its partitions at once; those of others do not move."""
    async with trial(tmp_path, callers=0) as made, programs(made) as (together, clients):
        together.readers += [PartitionReader(clients[0]), PartitionReader(clients[1], "static")]
        await together.shared()
        first, static = (each.reads for each in together.readers)
        await together.readers.pop().end()
        await made.admin.step_down()
        together.readers.append(PartitionReader(clients[2], "static"))
        await together.shared()
        assert [each.reads for each in together.readers] == [first, static]
        assert together.read_twice == []
