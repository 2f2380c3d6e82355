"""Share the partitions of a topic between two members of a consumer group: ADDRESS PASSWORD_FILE.

A member is a client's session, and `client.groups.member` keeps it alive. A partition moves only
after the member that holds it has given it up: it does so by asking for the next change.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import viewstamp
from viewstamp.client import Client

GROUP = ("readers", "events", "workers")
PARTITIONS = 6


class Worker:
    """Reads the partitions that its member owns, until it is told to end."""

    def __init__(self, client: Client) -> None:
        self.member = client.groups.member(*GROUP)
        self._has_changed = asyncio.Event()

    async def run(self) -> None:
        """Stay in the group, and follow what may be read."""
        async with self.member:
            async for _change in self.member:
                # Here a program begins to read `assigned`, and stops reading `revoked` and `lost`
                # before it asks for the next change.
                self._has_changed.set()

    async def reads(self, count: int) -> list[int]:
        """Wait until the member owns so many partitions, and return them."""
        while len(self.member.owned) != count:
            self._has_changed.clear()
            await self._has_changed.wait()
        return sorted(self.member.owned)


async def main(address: str, password_file: str) -> None:
    """Start with one member, add another, and show who owns what."""
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
        leaving = asyncio.create_task(two.run())
        print("first:", await one.reads(PARTITIONS // 2))
        print("second:", await two.reads(PARTITIONS // 2))
        leaving.cancel()
        print("alone again:", await one.reads(PARTITIONS))
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
