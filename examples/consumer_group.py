"""Share the partitions of a topic between two members of a consumer group: ADDRESS PASSWORD_FILE.

A member is a client's session. A heartbeat reports the partitions that the member holds, and
returns those that it may hold. A partition moves only after the member that holds it has given it
up.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import viewstamp
from viewstamp.client import Client

GROUP = ("readers", "events", "workers")
PARTITIONS = 6


class Member:
    """One member: it confirms its partitions until the group is balanced."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._epoch = 0
        self.owned: list[int] = []

    async def join(self) -> None:
        """Become a member."""
        joined = await self._client.groups.join(*GROUP)
        self._epoch = joined.member_epoch

    async def heartbeat(self) -> None:
        """Report the partitions held, without those that must be given up; learn the next ones."""
        answer = await self._client.groups.heartbeat(
            *GROUP, member_epoch=self._epoch, owned_partitions=self.owned
        )
        self._epoch = answer.member_epoch
        self.owned = list(answer.owned_partitions)


async def balance(members: list[Member]) -> None:
    """Send heartbeats until the members hold all partitions in equal shares."""
    share = PARTITIONS // len(members)
    while any(len(member.owned) != share for member in members):
        for member in members:
            await member.heartbeat()


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
        one, two = Member(first), Member(second)
        await one.join()
        await balance([one])
        print("alone:", one.owned)
        await two.join()
        await balance([one, two])
        print("first:", one.owned)
        print("second:", two.owned)
        await second.groups.leave(*GROUP)
        await balance([one])
        print("alone again:", one.owned)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
