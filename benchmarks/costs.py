"""Measures the CPU time of every process per command and per prepare. Prints one JSON object.

`python -m benchmarks.costs [--replicas N] [--seconds S] [--sample DIRECTORY] [WORKLOAD ...]`.
Times are taken from the kernel in the middle of a run, prepares and commands from the cluster's
status, so starting up and making streams do not count. With `--sample`, and `py-spy` in the PATH
or beside this Python, the Python frames that hold the interpreter lock are sampled meanwhile, one
raw file per process; sampling slows a process down, so measure costs without it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.load_target import WARM_UP_S
from viewstamp import client as library
from viewstamp.cluster import LocalCluster, LocalReplicas

WORKLOADS: Final = (
    "create_concurrent",
    "submit_batches_100",
    "submit_batches_1000",
    "create_unary",
    "create_sequential",
    "read_concurrent",
)
# Until the load's process has connected and made its streams.
SETTLE_S: Final = WARM_UP_S + 1.5
SAMPLES_PER_S: Final = 400
LOAD: Final = "load"


@dataclass(frozen=True, slots=True)
class CostMoment:
    """The counters of the cluster and of its processes at one time."""

    at_s: float
    op: int
    revision: int
    cpu_s: Mapping[str, tuple[float, float]]  # user, system; by process


@dataclass(frozen=True, slots=True)
class Running:
    """The measured cluster: the address of the primary, and all processes by name."""

    address: str
    password: Path
    pids: Callable[[], Mapping[str, int]]


@asynccontextmanager
async def cluster_of(directory: str, replicas: int) -> AsyncIterator[Running]:
    """Start a cluster of that many replicas, the first of which leads."""
    if replicas == 1:
        async with LocalCluster(directory, "127.0.0.1:0") as alone:
            yield Running(alone.address, alone.root_password_path, lambda: alone.pids)
        return
    async with LocalReplicas(directory, replicas, "127.0.0.1:0") as group:
        yield Running(group.addresses[0], group.root_password_path, lambda: pids_of(group))


def pids_of(group: LocalReplicas) -> dict[str, int]:
    """Return all processes of a group by name and replica."""
    return {
        f"{name}-{number}": pid
        for number, replica in enumerate(group.replicas)
        for name, pid in replica.pids.items()
    }


async def moment(client: library.Client, pids: Mapping[str, int]) -> CostMoment:
    """Read the counters of the cluster and the processes."""
    status = await client.status()
    times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
    cpu_s = {name: (spent.user, spent.system) for name, spent in times.items()}
    return CostMoment(time.perf_counter(), status.header.op, status.header.revision, cpu_s)


def costs(before: CostMoment, after: CostMoment, reads: int) -> dict[str, Any]:
    """Return the costs between two moments; `reads` count as commands where nothing was changed."""
    seconds = after.at_s - before.at_s
    prepares, revisions = after.op - before.op, after.revision - before.revision
    commands = reads or revisions
    processes = {
        name: {
            "user_share": round((user - before.cpu_s[name][0]) / seconds, 3),
            "system_share": round((system - before.cpu_s[name][1]) / seconds, 3),
            "cpu_us_per_command": round(_cpu_us(before, after, name) / max(1, commands), 2),
        }
        for name, (user, system) in after.cpu_s.items()
    }
    if not reads:
        for name, process in processes.items():
            process["cpu_us_per_prepare"] = round(_cpu_us(before, after, name) / max(1, prepares))
    return {
        "commands_per_s": round(commands / seconds),
        "prepares_per_s": round(prepares / seconds),
        "processes": processes,
    }


def _cpu_us(before: CostMoment, after: CostMoment, name: str) -> float:
    return 1e6 * (sum(after.cpu_s[name]) - sum(before.cpu_s[name]))


async def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one workload on a new cluster and return its costs."""
    with tempfile.TemporaryDirectory(prefix="viewstamp-costs-") as directory:
        async with cluster_of(directory, options.replicas) as cluster:
            seconds, password = options.seconds, cluster.password
            secret = password.read_text().strip()
            client = await library.connect(cluster.address, username="root", password=secret)
            command = [sys.executable, "-m", "benchmarks.load", workload]
            command += ["--address", cluster.address, "--password-file", str(password)]
            command += ["--seconds", str(seconds + SETTLE_S)]
            load = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            await asyncio.sleep(SETTLE_S)
            pids = {**cluster.pids(), LOAD: load.pid}
            before = await moment(client, pids)
            samplers = await start_samplers(pids, seconds, options.sample, workload)
            await asyncio.sleep(seconds)
            after = await moment(client, pids)
            await asyncio.gather(*(sampler.wait() for sampler in samplers))
            output, _ = await load.communicate()
            await client.close()
    if load.returncode:
        raise RuntimeError(f"the workload {workload} failed, see above")
    told: dict[str, float] = json.loads(output)
    is_reading = workload.startswith("read")
    reads = round(told["commands_per_s"] * (after.at_s - before.at_s)) if is_reading else 0
    return costs(before, after, reads) | {"told_by_load": told}


async def start_samplers(
    pids: Mapping[str, int], seconds: float, directory: Path | None, workload: str
) -> list[asyncio.subprocess.Process]:
    """Start py-spy on every process, if samples are wanted. Raises RuntimeError without py-spy."""
    if directory is None:
        return []
    beside = Path(sys.executable).parent / "py-spy"
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        raise RuntimeError("--sample needs py-spy: `pip install py-spy`")
    options = ["record", "--gil", "--rate", str(SAMPLES_PER_S), "--duration", str(int(seconds))]
    return [
        await asyncio.create_subprocess_exec(
            *[program, *options, "--format", "raw", "--pid", str(pid)],
            *["--output", str(directory / f"{workload}.{name}.txt")],
            stdout=asyncio.subprocess.DEVNULL,
        )
        for name, pid in pids.items()
    ]


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all workloads, one after another."""
    report = {}
    for workload in options.workloads:
        report[workload] = await measure(workload, options)
        print(f"{workload}: {report[workload]}", file=sys.stderr, flush=True)
    return report


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    add = parser.add_argument
    add("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    add("--replicas", type=int, default=1, help="how many replicas share this machine")
    add("--seconds", type=float, default=4.0, help="how long each is looked at")
    add("--sample", type=Path, metavar="DIRECTORY", help="sample with py-spy into this directory")
    options = parser.parse_args()
    for workload in options.workloads:
        if workload not in WORKLOADS:
            parser.error(f"{workload} is none of {', '.join(WORKLOADS)}")
    if options.sample is not None:
        options.sample.mkdir(parents=True, exist_ok=True)
    print(json.dumps(asyncio.run(run(options)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
