"""Three brokers and two consumers, of which some are killed: nothing acknowledged is lost.

Starts a cluster of three replicas in a directory of its own, three brokers and two consumers as
processes, and writes messages. Kills a broker and the primary in the midst of it, and starts the
broker again. Then it compares what was acknowledged with what consumers read and with what is in
the files of the brokers. Exit code: 0 if every promise was kept, 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import viewstamp
from examples.broker.consumer import GROUP
from examples.broker.finding import TOPIC, LeaderFinder
from examples.broker.judging import Judgement, Lines
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.client import Client
from viewstamp.cluster import LocalReplicas
from viewstamp.cluster.local import COORDINATOR

PARTITIONS: Final = 4
BROKERS: Final = ("one", "two", "three")
CONSUMERS: Final = 2
# Messages of each partition that are acknowledged before something happens, and after it.
MESSAGES: Final = 10
PAUSE_S: Final = 0.05
MEMBER_TIMEOUT_MS: Final = 10_000
READ_TIMEOUT_S: Final = 30.0
LIMIT_S: Final = 150.0


class Child:
    """A process whose lines are kept."""

    def __init__(self, *command: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._command = command

    async def start(self) -> None:
        """Start it, and keep what it prints."""
        arguments = ("-m", *self._command)
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        self._reading = asyncio.create_task(self._read(self.process.stdout))

    async def stop(self) -> None:
        """End it by SIGTERM, if it runs, and wait for its last line."""
        if self.process is not None and self._reading is not None:
            if self.process.returncode is None:
                self.process.terminate()
            await self._reading
            await self.process.wait()

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert self.process is not None, "it was started"
        self.process.kill()

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        async for line in stdout:
            self.lines.append(json.loads(line))


class BrokerShow:
    """One run in one directory."""

    def __init__(self, directory: Path, replicas_count: int) -> None:
        self.judgement = Judgement(directory)
        self._directory = directory
        self._cluster = LocalReplicas(directory / "cluster", replicas_count, "127.0.0.1:0")
        self._acknowledged = [0] * PARTITIONS
        self._started_s = time.monotonic()

    async def run(self) -> None:
        """Write while a broker and the primary die. Raises TimeoutError."""
        async with asyncio.timeout(LIMIT_S), self._cluster, AsyncExitStack() as stack:
            password = self._cluster.root_password_path.read_text().strip()
            client = await stack.enter_async_context(
                await viewstamp.connect(self._cluster.addresses, username="root", password=password)
            )
            addresses = ",".join(self._cluster.addresses)
            place = (addresses, str(self._cluster.root_password_path))
            brokers = [
                Child("examples.broker.broker", *place, name, str(self._directory / name))
                for name in BROKERS
            ]
            consumers = [Child("examples.broker.consumer", *place) for _ in range(CONSUMERS)]
            for child in (*brokers, *consumers):
                stack.push_async_callback(child.stop)
            for child in brokers:
                await child.start()
            await until(lambda: self._are_registered(client))
            topic = await self._create(client)
            for child in consumers:
                await child.start()
            self._say("three brokers lead, two consumers read")
            await self._hurt(client, topic, brokers)
            self._say("all messages are acknowledged: waiting until they are read")
            read = [child.lines for child in consumers]
            # What is lost is never read: the judgement says what.
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await until(lambda: self._is_read(read))
            for child in (*consumers, *brokers):
                await child.stop()
            self.judgement.judge(read, [line for each in brokers for line in each.lines])

    async def _hurt(self, client: Client, topic: streams_pb2.Topic, brokers: list[Child]) -> None:
        """Kill a broker and the primary while messages are written, and start the broker again."""
        writing = [asyncio.create_task(self._write(client, topic, n)) for n in range(PARTITIONS)]
        await self._written()
        brokers[0].kill()
        primary = (await client.status()).primary
        self._cluster.replicas[primary].kill(COORDINATOR)
        self._say(f"killed broker {BROKERS[0]} and the primary, replica {primary}")
        await self._written()
        self._say("others lead in its place: the broker comes back")
        await brokers[0].start()
        await until(lambda: self._are_in_sync(client))
        await self._written()
        self._say("it has caught up, and is in sync with all partitions")
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)

    async def _write(self, client: Client, topic: streams_pb2.Topic, partition: int) -> None:
        """Write one message after another to a partition; note what was acknowledged."""
        finder, number = LeaderFinder(client), 0
        while True:
            text = f"message {number} of partition {partition}"
            place = (topic.stream_id, topic.id, partition)
            request = {"do": "append", "place": place, "text": text}
            offset = (await finder.ask_leader(partition, request))["offset"]
            self.judgement.acknowledged[partition, offset] = text
            self._acknowledged[partition] += 1
            number += 1
            await asyncio.sleep(PAUSE_S)

    async def _written(self) -> None:
        """Wait until some more messages of each partition are acknowledged."""
        wanted = [count + MESSAGES for count in self._acknowledged]

        async def are_written() -> bool:
            return all(a >= b for a, b in zip(self._acknowledged, wanted, strict=True))

        await until(are_written)

    async def _create(self, client: Client) -> streams_pb2.Topic:
        """Create topic and group; all brokers get all partitions."""
        options = streams_pb2.TopicOptions(replication_factor=len(BROKERS))
        await client.streams.create(TOPIC[0])
        await client.topics.create(*TOPIC, partitions_count=PARTITIONS, options=options)
        await client.groups.create(*GROUP, member_timeout_ms=MEMBER_TIMEOUT_MS)
        return await client.topics.get(*TOPIC)

    async def _is_read(self, consumers: Sequence[Lines]) -> bool:
        return self.judgement.is_read(consumers)

    async def _are_registered(self, client: Client) -> bool:
        return len([each async for each in client.brokers.list()]) == len(BROKERS)

    async def _are_in_sync(self, client: Client) -> bool:
        placements = [each async for each in client.brokers.placements(*TOPIC)]
        return all(len(each.in_sync) == len(BROKERS) for each in placements)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started_s:5.1f} s  {text}", flush=True)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds."""
    while not await holds():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(PAUSE_S)


async def main() -> int:
    """Run it once, and return the exit code."""
    parser = argparse.ArgumentParser(description="Show what brokers survive.")
    parser.add_argument("--replicas", type=int, default=3, help="replicas of the cluster")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="viewstamp-brokers-") as directory:
        show = BrokerShow(Path(directory), options.replicas)
        await show.run()
    print(show.judgement)
    return 1 if show.judgement.faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
