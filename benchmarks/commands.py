"""Compares commands and reads with etcd, on one replica or several: prints one JSON object.

`python -m benchmarks.commands [--replicas N] [--quick] [--rounds N] [--seconds S] [--only WORKLOAD
...] [--transport NAME] [--with-go] [--without-etcd]`. Both are started here, on loopback, anew for
each round, with their data in one temporary directory, and measured in turns, so that other load on
the machine affects both. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil

from benchmarks import etcd_go
from benchmarks.etcd_go import PUT_BY_GO
from benchmarks.etcd_server import EtcdCluster, EtcdServer
from benchmarks.load import OF_WATCHED, WORKLOADS
from benchmarks.targets import REPLICATED_TARGETS, TARGETS, Figures, judge
from viewstamp import transports
from viewstamp.client import connect
from viewstamp.cluster import LocalCluster, LocalReplicas

ETCD_PREFIX: Final = "etcd_"
# The loads that need nothing but a new cluster.
COMPARED: Final = tuple(name for name in WORKLOADS if name not in OF_WATCHED)
SECONDS: Final = 5.0
ROUNDS: Final = 5
QUICK_SECONDS: Final = 1.5
QUICK_ROUNDS: Final = 1


@dataclass(frozen=True, slots=True)
class SystemPair:
    """Both systems while they run: the addresses of their leaders, and their processes by name."""

    address: str
    password_file: Path
    etcd: EtcdServer | None
    pids: Callable[[], dict[str, int]]
    etcd_pids: Callable[[], dict[str, int]]
    go_client: Path | None
    """etcd's own client, if it is measured."""


class CommandBench:
    """How to measure either system."""

    def __init__(self, pair: SystemPair, options: argparse.Namespace) -> None:
        self.pair = pair
        self._options = options

    def command(self, workload: str) -> list[str]:
        """Return the command line of one measurement."""
        command = [sys.executable, "-m", "benchmarks.load", workload]
        command += ["--seconds", str(self._options.seconds)]
        if workload.startswith(ETCD_PREFIX):
            assert self.pair.etcd is not None, "measured without etcd"
            if workload == PUT_BY_GO:
                assert self.pair.go_client is not None, "it was built"
                seconds = self._options.seconds
                return etcd_go.command(self.pair.go_client, self.pair.etcd.address, seconds)
            return [*command, "--address", self.pair.etcd.address]
        password = self.pair.password_file
        command += ["--address", self.pair.address, "--password-file", str(password)]
        command += ["--request-bytes", str(self._options.request_bytes)]
        return command + ["--leave"] * self._options.leave

    async def measure(self, workload: str) -> dict[str, Any]:
        """Run one measurement; add the CPU seconds that each server process spent on it."""
        before = self._cpu_seconds(workload)
        figures = await told_by(self.command(workload))
        after = self._cpu_seconds(workload)
        figures["server_cpu_s"] = {name: round(after[name] - before[name], 2) for name in after}
        return figures

    def about(self) -> dict[str, Any]:
        """Return the machine, the versions and the options of the measurement."""
        etcd = self.pair.etcd
        about_etcd = {} if etcd is None else {"etcd": portable(etcd.command)}
        return {
            "transport": self._options.transport,
            "machine": machine(),
            "versions": versions(etcd),
            "commands": {
                "benchmark": portable(sys.orig_argv),
                **about_etcd,
                **{name: portable(self.command(name)) for name in self._options.only},
            },
        }

    def _cpu_seconds(self, workload: str) -> dict[str, float]:
        is_etcd = workload.startswith(ETCD_PREFIX)
        pids = self.pair.etcd_pids if is_etcd else self.pair.pids
        times = {name: psutil.Process(pid).cpu_times() for name, pid in pids().items()}
        return {name: spent.user + spent.system for name, spent in times.items()}


def portable(command: Sequence[str]) -> list[str]:
    """Return a command line without directories of this machine: paths become their last names."""
    return [Path(word).name if Path(word).is_absolute() else word for word in command]


def in_turns(workloads: Sequence[str]) -> Iterator[str]:
    """Yield ours and etcd's in turns, then the rest of the longer list, each in its given order."""
    queues = [
        [name for name in workloads if name.startswith(ETCD_PREFIX) is is_etcd]
        for is_etcd in (False, True)
    ]
    for turn in zip_longest(*queues):
        yield from filter(None, turn)


async def told_by(command: Sequence[str]) -> dict[str, Any]:
    """Run a load in a process of its own and return its figures. Raises RuntimeError."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"a measurement failed, see above: {' '.join(command)}")
    figures: dict[str, Any] = json.loads(output)
    return figures


def machine() -> dict[str, Any]:
    """Return the properties of this machine that affect the figures."""
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": " ".join([platform.python_version(), *platform.python_build()]),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_model() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def versions(etcd: EtcdServer | None) -> dict[str, str]:
    """Return the versions of the measured programs and of their libraries."""
    ours = {
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "protobuf": version("protobuf"),
    }
    return ours if etcd is None else ours | {"etcd": etcd.version()}


def medians(measured: Sequence[Figures]) -> dict[str, float]:
    """Return the median of every figure that is a number."""
    names = [name for name, value in measured[0].items() if not isinstance(value, Mapping)]
    return {name: median(figures[name] for figures in measured) for name in names}


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure in rounds, with new systems for each, and return the result."""
    rounds: dict[str, list[Figures]] = {name: [] for name in options.only}
    for number in range(options.rounds):
        async with both(options) as bench:
            for workload in in_turns(options.only):
                figures = await bench.measure(workload)
                rounds[workload].append(figures)
                print(f"round {number + 1} {workload}: {figures}", file=sys.stderr, flush=True)
            about = bench.about()
    return report(rounds, options.replicas) | about


@asynccontextmanager
async def both(options: argparse.Namespace) -> AsyncIterator[CommandBench]:
    """Start both systems with empty data directories; end them and delete the data."""
    with tempfile.TemporaryDirectory(prefix="viewstamp-benchmark-") as name:
        directory = Path(name)
        pairs = (
            lone_pair(directory, options) if options.replicas == 1 else group(directory, options)
        )
        async with pairs as pair:
            yield CommandBench(pair, options)


@asynccontextmanager
async def lone_pair(directory: Path, options: argparse.Namespace) -> AsyncIterator[SystemPair]:
    """Start one replica, and one node of etcd."""
    cluster = LocalCluster(directory / "viewstamp", "127.0.0.1:0")
    async with AsyncExitStack() as stack:
        etcd = None
        if not options.without_etcd:
            etcd = await stack.enter_async_context(EtcdServer(directory / "etcd"))
        await stack.enter_async_context(cluster)
        yield SystemPair(
            cluster.address,
            cluster.root_password_path,
            etcd,
            lambda: cluster.pids,
            lambda: {} if etcd is None else etcd.pids,
            go_client_in(directory, options),
        )


@asynccontextmanager
async def group(directory: Path, options: argparse.Namespace) -> AsyncIterator[SystemPair]:
    """Start several replicas, and as many nodes of etcd. Load goes to the leaders."""
    replicas = LocalReplicas(directory / "viewstamp", options.replicas, "127.0.0.1:0")
    async with AsyncExitStack() as stack:
        etcd = None
        if not options.without_etcd:
            nodes = EtcdCluster(directory / "etcd", options.replicas)
            etcd = await stack.enter_async_context(nodes)
        await stack.enter_async_context(replicas)
        password = replicas.root_password_path.read_text().strip()
        async with await connect(replicas.addresses, username="root", password=password) as client:
            primary = (await client.status()).primary
        yield SystemPair(
            replicas.addresses[primary],
            replicas.root_password_path,
            None if etcd is None else await etcd.leader(),
            lambda: {
                f"{name}-{number}": pid
                for number, replica in enumerate(replicas.replicas)
                for name, pid in replica.pids.items()
            },
            lambda: {} if etcd is None else etcd.pids,
            go_client_in(directory, options),
        )


def go_client_in(directory: Path, options: argparse.Namespace) -> Path | None:
    """Build etcd's own client if it is measured."""
    return etcd_go.built_in(directory) if PUT_BY_GO in options.only else None


def report(rounds: Mapping[str, list[Figures]], replicas: int) -> dict[str, Any]:
    """Return what follows from the figures, and the figures."""
    judged = [
        target
        for target in (TARGETS if replicas == 1 else REPLICATED_TARGETS)
        if target.workload in rounds and (target.peer is None or target.peer in rounds)
    ]
    return {
        "targets": [judge(target, rounds) for target in judged],
        "medians": {workload: medians(measured) for workload, measured in rounds.items()},
        "rounds": rounds,
    }


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commands", description=__doc__)
    add = parser.add_argument
    add("--replicas", type=int, choices=(1, 3, 5), default=1, help="and as many nodes of etcd")
    add("--quick", action="store_true", help="one short round, to see that everything runs")
    add("--rounds", type=int, help=f"how often each workload is measured (default {ROUNDS})")
    add("--seconds", type=float, help=f"how long, each time (default {SECONDS})")
    add("--request-bytes", type=int, default=0, help="size of a CreateTopic (default: natural)")
    add(
        "--only",
        nargs="+",
        choices=(*COMPARED, PUT_BY_GO),
        default=COMPARED,
        metavar="WORKLOAD",
    )
    add("--with-go", action="store_true", help="etcd's own client in Go, too, which needs Go")
    transports.add_argument(parser, transports.chosen())
    add("--without-etcd", action="store_true", help="Viewstamp alone, without its comparisons")
    parser.set_defaults(leave=False)
    options = parser.parse_args()
    os.environ[transports.VARIABLE] = options.transport  # of all processes that are started
    if options.with_go:
        options.only = [*options.only, PUT_BY_GO]
    if options.without_etcd:
        options.only = [name for name in options.only if not name.startswith(ETCD_PREFIX)]
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    return options


def main() -> int:
    """Measure and print."""
    print(json.dumps(asyncio.run(run(parse())), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
