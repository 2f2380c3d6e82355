"""Members of a group on three replicas: no two read one partition, whatever happens to replicas.

The programs below run in one process, so what they read at one moment can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.replicas.trial import SETTLE_TIMEOUT_S, ReplicasTrial, trial
from viewstamp.client import Client, ClientError, Refusal, connect
from viewstamp.client.membership import AssignmentChange
from viewstamp.cluster.local import COORDINATOR
from viewstamp.limits import ROOT_USERNAME

pytestmark = pytest.mark.long

GROUP: Final = ("members", "events", "readers")
PARTITIONS: Final = 12
PROGRAMS: Final = 4
TIMEOUT_MS: Final = 6_000
LOOK_AGAIN_S: Final = 0.02
# Offsets of each partition that are committed before something happens, and after it.
COMMITS: Final = 5
# Why a commit may be refused: the member has lost a partition, or its place.
MOVED_ON: Final = ("PARTITION_NOT_OWNED", "FENCED_MEMBER_EPOCH", "NOT_A_MEMBER")


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


class CommitLedger:
    """What all programs have committed, and what may not be."""

    def __init__(self) -> None:
        self.sent = dict.fromkeys(range(PARTITIONS), 0)
        self.acknowledged = dict.fromkeys(range(PARTITIONS), 0)
        self.faults: list[str] = []
        self._grown = asyncio.Event()

    def begins(self, partition: int, offset: int, acknowledged: int) -> None:
        """Note where somebody begins to read, and what was acknowledged before it asked."""
        if offset < acknowledged:
            self.faults.append(f"{partition} is read from {offset}, behind {acknowledged}")

    def sends(self, offsets: Mapping[int, int]) -> None:
        """Note what may be committed from now on."""
        for partition, offset in offsets.items():
            self.sent[partition] = max(self.sent[partition], offset)

    def acknowledges(self, offsets: Mapping[int, int]) -> None:
        """Note what is committed."""
        for partition, offset in offsets.items():
            if offset < self.acknowledged[partition]:
                self.faults.append(f"{partition} went back to {offset}")
            self.acknowledged[partition] = offset
        self._grown.set()

    async def has_grown(self) -> None:
        """Wait until some more offsets of each partition are committed."""
        wanted = {each: offset + COMMITS for each, offset in self.acknowledged.items()}
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while any(self.acknowledged[each] < offset for each, offset in wanted.items()):
                self._grown.clear()
                await self._grown.wait()


class CommittingReader(PartitionReader):
    """A program that commits each message that it reads, and begins where others have ended."""

    def __init__(self, client: Client, ledger: CommitLedger) -> None:
        super().__init__(client)
        self._client = client
        self._ledger = ledger
        self._positions: dict[int, int] = {}
        self._turn = asyncio.Lock()  # it follows a change, or reads
        self._reading = asyncio.create_task(self._read())

    async def _run(self) -> None:
        async with self.member:
            async for change in self.member:
                async with self._turn:
                    await self._follow(change)

    async def _follow(self, change: AssignmentChange) -> None:
        for partition in change.lost:
            self._positions.pop(partition, None)
        given_up = {partition: self._positions.pop(partition) for partition in change.revoked}
        if given_up:
            await self._commit(given_up)
        known = dict(self._ledger.acknowledged)
        begun = dict.fromkeys(change.assigned, 0)
        async for each in self._client.groups.fetch_offsets(*GROUP, partitions=begun):
            begun[each.partition] = each.offset
        for partition, offset in begun.items():
            self._ledger.begins(partition, offset, known[partition])
        self._positions |= begun

    async def _read(self) -> None:
        while True:
            async with self._turn:
                if self._positions:
                    self._positions = {each: at + 1 for each, at in self._positions.items()}
                    await self._commit(self._positions)
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _commit(self, offsets: Mapping[int, int]) -> None:
        self._ledger.sends(offsets)
        try:
            await self.member.commit(offsets)
        except Refusal as refusal:
            if refusal.name not in MOVED_ON:
                self._ledger.faults.append(repr(refusal))
        except ClientError:
            pass  # nobody knows what became of it
        else:
            self._ledger.acknowledges(offsets)

    async def end(self) -> None:
        """Stop reading, and leave the group."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await super().end()


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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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


async def test_nothing_that_was_committed_is_lost(tmp_path: Path) -> None:
    """Others read on from what a lost member has committed, though the primary is killed, too."""
    ledger = CommitLedger()
    async with trial(tmp_path, callers=0) as made, programs(made) as (together, clients):
        together.readers += [CommittingReader(client, ledger) for client in clients[:3]]
        await together.shared()
        await ledger.has_grown()
        await clients[2].close(end_session=False)  # the cluster hears nothing of it
        made.replicas.replicas[await made.primary()].kill(COORDINATOR)
        await together.readers.pop().end()
        await together.shared()
        await ledger.has_grown()
        for reader in together.readers:
            await reader.end()
        found = {
            each.partition: each.offset async for each in made.admin.groups.fetch_offsets(*GROUP)
        }
        assert ledger.faults == []
        assert found.keys() == ledger.sent.keys()
        assert [
            each
            for each, offset in found.items()
            if not ledger.acknowledged[each] <= offset <= ledger.sent[each]
        ] == []
