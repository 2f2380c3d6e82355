"""Measures snapshots of a large state, beside etcd's: prints one JSON object.

`python -m benchmarks.snapshots [--quick] [--rounds N] [--seconds S] [--only PART ...]
[--without-etcd]`. A cluster is filled with 1,000,000 partitions in 100,000 topics, 10,000 groups
and 1,000 users (with `--quick` a tenth of it), then: the first snapshot, which is the full one;
snapshots after a part was changed; the latency of commands while snapshots are taken one after
another, and without, in turns; the compaction of a section; the whole cluster killed, and the
streams service alone. After that an etcd with as many keys as there were partitions: its snapshot,
and its restart. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from benchmarks.commands import machine, medians, portable, versions
from benchmarks.snapshot_etcd import (
    POLL_S,
    RESTART_TIMEOUT_S,
    Rounds,
    family_mb,
    measure_etcd,
    tell,
)
from benchmarks.snapshot_files import (
    Compaction,
    WrittenFiles,
    compactions,
    is_to_be_merged,
    written,
)
from benchmarks.snapshot_state import FULL, QUICK, Size, StateTopics, build, change, chosen
from benchmarks.snapshot_turns import LOADS, SnapshotTurns, take
from benchmarks.targets import SNAPSHOT_TARGETS, Figures, judge
from viewstamp import client as library
from viewstamp import transports
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client.verdicts import RetryVerdict, verdict_on
from viewstamp.cluster import LocalCluster
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import Refusal
from viewstamp.routing import SERVICE_NAMES

ROUNDS: Final = 3
SECONDS: Final = 5.0
QUICK_ROUNDS: Final = 1
QUICK_SECONDS: Final = 2.0
# The parts that are measured in this order, after the state is built and the full snapshot taken.
PARTS: Final = ("changes", *LOADS, "compaction", "restart")
# The changed part of all topics, in hundredths of a percent.
CHANGED: Final[Mapping[str, int]] = {"1_percent": 100, "0.01_percent": 1}
# Deltas of more than half of the base are merged.
COMPACTED_SHARE: Final = 0.6
COMPACTION_TIMEOUT_S: Final = 120.0
ATTEMPT_TIMEOUT_S: Final = 5.0
# Take no snapshot without a request.
NO_TRIGGERS: Final = (
    *("--snapshot-commands", "0"),
    *("--snapshot-journal-bytes", "0"),
    *("--snapshot-interval-ms", "0"),
)
_PASSING: Final = frozenset({RetryVerdict.RETRY, RetryVerdict.RECONNECT, RetryVerdict.RENEW})


class SnapshotBench:
    """A filled cluster and its measurements."""

    def __init__(
        self, cluster: LocalCluster, client: library.Client, options: argparse.Namespace
    ) -> None:
        self.rounds: Rounds = {}
        self._cluster = cluster
        self._client = client
        self._options = options
        self._chance = random.Random(1)
        self._values = count(10**9)
        self._names = count(1)
        self._topics: StateTopics | None = None
        self._last: WrittenFiles | None = None

    @property
    def topics(self) -> StateTopics:
        """The topics of the state."""
        assert self._topics is not None, "the cluster was not filled"
        return self._topics

    async def run(self, size: Size) -> None:
        """Measure all parts, in an order in which no part disturbs a later one."""
        started = time.perf_counter()
        self._topics = await build(self._client, size)
        self._add("build", {"seconds": round(time.perf_counter() - started, 1)})
        self._add("memory_without_snapshot", self._memory())
        full = await self._snapshot()
        self._add("full", full)
        self._add("memory", self._memory())
        for part in PARTS:
            if part in self._options.only:
                await self._measure(part, full)

    async def _measure(self, part: str, full: Figures) -> None:
        rounds = range(self._options.rounds)
        if part == "changes":
            for _ in rounds:
                await self._changes(full)
        elif part in LOADS:
            turns = SnapshotTurns(
                self._cluster, self._client, self._options, self.topics.stream_ids, self._add
            )
            for _ in rounds:
                await turns.measure(part)
                await self._snapshot()
        elif part == "compaction":
            await self._compaction()
        else:
            for _ in rounds:
                await self._restart()
                await self._reinstall()
            self._add("memory_after_restart", self._memory())

    def _add(self, name: str, figures: Figures) -> None:
        self.rounds.setdefault(name, []).append(figures)
        tell(name, figures)

    def _memory(self) -> Figures:
        used = {f"{name}_mb": family_mb(pid) for name, pid in self._cluster.pids.items()}
        services = sum(used[f"{name}_mb"] for name in SERVICE_NAMES)
        return {**used, "services_mb": round(services, 1), "total_mb": round(sum(used.values()), 1)}

    async def _snapshot(self) -> Figures:
        """Take a snapshot; return the bytes of one copy, and how long it took."""
        started = time.perf_counter()
        await take(self._client)
        seconds = time.perf_counter() - started
        latest = await self._client.snapshots.latest()
        this = written(self._cluster.data_directory, latest.generation)
        new = this.bytes_beside(self._last)
        self._last = this
        return {"seconds": round(seconds, 3), "bytes": new, "chain_bytes": this.size_bytes}

    async def _changes(self, full: Figures) -> None:
        """Change a part of the state, and take a snapshot of the change."""
        for part, hundredths in CHANGED.items():
            for where in ("random", "clustered"):
                number = max(1, self.topics.count * hundredths // 10_000)
                numbers = chosen(
                    self.topics.count, number, clustered=where == "clustered", chance=self._chance
                )
                await change(self._client, self.topics, numbers, next(self._values))
                figures = dict(await self._snapshot())
                for name in ("bytes", "seconds"):
                    figures[f"{name}_percent"] = round(100 * figures[name] / full[name], 3)
                self._add(f"{where}_{part}", {"topics": number, **figures})

    async def _compaction(self) -> None:
        """Change more than half, and wait until the section was merged into a new base.

        The deltas of a small section must reach a minimum size before a merge; change it again
        until then.
        """
        log = self._cluster.log_path(COORDINATOR)
        known = len(of_streams(log))
        while not await self._is_to_be_compacted():
            pass
        deadline = time.perf_counter() + COMPACTION_TIMEOUT_S
        while not (new := of_streams(log)[known:]):
            if time.perf_counter() > deadline:
                raise TimeoutError(f"no section was compacted within {COMPACTION_TIMEOUT_S:g} s")
            await asyncio.sleep(POLL_S)
        self._add("compaction", {"seconds": new[-1].seconds, "bytes": new[-1].size_bytes})

    async def _is_to_be_compacted(self) -> bool:
        """Change more than half and take a snapshot; return whether it leads to a new base."""
        number = int(self.topics.count * COMPACTED_SHARE)
        numbers = chosen(self.topics.count, number, clustered=False, chance=self._chance)
        await change(self._client, self.topics, numbers, next(self._values))
        self._add("delta_before_compaction", {"topics": number, **await self._snapshot()})
        latest = await self._client.snapshots.latest()
        directory = self._cluster.data_directory
        return is_to_be_merged(directory, latest.generation, routing_pb2.STAGE_STREAMS)

    async def _restart(self) -> None:
        """Kill everything, and wait until a CreateTopic is answered."""
        await self._snapshot()
        token = await self._token()
        for name in (COORDINATOR, *SERVICE_NAMES):
            self._cluster.kill(name)
        seconds = await until_answered(
            self._cluster.address,
            token,
            lambda: self.topics.create_one_more(f"one-more-{next(self._names)}"),
        )
        self._add("restart", {"first_command_s": round(seconds, 3)})
        await self._cluster.wait_ready(RESTART_TIMEOUT_S)

    async def _reinstall(self) -> None:
        """Kill the streams service, and wait until a GetTopic is answered."""
        token = await self._token()
        self._cluster.kill("streams")
        number = self._chance.randrange(self.topics.count)
        seconds = await until_answered(
            self._cluster.address, token, lambda: self.topics.get(number)
        )
        self._add("streams_reinstall", {"first_read_s": round(seconds, 3)})
        await self._cluster.wait_ready(RESTART_TIMEOUT_S)

    async def _token(self) -> str:
        password = self._cluster.root_password_path.read_text().strip()
        async with grpc.aio.insecure_channel(self._cluster.address) as channel:
            login = users_pb2.LoginRequest(username="root", password=password)
            return str((await library.unary(channel, login)).access_token)


def of_streams(log: Path) -> list[Compaction]:
    """Return the compactions of the section with the topics."""
    return [one for one in compactions(log) if one.stage == routing_pb2.STAGE_STREAMS]


async def until_answered(address: str, token: str, request: Callable[[], Message]) -> float:
    """Call over and over, by a new connection each time; return the seconds until an answer.

    Raises Refusal if it is refused for good, TimeoutError.
    """
    started = time.perf_counter()
    async with asyncio.timeout(RESTART_TIMEOUT_S):
        while True:
            channel = library.Endpoint(address).open()
            try:
                await library.unary(
                    channel, request(), access_token=token, timeout_s=ATTEMPT_TIMEOUT_S
                )
                return time.perf_counter() - started
            except Refusal as refusal:
                if verdict_on(refusal) not in _PASSING:
                    raise
            except grpc.aio.AioRpcError:
                pass  # nobody listens yet, or the answer died with the process
            finally:
                await channel.close()
            await asyncio.sleep(POLL_S)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both and return the result."""
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="viewstamp-benchmark-") as name:
        directory = Path(name)
        rounds = await measure_cluster(directory, size, options)
        about: dict[str, Any] = {
            "transport": transports.chosen(),
            "machine": machine(),
            "benchmark": portable(sys.orig_argv),
        }
        if not options.without_etcd:
            keys = size.topics * size.partitions_per_topic
            theirs, etcd = await measure_etcd(directory, keys, options.rounds)
            rounds |= theirs
            about |= {"versions": versions(etcd), "etcd": portable(etcd.command)}
    return report(rounds) | about


async def measure_cluster(directory: Path, size: Size, options: argparse.Namespace) -> Rounds:
    """Measure a new cluster and end it; the owner of the directory deletes the data."""
    cluster = LocalCluster(
        directory / "viewstamp", "127.0.0.1:0", coordinator_arguments=NO_TRIGGERS
    )
    async with cluster:
        password = cluster.root_password_path.read_text().strip()
        client = await library.connect(
            cluster.address, username="root", password=password, timeout_s=RESTART_TIMEOUT_S
        )
        async with client:
            bench = SnapshotBench(cluster, client, options)
            await bench.run(size)
    return bench.rounds


def report(rounds: Mapping[str, list[Figures]]) -> dict[str, Any]:
    """Return what follows from the figures, and the figures."""
    return {
        "targets": [
            judge(target, rounds) for target in SNAPSHOT_TARGETS if target.workload in rounds
        ],
        "medians": {name: medians(measured) for name, measured in rounds.items()},
        "rounds": rounds,
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshots", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a tenth of the state, one short round")
    add("--rounds", type=int, help=f"how often each is measured (default {ROUNDS})")
    add("--seconds", type=float, help=f"how long each load is measured (default {SECONDS})")
    add("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    add("--without-etcd", action="store_true", help="our side alone")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    return options


def main() -> int:
    """Measure and print."""
    print(json.dumps(asyncio.run(run(parse())), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
