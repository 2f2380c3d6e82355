"""Measures a cluster of ten million partitions: prints one JSON object.

`python -m benchmarks.size [--topics N] [--rounds N] [--only PART ...] [--limits BYTES ...]`. A
cluster of one replica is filled with a million topics of ten partitions each by our client, then:
memory of each process, a full snapshot with its cut, snapshots after parts of the topics were
changed, commands beside each of these, a restart of everything, and of the streams service alone.
After that three replicas are filled, and send their snapshot to a blank one: from one peer and from
two, in turns, under each limit of what a peer may send (`size_transfers`). At the end layers are
compared with one serialized state in a process of its own (`state_forms`). Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc.aio

from benchmarks.commands import machine, medians, portable, told_by
from benchmarks.size_figures import SizeCaller, last_spans, memory_of
from benchmarks.size_transfers import SizeTransfers
from benchmarks.snapshot_etcd import tell
from benchmarks.snapshot_files import WrittenFiles, written
from benchmarks.snapshot_state import Size, StateTopics, build, change, chosen
from benchmarks.snapshot_turns import take
from benchmarks.snapshots import NO_TRIGGERS, until_answered
from benchmarks.targets import Figures
from coordinator.peers.send_shares import SEND_BYTES_PER_S
from viewstamp import client as library
from viewstamp import transports
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.cluster import LocalCluster
from viewstamp.cluster.local import COORDINATOR
from viewstamp.limits import MIB, TOPICS_PER_STREAM_MAX
from viewstamp.routing import SERVICE_NAMES
from viewstamp.telemetry.settings import TelemetrySettings

TOPICS: Final = 1_000_000
PARTITIONS_PER_TOPIC: Final = 10
TOPICS_PER_STREAM: Final = 4_000
ROUNDS: Final = 3
QUIET_S: Final = 5.0
# The changed parts of all topics, in hundredths of a percent.
CHANGED: Final = (1, 100, 1_000)
# What peers may send in a second: what ships, and so little that it decides.
LIMITS: Final = (SEND_BYTES_PER_S, 4 * MIB)
PARTS: Final = ("lone", "transfer", "forms")
READY_TIMEOUT_S: Final = 900.0
# Three replicas write their snapshots at once, on one machine, which others may use, too.
DEADLINE: Final = ("--snapshot-deadline-ms", "1800000")
# Nothing is kept for who is away, who then needs a snapshot.
SHORT_JOURNAL: Final = (
    *("--journal-retain-ms", "0"),
    *("--journal-segment-bytes", str(4 * MIB)),
)


class SizeBench:
    """A filled cluster of one replica, and its measurements."""

    def __init__(
        self, cluster: LocalCluster, client: library.Client, telemetry: Path, rounds: Rounds
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._telemetry = telemetry
        self._rounds = rounds
        self._chance = random.Random(1)
        self._values = count(10**9)
        self._last: WrittenFiles | None = None

    async def run(self, size: Size, rounds: int) -> None:
        """Measure all parts."""
        add, began_s = self._rounds.add, time.perf_counter()
        topics = await build(self._client, size)
        seconds = time.perf_counter() - began_s
        per_s = round(size.topics / seconds)
        add("build", {"seconds": round(seconds, 1), "topics_per_s": per_s})
        add("memory_without_snapshot", memory_of(self._cluster))
        caller = SizeCaller(self._client, topics)
        add("quiet", await self._beside(caller, asyncio.sleep(QUIET_S)))
        add("full", await self._snapshot())
        add("memory", memory_of(self._cluster))
        for _ in range(rounds):
            await self._changes(topics, caller)
            await self._restart(topics)
        add("memory_after_restart", memory_of(self._cluster))

    async def _beside(self, caller: SizeCaller, work: Awaitable[None]) -> Figures:
        _, figures = await caller.beside(work)
        return figures

    async def _snapshot(self) -> Figures:
        """Take a snapshot; return its bytes, of one copy, and its times."""
        began_s = time.perf_counter()
        await take(self._client)
        seconds = time.perf_counter() - began_s
        latest = await self._client.snapshots.latest()
        this = written(self._cluster.data_directory, latest.generation)
        new = this.bytes_beside(self._last)
        self._last = this
        await asyncio.sleep(1)  # spans are written by a thread, soon
        spans = last_spans(self._telemetry)
        return {
            "seconds": round(seconds, 3),
            "bytes": new,
            "chain_bytes": this.size_bytes,
            "cut_ms": round(1_000 * spans["cut"], 3),
            "section_streams_s": round(spans["section streams"], 3),
        }

    async def _changes(self, topics: StateTopics, caller: SizeCaller) -> None:
        for hundredths in CHANGED:
            number = max(1, topics.count * hundredths // 10_000)
            numbers = chosen(topics.count, number, clustered=False, chance=self._chance)
            await change(self._client, topics, numbers, next(self._values))
            name = f"changed_{hundredths / 100:g}_percent"
            self._rounds.add(name, {"topics": number, **await self._snapshot()})
            await change(self._client, topics, numbers, next(self._values))
            taken, beside = await caller.beside(self._snapshot())
            self._rounds.add(f"{name}_beside_commands", {**taken, **beside})

    async def _restart(self, topics: StateTopics) -> None:
        """Kill everything, and wait for an answer to a command; then streams alone, and a read."""
        token, names = await self._token(), count(time.monotonic_ns())
        for name in (COORDINATOR, *SERVICE_NAMES):
            self._cluster.kill(name)
        seconds = await until_answered(
            self._cluster.address, token, lambda: topics.create_one_more(f"more-{next(names)}")
        )
        self._rounds.add("restart", {"first_command_s": round(seconds, 3)})
        await self._cluster.wait_ready(READY_TIMEOUT_S)
        token = await self._token()
        self._cluster.kill("streams")
        seconds = await until_answered(self._cluster.address, token, lambda: topics.get(0))
        self._rounds.add("streams_reinstall", {"first_read_s": round(seconds, 3)})
        await self._cluster.wait_ready(READY_TIMEOUT_S)

    async def _token(self) -> str:
        password = self._cluster.root_password_path.read_text().strip()
        async with grpc.aio.insecure_channel(self._cluster.address) as channel:
            login = users_pb2.LoginRequest(username="root", password=password)
            return str((await library.unary(channel, login)).access_token)


class Rounds:
    """All figures, by name."""

    def __init__(self) -> None:
        self.found: dict[str, list[Figures]] = {}

    def add(self, name: str, figures: Figures) -> None:
        """Keep figures, and tell them."""
        self.found.setdefault(name, []).append(figures)
        tell(name, figures)


def size_of(topics: int) -> Size:
    """Return a state with so many topics, few groups and few users."""
    assert TOPICS_PER_STREAM <= TOPICS_PER_STREAM_MAX
    per_stream = min(TOPICS_PER_STREAM, topics)
    streams = -(-topics // per_stream)
    return Size(streams, per_stream, PARTITIONS_PER_TOPIC, max(1, min(1_000, topics // 100)), 20)


async def measure_lone(directory: Path, size: Size, options: argparse.Namespace) -> Rounds:
    """Measure a cluster of one replica."""
    rounds, telemetry = Rounds(), directory / "telemetry"
    cluster = LocalCluster(
        directory / "lone",
        "127.0.0.1:0",
        coordinator_arguments=NO_TRIGGERS,
        telemetry=TelemetrySettings(telemetry, 0.0),
    )
    async with cluster:
        password = cluster.root_password_path.read_text().strip()
        client = await library.connect(
            cluster.address, username="root", password=password, timeout_s=READY_TIMEOUT_S
        )
        async with client:
            await SizeBench(cluster, client, telemetry, rounds).run(size, options.rounds)
    return rounds


async def measure_transfers(directory: Path, size: Size, options: argparse.Namespace) -> Rounds:
    """Measure the ways of a snapshot to a blank replica."""
    rounds = Rounds()
    arguments = (*NO_TRIGGERS, *DEADLINE, *SHORT_JOURNAL)
    transfers = SizeTransfers(directory / "three", arguments, rounds.add)
    await transfers.run(size, options.limits, options.rounds)
    return rounds


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts and return the result."""
    size, loads = size_of(options.topics), [machine()]
    found: dict[str, list[Figures]] = {}
    about: dict[str, Any] = {
        "topics": size.topics,
        "partitions": size.topics * size.partitions_per_topic,
        "transport": transports.chosen(),
    }
    with tempfile.TemporaryDirectory(prefix="viewstamp-benchmark-", dir=options.directory) as name:
        if "lone" in options.only:
            found |= (await measure_lone(Path(name), size, options)).found
        if "transfer" in options.only:
            found |= (await measure_transfers(Path(name), size, options)).found
        if "forms" in options.only:
            command = [sys.executable, "-m", "benchmarks.state_forms", "--directory", name]
            command += ["--topics", str(size.topics), "--rounds", str(options.rounds)]
            about["forms"] = (await told_by(command))["medians"]
    loads.append(machine())
    return {
        "medians": {name: medians(measured) for name, measured in found.items()},
        "rounds": found,
        **about,
        "machine": loads[0],
        "load_average_after": loads[1]["load_average"],
        "benchmark": portable(sys.orig_argv),
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size", description=__doc__)
    add = parser.add_argument
    add("--topics", type=int, default=TOPICS, help=f"topics of ten partitions (default {TOPICS})")
    add("--rounds", type=int, default=ROUNDS, help=f"how often each is measured ({ROUNDS})")
    add("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    add(
        "--limits",
        nargs="+",
        type=int,
        default=LIMITS,
        metavar="BYTES",
        help=f"what a peer may send in a second, in turn; 0 sets no limit (default {LIMITS})",
    )
    add("--directory", type=Path, help="where to write (default: a temporary directory)")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure and print."""
    print(json.dumps(asyncio.run(run(parse())), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
