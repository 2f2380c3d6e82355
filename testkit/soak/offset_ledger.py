"""Members that keep their places in a group and commit offsets, and who judges what was kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, NamedTuple

from testkit.torture.recorder import Recorder
from viewstamp.client import Client
from viewstamp.client.errors import ClientError
from viewstamp.client.membership import GroupMember
from viewstamp.errors import Refusal

PARTITIONS: Final = 4
BETWEEN_COMMITS_S: Final = 0.2
PAUSE_S: Final = 0.5


class GroupPlace(NamedTuple):
    """The names of a group that lasts for the whole soak."""

    stream: str = "soak"
    topic: str = "offsets"
    group: str = "members"


class OffsetLedger:
    """The offsets of each partition that members sent, and those of which they were told.

    Members only send higher offsets than any before. So what is stored is never lower than what
    somebody was told of, and never higher than what was sent.
    """

    def __init__(self) -> None:
        self._sent: Counter[int] = Counter()
        self._told: Counter[int] = Counter()

    def next_offset(self, partition: int) -> int:
        """Return an offset that was never sent."""
        self._sent[partition] += 1
        return self._sent[partition]

    def told(self, partition: int, offset: int) -> None:
        """A member was told that its offset is stored."""
        self._told[partition] = max(self._told[partition], offset)

    def known(self) -> dict[int, int]:
        """Return what a read that begins now must show at least."""
        return dict(self._told)

    def contradictions(self, known: dict[int, int], read: dict[int, int]) -> list[str]:
        """Return what is wrong with offsets that were read after `known` was."""
        lost = [
            f"partition {partition} had the offset {offset}, and a read showed"
            f" {read.get(partition, 0)}"
            for partition, offset in known.items()
            if read.get(partition, 0) < offset
        ]
        invented = [
            f"a read showed the offset {offset} of partition {partition}, and at most"
            f" {self._sent[partition]} was sent"
            for partition, offset in read.items()
            if offset > self._sent[partition]
        ]
        return lost + invented


class CommittingMember:
    """A member of a group with a client of its own. It commits what it owns, and reads it all."""

    def __init__(
        self, client: Client, place: GroupPlace, ledger: OffsetLedger, recorder: Recorder
    ) -> None:
        self.is_over = False
        self._client = client
        self._place = place
        self._ledger = ledger
        self._recorder = recorder

    async def run(self) -> None:
        """Be a member until it is over, however often it is removed."""
        while not self.is_over:
            try:
                await self._belong()
            except (ClientError, Refusal) as error:
                self._count("membership ended", error)
                await asyncio.sleep(PAUSE_S)

    async def _belong(self) -> None:
        async with self._client.groups.member(*self._place) as member:
            following = asyncio.create_task(_follow(member))
            try:
                while not self.is_over and not following.done():
                    await self._commit(member)
                    await self._read()
                    await asyncio.sleep(BETWEEN_COMMITS_S)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        if not following.cancelled():
            following.result()

    async def _commit(self, member: GroupMember) -> None:
        offsets = {each: self._ledger.next_offset(each) for each in member.owned}
        if not offsets:
            return
        try:
            await member.commit(offsets)
        except (ClientError, Refusal) as error:
            self._count("offsets not committed", error)
            return
        self._recorder.counts["offsets committed"] += len(offsets)
        for partition, offset in offsets.items():
            self._ledger.told(partition, offset)

    async def _read(self) -> None:
        known = self._ledger.known()
        try:
            read = {
                each.partition: each.offset
                async for each in self._client.groups.fetch_offsets(*self._place)
            }
        except (ClientError, Refusal) as error:
            self._count("offsets not read", error)
            return
        self._recorder.counts["offsets read"] += 1
        for text in self._ledger.contradictions(known, read):
            self._recorder.surprise(text)

    def _count(self, what: str, error: Exception) -> None:
        why = error.name if isinstance(error, Refusal) else type(error).__name__
        self._recorder.counts[f"{what}: {why}"] += 1


async def _follow(member: GroupMember) -> None:
    """Take every change at once: what is revoked is given up, since nothing is read of it."""
    async for _ in member:
        pass


async def create_group(client: Client, place: GroupPlace) -> None:
    """Make the group, on a topic of its own."""
    await client.streams.create(place.stream)
    await client.topics.create(place.stream, place.topic, partitions_count=PARTITIONS)
    await client.groups.create(*place)
