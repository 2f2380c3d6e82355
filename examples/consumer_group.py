"""Share the partitions of a topic between two members of a consumer group: ADDRESS PASSWORD_FILE.

A member is a client's session, and `client.groups.member` keeps it alive. A partition moves only
after the member that holds it has given it up: it commits how far it has read, and then asks for
the next change. Who gets the partition reads on there. No messages are read here, they are counted.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import viewstamp
from viewstamp.client import Client
from viewstamp.client.membership import AssignmentChange

GROUP = ("readers", "events", "workers")
PARTITIONS = 6


class Worker:
    """Reads the partitions that its member owns, until it is told to end."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.member = client.groups.member(*GROUP)
        self.positions: dict[int, int] = {}  # the next offset to read, by partition
        self._has_changed = asyncio.Event()

    async def run(self) -> None:
        """Stay in the group, follow what may be read, and commit what was read at the end."""
        async with self.member:
            try:
                async for change in self.member:
                    await self._follow(change)
                    self._has_changed.set()
            finally:
                if self.positions:
                    await self.member.commit(self.positions)

    async def _follow(self, change: AssignmentChange) -> None:
        """Commit what is given up, forget what was lost, and read on where others have ended."""
        for partition in change.lost:
            self.positions.pop(partition, None)
        given_up = {partition: self.positions.pop(partition) for partition in change.revoked}
        if given_up:
            await self.member.commit(given_up)
        begun = dict.fromkeys(change.assigned, 0)
        async for each in self.client.groups.fetch_offsets(*GROUP, partitions=begun):
            begun[each.partition] = each.offset
        self.positions |= begun

    def read(self, count: int) -> None:
        """Read so many messages of each partition."""
        self.positions = {each: offset + count for each, offset in self.positions.items()}

    async def reads(self, count: int) -> dict[int, int]:
        """Wait until it reads so many partitions, and return where it is in each."""
        while len(self.positions) != count:
            self._has_changed.clear()
            await self._has_changed.wait()
        return dict(sorted(self.positions.items()))


async def main(address: str, password_file: str) -> None:
    """Start with one member, add another, and show who reads what from where."""
    password = Path(password_file).read_text().strip()
    first, second = [
        await viewstamp.connect(address, username="root", password=password) for _ in range(2)
    ]
    async with first, second:
        await first.streams.create("readers")
        await first.topics.create("readers", "events", partitions_count=PARTITIONS)
        await first.groups.create(*GROUP)
        one, two = Worker(first), Worker(second)
        working = asyncio.create_task(one.run())
        print("alone:", await one.reads(PARTITIONS))
        one.read(10)
        leaving = asyncio.create_task(two.run())
        print("first:", await one.reads(PARTITIONS // 2))
        print("second:", await two.reads(PARTITIONS // 2))
        two.read(5)
        leaving.cancel()
        print("alone again:", await one.reads(PARTITIONS))
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
