"""The data plane of one broker of a world: it leads and follows as docs/brokers.md prescribes.

As a leader it writes records of its own, acknowledges what all in sync have, drops a follower that
is slow before it goes on without it, and adds one that has caught up. As a follower it fetches from
the leader of the newest epoch that it has seen, and cuts off what that one does not have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from testkit.world.broker_disks import BrokerDisk, Record, RecordLog
from testkit.world.broker_wire import BrokerWire, NotServed
from viewstamp.client.broker_replicas import HeldReplica, TopicPartition
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from testkit.world.broker_records import AcknowledgedRecords
    from viewstamp.client.broker_session import BrokerSession

_WRITE_PAUSE_MS: Final = (50, 300)
# A follower that lacks a record for so long is taken out of sync.
_LAG_S: Final = 0.4
# How long a leader has a follower wait that has everything.
_NO_NEWS_S: Final = 0.3
_LOOK_AGAIN_S: Final = 0.1
_RECORDS_PER_FETCH_MAX: Final = 50


class Fetch(NamedTuple):
    """What a follower asks its leader for: the records behind those that it has."""

    partition: TopicPartition
    follower: int
    epoch: int
    begin: int
    last_epoch: int


class Fetched(NamedTuple):
    """What comes behind, or to how many records the follower has to cut its log before."""

    records: Sequence[Record] = ()
    cut: int | None = None


class HeldLog:
    """One partition as a broker has it in one life."""

    def __init__(self, log: RecordLog) -> None:
        self.log = log
        self.committed = 0
        """So many records are acknowledged, as far as this life knows."""
        self.reported = 0
        self.turn = asyncio.Lock()
        """Held by whoever writes, follows, or changes who is in sync."""
        self.has: dict[tuple[int, int], int] = {}
        """How many records followers have, by leader epoch and broker."""
        self.asked: tuple[int, frozenset[int]] = (0, frozenset())
        """Who may be in sync since this epoch, because it was asked for."""
        self._moved = asyncio.Event()

    @property
    def is_settled(self) -> bool:
        """Whether everything is acknowledged."""
        return self.committed == len(self.log)

    def move(self) -> None:
        """Wake all who wait for records, or for followers."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def moves(self, patience_s: float) -> bool:
        """Wait for the next move; return whether there was one in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._moved.wait()
                return True
        return False


class DataPlane:
    """Leads and follows as a session says, those of its partitions that are its own to serve."""

    def __init__(
        self,
        who: str,
        session: BrokerSession,
        disk: BrokerDisk,
        wire: BrokerWire,
        records: AcknowledgedRecords,
        random: Random,
        is_mine: Callable[[TopicPartition], bool],
    ) -> None:
        self.is_quiet = False
        """Whether it writes no records any more."""
        self.held: dict[TopicPartition, HeldLog] = {}
        self._who = who
        self._session = session
        self._disk = disk
        self._wire = wire
        self._records = records
        self._random = random
        self._is_mine = is_mine
        self._following: set[TopicPartition] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Lead and follow until cancelled. Raises what a command of unknown outcome raises.

        Whoever does not know what became of a change of who is in sync has to begin a new epoch.
        """
        self._wire.serve(self.answer)
        try:
            while self._failure is None:
                self._look_around()
                await asyncio.sleep(self._random.randint(*_WRITE_PAUSE_MS) / 1_000)
            raise self._failure
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _look_around(self) -> None:
        """Follow what it has a replica of, and write to what it leads."""
        mine = {each for each in self._session.replicas if self._is_mine(each)}
        for partition in sorted(mine - self._following):
            self._following.add(partition)
            self._start(self._follow(partition))
        for partition in sorted(mine & self._session.leads.keys()):
            if not self.is_quiet and not self.log_of(partition).turn.locked():
                self._start(self._write(partition))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error

    def begin(self, partition: TopicPartition, epoch: int) -> None:
        """Lead a partition: all in sync have to get what the log of the new leader has."""
        held = self.log_of(partition)
        self._records.begun(self._who, partition, epoch, held.log.records)
        self._start(self._take_over(partition, held))

    def log_of(self, partition: TopicPartition) -> HeldLog:
        """Return a partition as this broker has it."""
        if partition not in self.held:
            self.held[partition] = HeldLog(self._disk.logs[partition])
        return self.held[partition]

    # --- As the leader ---

    async def _take_over(self, partition: TopicPartition, held: HeldLog) -> None:
        with suppress(NotServed):
            async with held.turn:
                await self._commit(partition, held)

    async def _write(self, partition: TopicPartition) -> None:
        held = self.log_of(partition)
        with suppress(NotServed):
            async with held.turn:
                record = Record(self._epoch(partition), self._records.next_number())
                held.log.append([record])
                held.move()
                await self._commit(partition, held)

    def _epoch(self, partition: TopicPartition) -> int:
        """Return the epoch in which it leads a partition now. Raises NotServed."""
        epoch = self._session.leader_epoch(partition)
        if not epoch:
            raise NotServed("this broker does not lead the partition")
        return epoch

    async def _commit(self, partition: TopicPartition, held: HeldLog) -> None:
        """Acknowledge the whole log once all in sync have it. Raises NotServed, ClientError."""
        count, clock_s = len(held.log), asyncio.get_running_loop().time
        late_s = clock_s() + _LAG_S
        while missing := self._missing(partition, held, count):
            if not await held.moves(late_s - clock_s()):
                late_s = clock_s() + _LAG_S
                in_sync = self._in_sync(partition) - missing
                await self._update_in_sync(partition, held, in_sync)
        first, held.committed = held.committed, count
        records = held.log.records[first:count]
        self._records.acknowledge(partition, self._epoch(partition), first, records)
        held.move()

    def _missing(self, partition: TopicPartition, held: HeldLog, count: int) -> set[int]:
        """Return who of those that may be in sync lacks records, as far as is known."""
        epoch = self._epoch(partition)
        others = self._in_sync(partition)
        asked_in, asked = held.asked
        if asked_in == epoch:
            others |= asked
        others.discard(self._session.broker_id)
        return {each for each in others if held.has.get((epoch, each), 0) < count}

    async def _add(self, partition: TopicPartition, follower: int, epoch: int) -> None:
        """Put a follower in sync that has everything; nothing is acknowledged meanwhile."""
        held = self.log_of(partition)
        async with held.turn:
            if self._session.leader_epoch(partition) == epoch and self._may_join(
                partition, follower, epoch
            ):
                in_sync = self._in_sync(partition) | {follower}
                held.asked = (epoch, frozenset(in_sync))
                with suppress(NotServed):
                    await self._update_in_sync(partition, held, in_sync)

    def _may_join(self, partition: TopicPartition, follower: int, epoch: int) -> bool:
        held, replica = self.log_of(partition), self._session.replicas.get(partition)
        has_all = held.has.get((epoch, follower), 0) == len(held.log)
        is_known = replica is not None and follower in replica.replicas
        return has_all and is_known and follower not in self._in_sync(partition)

    def _in_sync(self, partition: TopicPartition) -> set[int]:
        """Return who is in sync, as far as it has seen. Raises NotServed if it has no replica."""
        replica = self._session.replicas.get(partition)
        if replica is None:
            raise NotServed("this broker does not have the partition any more")
        return set(replica.in_sync)

    async def _update_in_sync(
        self, partition: TopicPartition, held: HeldLog, in_sync: set[int]
    ) -> None:
        """Tell who is in sync. Raises NotServed if it leads no more, Refusal, ClientError."""
        self._epoch(partition)
        try:
            await self._session.update_in_sync(partition, tuple(sorted(in_sync)))
        except Refusal as refusal:
            if refusal.details.get("outcome") == "unknown":
                raise
            return  # it goes on waiting for whom it has waited for
        held.asked = (0, frozenset())

    async def answer(self, request: Fetch) -> Fetched:
        """Give a follower what it lacks. Raises NotServed unless this broker leads its epoch."""
        partition, epoch = request.partition, self._epoch(request.partition)
        if request.epoch != epoch:
            raise NotServed(f"the leader epoch is {epoch}")
        held = self.log_of(partition)
        if not held.log.agrees(request.begin, request.last_epoch):
            return Fetched(cut=min(request.begin - 1, len(held.log)))
        held.has[epoch, request.follower] = request.begin
        held.move()
        if request.begin == len(held.log):
            if self._may_join(partition, request.follower, epoch) and not held.turn.locked():
                self._start(self._add(partition, request.follower, epoch))
            await self._news(held, request.begin)
        if self._session.leader_epoch(partition) != epoch:
            raise NotServed("the leader epoch has changed")
        end = request.begin + _RECORDS_PER_FETCH_MAX
        return Fetched(tuple(held.log.records[request.begin : end]))

    async def _news(self, held: HeldLog, count: int) -> None:
        """Wait a while for more records than so many."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_NO_NEWS_S):
                while len(held.log) == count:
                    await held.moves(_NO_NEWS_S)

    # --- As a follower ---

    async def _follow(self, partition: TopicPartition) -> None:
        """Fetch from whoever leads, while another broker does, until cancelled."""
        while True:
            replica = self._session.replicas.get(partition)
            if replica is not None and replica.leader not in (0, self._session.broker_id):
                # The leader has died, or one of the two has not seen yet who leads.
                with suppress(NotServed, TimeoutError):
                    await self._catch_up(partition, replica)
                    continue
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _catch_up(self, partition: TopicPartition, replica: HeldReplica) -> None:
        """Ask the leader once. Raises NotServed, TimeoutError."""
        held = self.log_of(partition)
        async with held.turn:
            count, last_epoch = len(held.log), held.log.last_epoch
        leader = self._session.brokers.get(replica.leader)
        if leader is None:
            raise NotServed("nobody knows the leader any more")
        request = Fetch(partition, self._session.broker_id, replica.leader_epoch, count, last_epoch)
        fetched: Fetched = await self._wire.ask(leader.endpoints[0].host, request)
        async with held.turn:
            if self._session.replicas.get(partition) != replica or len(held.log) != count:
                return  # what came is of an epoch that is over
            if fetched.cut is not None:
                held.log.cut(fetched.cut)
            held.log.append(fetched.records)
