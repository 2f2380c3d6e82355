"""The operator of a world's brokers: makes topics with replicas, moves them, and drains brokers.

It is root, and keeps the book of brokers beside (`broker_book`). In the end, once all faults are
over, it waits until every partition is led and whole, looks how long a dead broker stays unfenced,
and lets the brokers end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from testkit.world.schedule import NS_PER_MS
from testkit.world.small_limits import TOO_MUCH
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.client import Client, connect
from viewstamp.client.broker_replicas import TopicPartition
from viewstamp.client.errors import ClientError
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USERNAME

if TYPE_CHECKING:
    from testkit.world.broker_programs import BrokerStage
    from testkit.world.process import WorldProcess

STREAM_OF_BROKERS: Final = "of brokers"
_CONNECT_PATIENCE_S: Final = 120.0
_PAUSE_MS: Final = (100, 900)
_AGAIN_S: Final = 0.1
_ASK_S: Final = 1.0
_PARTITIONS_MAX: Final = 3
_TOPICS_MAX: Final = 3
# Until so much behind its timeout a silent broker is fenced: two checks, and the way of a command.
_FENCED_LATE_NS: Final = 1_500 * NS_PER_MS


class KeptBrokers(Protocol):
    """What a keeper has to know of the brokers of a run, and may do to them."""

    names: Sequence[str]

    @property
    def are_settled(self) -> bool:
        """Whether each runs, and everything that it leads is acknowledged and reported."""
        ...

    @property
    def leading(self) -> object:
        """Who leads the cluster, in which view; compared alone."""
        ...

    def quiet(self) -> None:
        """Have them write no more records."""
        ...

    def kill(self, name: str) -> None:
        """Kill a broker for good."""
        ...

    def dismiss(self) -> None:
        """Let all end in order that run."""
        ...


class BrokerKeeper:
    """Keeps the brokers of one run."""

    def __init__(
        self, seed: int, stage: BrokerStage, brokers: KeptBrokers, timeout_ns: int, is_busy: bool
    ) -> None:
        self.is_ending = False
        self.failures: list[str] = []
        self.orders: deque[Callable[[BrokerKeeper], Awaitable[None]]] = deque()
        """What a story wants to be done; each is tried until it is."""
        self._random = Random(seed)
        self._stage = stage
        self._brokers = brokers
        self._timeout_ns = timeout_ns
        self._is_busy = is_busy
        self._topics: list[str] = []
        self._serial = 0
        self._client: Client | None = None

    async def run(self, process: WorldProcess) -> None:
        """Keep the book, change things meanwhile, and see to the end. Raises what ends a book."""
        async with await self._connected() as client, await self._connected() as reading:
            self._client = client
            keeping = asyncio.create_task(self._stage.book.keep(reading, process))
            working = asyncio.create_task(self._work())
            await asyncio.wait({keeping, working}, return_when=asyncio.FIRST_COMPLETED)
            self._stage.book.close()
            for each in (keeping, working):
                each.cancel()
            await asyncio.gather(keeping, working, return_exceptions=True)
        for each in (keeping, working):
            if not each.cancelled():
                each.result()

    async def _connected(self) -> Client:
        """Connect, again and again where others ask for too much at that moment."""
        while True:
            try:
                return await connect(
                    list(self._stage.access.addresses),
                    username=ROOT_USERNAME,
                    password=self._stage.access.password,
                    connect_timeout_s=_CONNECT_PATIENCE_S,
                    timeout_s=_CONNECT_PATIENCE_S,
                )
            except Refusal as refusal:
                if refusal.reason not in TOO_MUCH:
                    raise
            await asyncio.sleep(_AGAIN_S)

    @property
    def client(self) -> Client:
        """Its connection as root."""
        assert self._client is not None, "it is connected"
        return self._client

    async def _work(self) -> None:
        while not self._stage.judge.stream_id:
            await self._tried(self._make_stream())
        while not self.is_ending:
            await self._tried(self._act() if self._is_busy else self._obey())
        await self._finish()

    async def _act(self) -> None:
        """Do something of its own; first it needs a topic."""
        if self._topics:
            await asyncio.sleep(self._random.randint(*_PAUSE_MS) / 1_000)
            await self._random.choice(_ACTS)(self)
        else:
            await asyncio.sleep(_AGAIN_S)
            await self._make_topic()

    async def _obey(self) -> None:
        await asyncio.sleep(_AGAIN_S)
        if self.orders:
            await self.orders[0](self)
            self.orders.popleft()

    async def _tried(self, act: Awaitable[None]) -> None:
        with suppress(Refusal, ClientError):
            await act

    async def _make_stream(self) -> None:
        try:
            made = await self.client.streams.create(STREAM_OF_BROKERS)
            self._stage.judge.stream_id = made.stream_id
        except Refusal as refusal:
            if refusal.reason != Reason.REASON_STREAM_EXISTS:
                raise
            found = await self.client.streams.get(STREAM_OF_BROKERS)
            self._stage.judge.stream_id = found.id

    # --- What an operator does ---

    async def make_topic(self, partitions_count: int, replicas_count: int) -> None:
        """Make a topic whose partitions have so many replicas each. Raises Refusal, ClientError."""
        self._serial += 1
        name = f"topic-{self._serial}"
        options = streams_pb2.TopicOptions(replication_factor=replicas_count)
        await self.client.topics.create(
            STREAM_OF_BROKERS, name, partitions_count=partitions_count, options=options
        )
        self._topics.append(name)

    async def _make_topic(self) -> None:
        if len(self._topics) < _TOPICS_MAX:
            partitions_count = self._random.randint(1, _PARTITIONS_MAX)
            replicas_count = self._random.randint(1, len(self._brokers.names))
            await self.make_topic(partitions_count, replicas_count)

    async def _delete_topic(self) -> None:
        if len(self._topics) == _TOPICS_MAX:
            name = self._topics.pop(self._random.randrange(_TOPICS_MAX))
            await self.client.topics.delete(STREAM_OF_BROKERS, name)

    async def _extend_topic(self) -> None:
        if self._topics and len(self._placements()) < _TOPICS_MAX * _PARTITIONS_MAX:
            name = self._random.choice(self._topics)
            await self.client.topics.add_partitions(STREAM_OF_BROKERS, name, 1)

    async def drain(self, name: str, *, draining: bool) -> None:
        """Have a broker drained, or used again. Raises Refusal, ClientError."""
        await self.client.brokers.update(name, draining=draining)

    async def _drain(self) -> None:
        name = self._random.choice(self._brokers.names)
        draining = self._random.randrange(2) == 0
        await self.drain(name, draining=draining)
        if draining:
            await self._extend_topic()  # which must give it nothing

    async def _move(self) -> None:
        """Give a partition another broker, or another order, in one step or two."""
        placements = self._placements()
        if not placements:
            return
        partition, placement = self._random.choice(placements)
        others = [each for each in self._stage.book.now.brokers if each not in placement.replicas]
        replicas = [*placement.replicas, *others[:1]]
        self._random.shuffle(replicas)
        kept = max(1, len(placement.replicas) - self._random.randrange(2))
        await self._place(partition, replicas[:kept] if self._random.randrange(2) else replicas)

    async def _rescue(self) -> None:
        """Go on without what was acknowledged, where nobody has it any more."""
        page = self._stage.book.now
        for partition, placement in self._placements():
            if not page.keeping(placement):
                revision = await self._place(partition, placement.replicas, allow_data_loss=True)
                self._stage.records.allow_loss(partition, revision)

    async def _place(
        self, partition: TopicPartition, replicas: Sequence[int], *, allow_data_loss: bool = False
    ) -> int:
        answer = await self.client.brokers.place(
            *partition[:2], {partition.partition: replicas}, allow_data_loss=allow_data_loss
        )
        revision: int = answer.header.revision
        return revision

    def _placements(self) -> list[tuple[TopicPartition, brokers_pb2.Placement]]:
        """Return the placed partitions of the stream of brokers."""
        is_judged = self._stage.judge.is_judged
        found = [each for each in self._stage.book.now.placements if is_judged(each[0])]
        return sorted(found, key=lambda each: each[0])

    # --- The end ---

    async def _finish(self) -> None:
        """Have everything whole, then let one broker die, and all others end."""
        for name in self._brokers.names:
            await self._tried(self.drain(name, draining=False))
        self._brokers.quiet()
        while not await self._is_whole():
            await self._tried(self._rescue())
            await asyncio.sleep(_AGAIN_S)
        await self._let_one_die()
        self._brokers.dismiss()

    async def _is_whole(self) -> bool:
        """Whether each partition is led, and all its replicas are in sync.

        The book may be late, and a broker that is cut off does not know it.
        """
        page = self._stage.book.now
        if not await self._are_registered():
            return False
        placements = [placement for _, placement in self._placements()]
        are_led = all(page.leader(each).broker_id for each in placements)
        are_in_sync = all(len(page.keeping(each)) == len(each.replicas) for each in placements)
        return are_led and are_in_sync and self._brokers.are_settled

    async def _are_registered(self) -> bool:
        """Whether no broker is fenced, and everybody knows that."""
        known = self._stage.book.now.brokers
        try:
            async with asyncio.timeout(_ASK_S):
                told = [each async for each in self.client.brokers.list()]
        except (Refusal, ClientError, TimeoutError):
            return False
        rows = [known.get(each.id) for each in told if each.name in self._brokers.names]
        epochs = {each.broker_epoch for each in told if not each.fenced}
        return len(rows) == len(self._brokers.names) and all(
            row is not None and not row.fenced and row.broker_epoch in epochs for row in rows
        )

    async def _let_one_die(self) -> None:
        """Kill a broker; it must be fenced in time, once a primary has led long enough."""
        name = self._random.choice(self._brokers.names)
        broker = next(b for b in self._stage.book.now.brokers.values() if b.name == name)
        self._brokers.kill(name)
        schedule = self._stage.schedule
        since_ns, leading = schedule.now_ns, self._brokers.leading
        while not await self._is_fenced(broker.id):
            await asyncio.sleep(_AGAIN_S)
            if self._brokers.leading != leading:
                since_ns, leading = schedule.now_ns, self._brokers.leading
            silent_ns = schedule.now_ns - since_ns
            if silent_ns > self._timeout_ns + _FENCED_LATE_NS:
                self.failures.append(f"broker {name} was silent for {silent_ns} ns, and not fenced")
                return

    async def _is_fenced(self, broker_id: int) -> bool:
        """Return what the cluster says, if it answers soon."""
        try:
            async with asyncio.timeout(_ASK_S):
                return (await self.client.brokers.get(broker_id)).fenced
        except (Refusal, ClientError, TimeoutError):
            return False


_ACTS: Final[tuple[Callable[[BrokerKeeper], Awaitable[None]], ...]] = (
    BrokerKeeper._make_topic,
    BrokerKeeper._make_topic,
    BrokerKeeper._make_topic,
    BrokerKeeper._delete_topic,
    BrokerKeeper._extend_topic,
    BrokerKeeper._drain,
    BrokerKeeper._move,
    BrokerKeeper._move,
    BrokerKeeper._rescue,
)
