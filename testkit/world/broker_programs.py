"""One broker of a world: a process that registers, leads, follows and reports, life after life."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from testkit.world.broker_acts import OverheardClient
from testkit.world.broker_plane import DataPlane
from viewstamp.client import connect
from viewstamp.client.broker_replicas import TopicPartition
from viewstamp.client.brokers import Brokers
from viewstamp.client.errors import ClientError
from viewstamp.client.streams import Topics
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USERNAME

if TYPE_CHECKING:
    from testkit.world.broker_acts import BrokerActs
    from testkit.world.broker_book import BrokerBook
    from testkit.world.broker_disks import BrokerDisk
    from testkit.world.broker_judge import BrokerJudge
    from testkit.world.broker_records import AcknowledgedRecords
    from testkit.world.broker_wire import BrokerWire
    from testkit.world.clients import Access
    from testkit.world.schedule import WorldSchedule
    from viewstamp.api.common.v1.common_pb2 import BrokerStamp
    from viewstamp.client.broker_session import BrokerSession, LeadsChange

TIMEOUT_MS: Final = 1_000
_PORT: Final = 9_000
_CONNECT_PATIENCE_S: Final = 120.0
_PAUSE_S: Final = 0.2
_LOOK_AGAIN_S: Final = 0.05
_REPORT_PAUSE_S: Final = 0.8
# How often a broker reports what it leads no more.
_STALE_REPORTS_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class BrokerStage:
    """What all brokers of a run share."""

    access: Access
    schedule: WorldSchedule
    wire: BrokerWire
    records: AcknowledgedRecords
    book: BrokerBook
    acts: BrokerActs
    judge: BrokerJudge


class StaleReport(NamedTuple):
    """What a broker would report that it leads no more."""

    partition: TopicPartition
    stamp: BrokerStamp
    left: int


class BrokerLives:
    """One process of a broker. Its disk outlives it."""

    def __init__(
        self, name: str, host: str, rack: str, disk: BrokerDisk, seed: int, stage: BrokerStage
    ) -> None:
        self.disk = disk
        self.is_quiet = False
        """Whether it writes no records any more."""
        self.is_ending = False
        """Whether it ends in order, and for good."""
        self.leaves_for_s = 0.0
        """Unless 0, it resigns now, and comes back after so long."""
        self.session: BrokerSession | None = None
        self.plane: DataPlane | None = None
        self._name = name
        self._host = host
        self._rack = rack
        self._random = Random(seed)
        self._stage = stage
        self._stale: list[StaleReport] = []
        self._led_with: BrokerStamp | None = None

    @property
    def is_settled(self) -> bool:
        """Whether all that it leads is acknowledged and reported."""
        session, plane = self.session, self.plane
        if session is None or plane is None:
            return False
        led = [plane.held[each] for each in session.leads if each in plane.held]
        return all(each.is_settled and each.reported == each.committed for each in led)

    async def run(self) -> None:
        """Be a broker, and be one again."""
        while not self.is_ending:
            # As long as there are faults; what must hold is judged in the end.
            with suppress(ClientError, Refusal):
                await self._live()
            self.session = self.plane = None
            pause_s, self.leaves_for_s = self.leaves_for_s or _PAUSE_S, 0.0
            await asyncio.sleep(pause_s)

    async def _live(self) -> None:
        addresses = list(self._stage.access.addresses)
        self._random.shuffle(addresses)
        client = await connect(
            addresses,
            username=ROOT_USERNAME,
            password=self._stage.access.password,
            connect_timeout_s=_CONNECT_PATIENCE_S,
            timeout_s=_CONNECT_PATIENCE_S,
        )
        async with client:
            overheard = OverheardClient(self._name, client, self._stage.acts, self._stage.schedule)
            async with Brokers(overheard).session(
                self._name,
                {"internal": (self._host, _PORT)},
                storage_id=self.disk.storage_id,
                rack=self._rack,
                timeout_ms=TIMEOUT_MS,
            ) as session:
                await self._serve(session, Topics(overheard))

    async def _serve(self, session: BrokerSession, topics: Topics) -> None:
        """Lead and follow until something ends the session, or this life."""
        stage = self._stage
        self.session = session
        self.plane = DataPlane(
            *(self._name, session, self.disk, stage.wire, stage.records, self._random),
            is_mine=stage.judge.is_judged,
        )
        works = (
            self.plane.run(),
            self._lead(session, self.plane),
            self._report(session, self.plane, topics),
        )
        tasks = [asyncio.create_task(each) for each in works]
        try:
            while not (self._must_leave or any(each.done() for each in tasks)):
                self.plane.is_quiet = self.is_quiet
                stage.acts.look(self._name, session)
                self._led_with = session.stamp if session.leads else self._led_with
                await asyncio.sleep(_LOOK_AGAIN_S)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for each in tasks:
            if not each.cancelled():
                each.result()

    @property
    def _must_leave(self) -> bool:
        return self.is_ending or self.leaves_for_s > 0

    async def _lead(self, session: BrokerSession, plane: DataPlane) -> None:
        async for change in session:
            self._stage.acts.look(self._name, session)
            self._note_stale(change)
            for partition, epoch in change.began.items():
                if self._stage.judge.is_judged(partition):
                    plane.begin(partition, epoch)

    # --- Reports ---

    def _note_stale(self, change: LeadsChange) -> None:
        """Keep one of those that it leads no more, to report it all the same."""
        ended = sorted(filter(self._stage.judge.is_judged, change.ended))
        if ended and self._led_with is not None:
            chosen = self._random.choice(ended)
            self._stale.append(StaleReport(chosen, self._led_with, _STALE_REPORTS_MAX))

    async def _report(self, session: BrokerSession, plane: DataPlane, topics: Topics) -> None:
        """Tell the cluster now and then where partitions end, rightly and wrongly."""
        while True:
            await asyncio.sleep(_REPORT_PAUSE_S)
            ends = {
                each: held.committed
                for each, held in plane.held.items()
                if held.committed > held.reported and session.leader_epoch(each)
            }
            for _, group in groupby(sorted(ends), key=lambda each: each[:2]):
                await self._report_topic(list(group), ends, session, plane, topics)
            for stale in self._stale:
                await self._report_ends(
                    topics, stale.partition[:2], {stale.partition.partition: 1}, stale.stamp
                )
            self._stale = [
                each._replace(left=each.left - 1) for each in self._stale if each.left > 1
            ]

    async def _report_topic(
        self,
        partitions: Sequence[TopicPartition],
        ends: Mapping[TopicPartition, int],
        session: BrokerSession,
        plane: DataPlane,
        topics: Topics,
    ) -> None:
        told = {each.partition: ends[each] for each in partitions}
        if await self._report_ends(topics, partitions[0][:2], told, session.stamp):
            for each in partitions:
                plane.held[each].reported = ends[each]

    async def _report_ends(
        self, topics: Topics, topic: tuple[int, int], ends: dict[int, int], stamp: BrokerStamp
    ) -> bool:
        """Report, and return whether that was accepted."""
        try:
            await topics.report_partition_ends(*topic, ends, broker=stamp)
        except Refusal:
            self._stage.acts.refused[self._name] += 1
            return False
        except ClientError:
            return False
        return True
