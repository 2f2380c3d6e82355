"""Measures the outage after a kill of the primary, beside etcd: prints one JSON object.

`python -m benchmarks.failover [--quick] [--kills N] [--without-etcd]`. Three replicas of ours and
three nodes of etcd run on loopback with default settings. In turns, a few callers put a light load
on each system. Its leader gets SIGKILL and is started again at once, as a supervisor would do. The
window is the longest time around the kill in which no caller was answered. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

import grpc.aio

from benchmarks.commands import machine, portable, versions
from benchmarks.etcd_client import EtcdClient, PutRequest
from benchmarks.etcd_server import EtcdCluster
from benchmarks.targets import FAILOVER_TARGETS, Figures, judge
from viewstamp import transports
from viewstamp.client import Client, connect
from viewstamp.cluster import LocalReplicas
from viewstamp.cluster.local import COORDINATOR

KILLS: Final = 20
QUICK_KILLS: Final = 3
REPLICAS: Final = 3
CALLERS: Final = 5
# Each caller rests so long after each answer, so that the machine is not the limit.
REST_S: Final = 0.01
BEFORE_S: Final = 1.0
# Longer than any window so far, so that the load also sees the return of the old leader.
AFTER_S: Final = 4.0
CALL_TIMEOUT_S: Final = 60.0
# A caller of etcd whose node forwarded to a leader that died would wait 7 s by default. In etcd's
# favour, the caller gives up earlier and asks the next node; a put may be repeated.
ETCD_ATTEMPT_S: Final = 0.2
ETCD_PAUSE_S: Final = 0.01
ETCD_RECONNECT_MS: Final = 50
STREAM: Final = "failover"


class System(Protocol):
    """A system under test. `call` is one command of a caller; it returns once acknowledged."""

    async def call(self, caller: int, step: int) -> None:
        """Carry out one command, with as many attempts as it takes."""
        ...

    async def kill(self) -> float:
        """Kill the leader; return the time of the kill on the clock `time.perf_counter`."""
        ...

    async def heal(self) -> None:
        """Wait until all members serve again."""
        ...


class Ours:
    """Three replicas, and a client for each caller."""

    def __init__(self, replicas: LocalReplicas, clients: Sequence[Client]) -> None:
        self._replicas = replicas
        self._clients = clients

    async def call(self, caller: int, step: int) -> None:
        """Create a topic, or delete it again."""
        topics, name = self._clients[caller].topics, f"topic-{caller}"
        if step % 2:
            await topics.delete(STREAM, name)
        else:
            await topics.create(STREAM, name)

    async def kill(self) -> float:
        """Kill the coordinator that is the primary; the supervisor starts it again."""
        primary = (await self._clients[0].status()).primary
        self._replicas.replicas[primary].kill(COORDINATOR)
        return time.perf_counter()

    async def heal(self) -> None:
        """Wait until all replicas are ready."""
        await self._replicas.wait_ready()


class Etcd:
    """Three nodes, and for each caller a connection to each of them."""

    def __init__(self, cluster: EtcdCluster, clients: Sequence[Sequence[EtcdClient]]) -> None:
        self._cluster = cluster
        self._clients = clients
        self._at = list(range(len(clients)))

    async def call(self, caller: int, step: int) -> None:
        """Put one key; ask another node if this one fails."""
        request = PutRequest(key=f"{STREAM}-{caller}".encode(), value=str(step).encode())
        while True:
            client = self._clients[caller][self._at[caller] % REPLICAS]
            try:
                await client.put(request, timeout=ETCD_ATTEMPT_S)
                return
            except grpc.aio.AioRpcError:
                self._at[caller] += 1
                await asyncio.sleep(ETCD_PAUSE_S)

    async def kill(self) -> float:
        """Kill the node that leads, and start it again."""
        leader = await self._cluster.leader()
        killed_at = time.perf_counter()
        await leader.kill_and_start()
        return killed_at

    async def heal(self) -> None:
        """Wait until all nodes can be connected to."""
        await asyncio.gather(*(node.wait_ready() for node in self._cluster.nodes))


@dataclass(slots=True)
class FailoverLoad:
    """Callers at work: the times of all answers, and the longest wait of a caller."""

    system: System
    answered_at: list[float] = field(default_factory=list)
    longest_call_s: float = 0.0
    is_over: bool = False
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, caller: int) -> None:
        """Call until the load ends. An even number of commands leaves nothing behind."""
        step = 0
        while not self.is_over or step % 2:
            called_at = time.perf_counter()
            await self.system.call(caller, step)
            now = time.perf_counter()
            self.answered_at.append(now)
            self._progress.set()
            self.longest_call_s = max(self.longest_call_s, now - called_at)
            step += 1
            await asyncio.sleep(REST_S)

    async def until_answered_after(self, moment: float) -> None:
        """Wait until some caller gets an answer after this moment."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while not self.answered_at or self.answered_at[-1] <= moment:
                self._progress.clear()
                await self._progress.wait()


async def measure(system: System) -> Figures:
    """Kill the leader under load, and return the times that the callers saw."""
    load = FailoverLoad(system)
    async with asyncio.TaskGroup() as group:
        for caller in range(CALLERS):
            group.create_task(load.call(caller))
        try:
            await asyncio.sleep(BEFORE_S)
            killed_at = await system.kill()
            await asyncio.sleep(AFTER_S)
            await load.until_answered_after(killed_at + AFTER_S)
        finally:
            load.is_over = True
    await system.heal()
    return {
        "window_s": round(longest_gap_s(load.answered_at, killed_at), 4),
        "usual_gap_s": round(usual_gap_s(load.answered_at, killed_at), 4),
        "longest_call_s": round(load.longest_call_s, 4),
    }


def longest_gap_s(answered_at: Sequence[float], killed_at: float) -> float:
    """Return the longest time between two answers of which the second came after the kill."""
    return max(b - a for a, b in pairwise(answered_at) if b > killed_at)


def usual_gap_s(answered_at: Sequence[float], killed_at: float) -> float:
    """Return the longest time between two answers before the kill, so without a failover."""
    return max(b - a for a, b in pairwise(answered_at) if b <= killed_at)


@asynccontextmanager
async def ours(directory: Path) -> AsyncIterator[Ours]:
    """Start three replicas, and connect the callers."""
    async with (
        LocalReplicas(directory, REPLICAS, "127.0.0.1:0") as replicas,
        AsyncExitStack() as stack,
    ):
        password = replicas.root_password_path.read_text().strip()
        clients = [
            await stack.enter_async_context(
                await connect(
                    replicas.addresses, username="root", password=password, timeout_s=CALL_TIMEOUT_S
                )
            )
            for _ in range(CALLERS)
        ]
        await clients[0].streams.create(STREAM)
        yield Ours(replicas, clients)


@asynccontextmanager
async def theirs(cluster: EtcdCluster) -> AsyncIterator[Etcd]:
    """Connect the callers, each to all nodes."""
    # By default a client waits a second before it connects again to a node that was away.
    names = ("initial", "min", "max")
    options = [(f"grpc.{name}_reconnect_backoff_ms", ETCD_RECONNECT_MS) for name in names]
    clients = [
        [EtcdClient(address, options) for address in cluster.addresses] for _ in range(CALLERS)
    ]
    try:
        yield Etcd(cluster, clients)
    finally:
        for client in (client for of_caller in clients for client in of_caller):
            await client.close()


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Kill in turns, and return the result."""
    measured: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="viewstamp-failover-") as name:
        async with AsyncExitStack() as stack:
            systems: dict[str, System] = {
                "failover": await stack.enter_async_context(ours(Path(name) / "viewstamp"))
            }
            about: dict[str, Any] = {"transport": transports.chosen(), "machine": machine()}
            if not options.without_etcd:
                cluster = EtcdCluster(Path(name) / "etcd", REPLICAS)
                await stack.enter_async_context(cluster)
                systems["etcd_failover"] = await stack.enter_async_context(theirs(cluster))
                about["versions"] = versions(cluster.nodes[0])
            for number in range(options.kills):
                for system, hurt in systems.items():
                    figures = await measure(hurt)
                    measured.setdefault(system, []).append(figures)
                    print(f"kill {number + 1} {system}: {figures}", file=sys.stderr, flush=True)
    return report(measured) | about | {"commands": {"benchmark": portable(sys.orig_argv)}}


def report(measured: dict[str, list[Figures]]) -> dict[str, Any]:
    """Return what follows from the figures of each kill, and the figures."""
    summaries = {system: [summary(kills)] for system, kills in measured.items()}
    return {
        "targets": [judge(target, summaries) for target in FAILOVER_TARGETS],
        "summary": {system: found for system, (found,) in summaries.items()},
        "kills": measured,
    }


def summary(kills: Sequence[Figures]) -> Figures:
    """Return the median and the worst of each figure."""
    found: dict[str, float] = {"kills": len(kills)}
    for name in kills[0]:
        values = [figures[name] for figures in kills]
        found |= {f"median_{name}": round(median(values), 4), f"worst_{name}": max(values)}
    return found


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{QUICK_KILLS} kills, to see that everything runs")
    add("--kills", type=int, help=f"of each leader (default {KILLS})")
    add("--without-etcd", action="store_true", help="our side alone")
    options = parser.parse_args()
    options.kills = options.kills or (QUICK_KILLS if options.quick else KILLS)
    return options


def main() -> int:
    """Measure and print."""
    print(json.dumps(asyncio.run(run(parse())), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
