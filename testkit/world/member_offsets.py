"""How far the members of a world's group have read, and the judge of what is stored of it.

Whoever gets a partition asks how far the group has read it, and commits ever higher offsets from
there on. Whoever has lost a partition commits it for a while as if it had not, so the cluster has
to refuse that once others have committed. Nobody rewinds the group. So whoever asks must be told at
least the offset that was acknowledged before, and no lower one may be stored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from viewstamp.client.errors import ClientError
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from viewstamp.client import Client
    from viewstamp.client.membership import AssignmentChange, GroupMember

COMMITTED: Final = "members: commits acknowledged"
ASKED: Final = "members: committed offsets told"
TOO_LATE: Final = "members: commits of what was lost"
_COMMIT_PAUSE_S: Final = 0.1
# A member that gives a partition up does not wait longer for its last commit.
_LAST_COMMIT_S: Final = 0.2
# How often a member commits what it has lost.
_TOO_LATE_MAX: Final = 5


class AcknowledgedOffsets:
    """The highest offset of each partition that any member was told was stored."""

    def __init__(self, marks: Counter[str]) -> None:
        self.violations: list[str] = []
        self.marks = marks
        self._highest: dict[int, int] = {}

    def floor(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return below which nothing may be told or stored from now on."""
        return {each: self._highest[each] for each in partitions if each in self._highest}

    def stored(self, program: str, floor: Mapping[int, int], offsets: Mapping[int, int]) -> None:
        """Judge a commit that was acknowledged, and was sent when there was this floor."""
        self.marks[COMMITTED] += 1
        self._judge(f"member {program} could commit", floor, offsets)
        for partition, offset in offsets.items():
            self._highest[partition] = max(offset, self._highest.get(partition, 0))

    def told(self, program: str, floor: Mapping[int, int], offsets: Mapping[int, int]) -> None:
        """Judge what a program was told that asked when there was this floor."""
        self.marks[ASKED] += len(floor)
        told = {each: offsets.get(each, 0) for each in floor}
        self._judge(f"member {program} was told", floor, told)

    def _judge(self, what: str, floor: Mapping[int, int], offsets: Mapping[int, int]) -> None:
        self.violations += [
            f"{what} offset {offset} of partition {partition}, and {floor[partition]} had been"
            " committed"
            for partition, offset in offsets.items()
            if offset < floor.get(partition, 0)
        ]


class MemberOffsets:
    """What one member knows and commits of the partitions that it reads."""

    def __init__(
        self,
        program: str,
        client: Client,
        group: tuple[str, str, str],
        member: GroupMember,
        acknowledged: AcknowledgedOffsets,
    ) -> None:
        self._program = program
        self._client = client
        self._group = group
        self._member = member
        self._acknowledged = acknowledged
        # By partition: when it was assigned, and, once that was asked, what was committed.
        self._assigned: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._epoch = 0  # of the last commit that was acknowledged
        # By lost partition: what to commit too late, at which epoch, and how often.
        self._lost: dict[int, tuple[int, int, int]] = {}
        self._serials = count()

    async def take(self, change: AssignmentChange) -> None:
        """Take in a change of what the member reads, and commit what it gives up."""
        for partition in change.lost:
            if partition in self._offsets:
                self._lost[partition] = (self._offsets[partition], self._epoch, _TOO_LATE_MAX)
        self._forget(change.lost)
        with suppress(ClientError, Refusal, TimeoutError):
            async with asyncio.timeout(_LAST_COMMIT_S):
                await self._commit(change.revoked)
        self._forget(change.revoked)
        for partition in change.assigned:
            self._assigned[partition] = next(self._serials)
            # It may still be the same member of the same epoch, and would rewind itself.
            self._lost.pop(partition, None)

    async def go_on(self) -> None:
        """Ask, and commit higher offsets, until cancelled."""
        while True:
            for partition in list(self._lost):
                with suppress(ClientError, Refusal):
                    await self._commit_too_late(partition)
            # Whoever was removed meanwhile hears of it by the next change.
            with suppress(ClientError, Refusal):
                await self._ask()
                await self._commit(tuple(self._offsets))
            await asyncio.sleep(_COMMIT_PAUSE_S)

    async def _ask(self) -> None:
        """Ask how far the group has read what was assigned since the last time."""
        asked = {each: when for each, when in self._assigned.items() if each not in self._offsets}
        floor = self._acknowledged.floor(asked)
        fetched = self._client.groups.fetch_offsets(*self._group, partitions=asked)
        told = {each.partition: each.offset async for each in fetched}
        self._acknowledged.told(self._program, floor, told)
        for partition, when in asked.items():
            # Others may have committed if it was taken away in between.
            if self._assigned.get(partition) == when:
                self._offsets[partition] = told.get(partition, 0)

    async def _commit(self, partitions: Sequence[int]) -> None:
        """Commit a higher offset of each partition of which the committed one is known."""
        higher = {each: self._offsets[each] + 1 for each in partitions if each in self._offsets}
        if not higher:
            return
        # Also if no answer comes: then nobody knows whether it was stored.
        self._offsets.update(higher)
        epoch, floor = self._member.member_epoch, self._acknowledged.floor(higher)
        await self._member.commit(higher)
        self._epoch = epoch
        self._acknowledged.stored(self._program, floor, higher)

    async def _commit_too_late(self, partition: int) -> None:
        """Commit what was lost again, at the epoch of that time, past the library's own check."""
        offset, epoch, left = self._lost.pop(partition, (0, 0, 0))
        if not left:
            return
        self._lost[partition] = (offset, epoch, left - 1)
        self._acknowledged.marks[TOO_LATE] += 1
        offsets, floor = {partition: offset}, self._acknowledged.floor([partition])
        await self._client.groups.commit_offsets(*self._group, offsets, member_epoch=epoch)
        self._acknowledged.stored(self._program, floor, offsets)

    def _forget(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._assigned.pop(partition, None)
            self._offsets.pop(partition, None)
