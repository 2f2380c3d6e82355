"""Measures how many offsets brokers can commit: prints one JSON object.

`python -m benchmarks.offsets [--replicas N] [--brokers N] [--groups N] [--offsets N ...]
[--rounds N] [--seconds S]`. One cluster is started here. Groups with one member each read a topic
whose ends brokers have reported. Each broker commits for the members of its groups: a message has
one command for each group, with so many offsets, fenced by session and epoch, and checked against
the ends.

Two loads take turns, every other round in reverse. With `steady` each broker sends one message per
second, all together 200,000 offsets per second, which is the goal; the report has what was
acknowledged, how long a message took, and the share of one core that all processes of the cluster
needed. With `full` brokers send the next message as soon as the last one was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import psutil

from benchmarks.commands import machine
from viewstamp.api.common.v1.common_pb2 import Identifier, PartitionOffset
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import Client, connect
from viewstamp.cluster import LocalCluster, LocalReplicas
from viewstamp.errors import Refusal
from viewstamp.limits import MEMBER_TIMEOUT_MAX_US, ROOT_USERNAME

STREAM, TOPIC = "offsets", "events"
BROKERS: Final = 20
GROUPS: Final = 100
# Offsets of a command: a group's in the partitions that one broker leads.
OFFSETS: Final = (10, 100, 1_000)
GOAL_PER_S: Final = 200_000
ROUNDS: Final = 3
SECONDS: Final = 5.0
END: Final = 1 << 40


@dataclass(slots=True)
class CommittingBroker:
    """A client that commits for the members of its groups."""

    client: Client
    groups: list[tuple[int, int]]  # id of the group, epoch of its member
    member_session: int
    topic: dict[str, Any]
    offset: int = 0
    committed: int = 0
    took_ms: list[float] = field(default_factory=list)

    def _message(self, offsets_count: int, commands: int) -> list[groups_pb2.CommitOffsetsRequest]:
        self.offset += 1
        offsets = [
            PartitionOffset(partition=partition, offset=self.offset)
            for partition in range(offsets_count)
        ]
        return [
            groups_pb2.CommitOffsetsRequest(
                **self.topic,
                group=Identifier(id=group),
                member_epoch=epoch,
                session_id=self.member_session,
                offsets=offsets,
            )
            for group, epoch in (self.groups * (commands // len(self.groups) + 1))[:commands]
        ]

    async def commit(self, offsets_count: int, commands: int) -> None:
        """Send one message, and expect that all of it takes effect."""
        loop = asyncio.get_running_loop()
        requests, begin_s = self._message(offsets_count, commands), loop.time()
        results = await self.client.batch(requests)
        self.took_ms.append((loop.time() - begin_s) * 1_000)
        refused = [result for result in results if isinstance(result, Refusal)]
        if refused:
            raise refused[0]
        self.committed += offsets_count * len(results)


async def prepared(
    clients: Sequence[Client], brokers: int, groups: int, partitions: int
) -> list[CommittingBroker]:
    """Create the topic and the groups, each with one member that owns all partitions."""
    member, *rest = clients
    await member.streams.create(STREAM)
    await member.topics.create(STREAM, TOPIC, partitions_count=partitions)
    topic: dict[str, Any] = {"stream": Identifier(name=STREAM), "topic": Identifier(name=TOPIC)}
    ends = [PartitionOffset(partition=each, offset=END) for each in range(partitions)]
    await member.call(streams_pb2.ReportPartitionEndsRequest(**topic, end_offsets=ends))
    owned = [await _owned_group(member, f"group-{number}") for number in range(groups)]
    share = max(1, groups // brokers)
    return [
        CommittingBroker(client, owned[number * share % groups :][:share], member.session_id, topic)
        for number, client in enumerate(rest)
    ]


async def _owned_group(member: Client, name: str) -> tuple[int, int]:
    timeout_ms = MEMBER_TIMEOUT_MAX_US // 1_000
    created = await member.groups.create(STREAM, TOPIC, name, member_timeout_ms=timeout_ms)
    epoch = (await member.groups.join(STREAM, TOPIC, name)).member_epoch
    while True:
        answer = await member.groups.heartbeat(
            STREAM, TOPIC, name, member_epoch=epoch, owned_partitions=(), known_assignment=0
        )
        epoch = answer.member_epoch
        if answer.owned_partitions:
            return created.group_id, epoch
        await asyncio.sleep(0.01)


async def steady(brokers: Sequence[CommittingBroker], offsets_count: int, seconds: float) -> None:
    """Have each broker send one message per second, spread evenly."""
    commands = GOAL_PER_S // len(brokers) // offsets_count
    loop = asyncio.get_running_loop()
    begin_s = loop.time()

    async def send(number: int, broker: CommittingBroker) -> None:
        for second in range(int(seconds)):
            due_s = begin_s + second + number / len(brokers)
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            await broker.commit(offsets_count, commands)

    await asyncio.gather(*(send(number, broker) for number, broker in enumerate(brokers)))
    await asyncio.sleep(max(0.0, begin_s + seconds - loop.time()))


async def full(brokers: Sequence[CommittingBroker], offsets_count: int, seconds: float) -> None:
    """Have each broker send its next message once the last one was answered."""
    commands = GOAL_PER_S // len(brokers) // offsets_count
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds

    async def send(broker: CommittingBroker) -> None:
        while loop.time() < end_s:
            await broker.commit(offsets_count, commands)

    await asyncio.gather(*map(send, brokers))


Load = Callable[[Sequence[CommittingBroker], int, float], Awaitable[None]]
LOADS: Final[dict[str, Load]] = {"steady": steady, "full": full}


async def measured(
    processes: Sequence[psutil.Process],
    brokers: Sequence[CommittingBroker],
    load: str,
    offsets_count: int,
    seconds: float,
) -> dict[str, float]:
    """Run a load and return its rate, the time of its messages and what the cluster needed."""
    loop = asyncio.get_running_loop()
    for broker in brokers:
        broker.committed = 0
        broker.took_ms.clear()
    cpu_s, begin_s = spent_s(processes), loop.time()
    await LOADS[load](brokers, offsets_count, seconds)
    elapsed_s, cpu_s = loop.time() - begin_s, spent_s(processes) - cpu_s
    committed = sum(broker.committed for broker in brokers)
    took_ms = [each for broker in brokers for each in broker.took_ms]
    return {
        "offsets_per_s": committed / elapsed_s,
        "cores": cpu_s / elapsed_s,
        "cpu_us_per_offset": cpu_s * 1e6 / committed,
        "p50_ms": median(took_ms),
        "p99_ms": quantiles(took_ms, n=100)[98] if len(took_ms) > 1 else took_ms[0],
    }


def spent_s(processes: Sequence[psutil.Process]) -> float:
    """Return the processor time that processes have used, in seconds."""
    times = [process.cpu_times() for process in processes]
    return sum(spent.user + spent.system for spent in times)


async def compared(
    processes: Sequence[psutil.Process],
    brokers: Sequence[CommittingBroker],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Measure all loads in turns; return the medians of the rounds."""
    cases = [(load, count) for count in options.offsets for load in LOADS]
    found: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in cases}
    for number in range(options.rounds):
        for case in cases[:: -1 if number % 2 else 1]:
            found[case].append(await measured(processes, brokers, *case, options.seconds))
            print(*case, found[case][-1], file=sys.stderr)
    return {
        f"{load}, {count} offsets a command": {
            name: round(median(row[name] for row in rows), 3) for name in rows[0]
        }
        for (load, count), rows in found.items()
    }


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a cluster with brokers, and measure it."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vs-offsets")))
        started = await stack.enter_async_context(started_in(directory, options.replicas))
        password = started.password_path.read_text().strip()
        clients = [
            await stack.enter_async_context(
                await connect(started.addresses, username=ROOT_USERNAME, password=password)
            )
            for _ in range(options.brokers + 1)
        ]
        brokers = await prepared(clients, options.brokers, options.groups, max(options.offsets))
        found = await compared(started.processes, brokers, options)
    return {
        "machine": machine(),
        "replicas": options.replicas,
        "brokers": options.brokers,
        "groups": options.groups,
        **found,
    }


@dataclass(frozen=True, slots=True)
class StartedCluster:
    """Where a cluster is, and its coordinators and services."""

    addresses: Sequence[str]
    password_path: Path
    processes: Sequence[psutil.Process]


@asynccontextmanager
async def started_in(directory: Path, replica_count: int) -> AsyncIterator[StartedCluster]:
    """Start so many replicas."""
    if replica_count == 1:
        async with LocalCluster(directory, "127.0.0.1:0") as lone:
            processes = [psutil.Process(pid) for pid in lone.pids.values()]
            yield StartedCluster([lone.address], lone.root_password_path, processes)
        return
    async with LocalReplicas(directory, replica_count, "127.0.0.1:0") as several:
        pids = [pid for each in several.replicas for pid in each.pids.values()]
        processes = [psutil.Process(pid) for pid in pids]
        yield StartedCluster(several.addresses, several.root_password_path, processes)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offsets", description=__doc__)
    parser.add_argument("--replicas", type=int, choices=(1, 3, 5), default=1)
    parser.add_argument("--brokers", type=int, default=BROKERS)
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--offsets", type=int, nargs="*", default=OFFSETS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
