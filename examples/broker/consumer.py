"""A consumer: ADDRESSES PASSWORD_FILE. It reads what its group assigns to it, and commits.

It prints what it may read, what it has given up, and what it has read, as lines of JSON.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import viewstamp
from examples.broker.finding import TOPIC, LeaderFinder
from examples.broker.wire import tell
from viewstamp.client import Client, ClientError, Refusal
from viewstamp.client.membership import AssignmentChange

GROUP: Final = (*TOPIC, "readers")
POLL_S: Final = 0.1


class ExampleConsumer:
    """One member of the group, with a task for each partition that it reads."""

    def __init__(self, client: Client) -> None:
        self.member = client.groups.member(*GROUP)
        self._client = client
        self._finder = LeaderFinder(client)
        self._reading: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Read what is assigned, until somebody cancels it."""
        async with self.member:
            try:
                async for change in self.member:
                    await self._follow(change)
            finally:
                await self._give_up(list(self._reading))

    async def _give_up(self, partitions: Iterable[int]) -> None:
        """Stop to read, before others may begin."""
        for partition in partitions:
            task = self._reading.pop(partition)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            tell(gave_up=partition, at_s=time.monotonic())

    async def _follow(self, change: AssignmentChange) -> None:
        await self._give_up((*change.lost, *change.revoked))
        begun = dict.fromkeys(change.assigned, 0)
        if begun:
            async for each in self._client.groups.fetch_offsets(*GROUP, partitions=begun):
                begun[each.partition] = each.offset
        topic = await self._client.topics.get(*TOPIC)
        for partition, offset in begun.items():
            tell(owns=partition, at_s=time.monotonic())
            place = (topic.stream_id, topic.id, partition)
            self._reading[partition] = asyncio.create_task(self._read(place, offset))

    async def _read(self, place: tuple[int, int, int], offset: int) -> None:
        """Read a partition from an offset on, and commit what was printed."""
        while True:
            request = {"do": "read", "place": place, "from": offset}
            texts = (await self._finder.ask_leader(place[2], request))["texts"]
            for text in texts:
                tell(partition=place[2], offset=offset, text=text)
                offset += 1
            if texts:
                # What is not committed is read again by whoever reads on.
                with suppress(Refusal, ClientError):
                    await self.member.commit({place[2]: offset}, allow_out_of_range=True)
            await asyncio.sleep(POLL_S)


async def main(addresses: str, password_file: str) -> None:
    """Read until SIGTERM."""
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    password = Path(password_file).read_text().strip()
    async with await viewstamp.connect(
        addresses.split(","), username="root", password=password
    ) as client:
        await ExampleConsumer(client).run()


if __name__ == "__main__":
    with suppress(asyncio.CancelledError):
        asyncio.run(main(*sys.argv[1:3]))
