"""Measures the cost of the audit log: prints one JSON object.

`python -m benchmarks.audit [--rounds N] [--seconds S] [--only WORKLOAD ...]`. Two clusters, with
the log and without, are started here and measured in turns, every other round in reverse. The
verdict is on the processor time that all processes of a cluster spend per command, as ratios of
each round: their median, and the interval that holds the true median in at least 90 of 100 runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.commands import machine, told_by
from benchmarks.load import WORKLOADS
from benchmarks.telemetry import cpu_seconds, interval_of, revision_of
from viewstamp.cluster import LocalCluster

MODES: Final[dict[str, tuple[str, ...]]] = {"off": ("--audit-bytes=0",), "on": ()}
MEASURED: Final = ("create_concurrent", "create_unary", "submit_batches_100")
ROUNDS: Final = 8
SECONDS: Final = 2.0


async def cost_us(cluster: LocalCluster, workload: str, seconds: float) -> float:
    """Run a load; return the microseconds of processor time that a command took."""
    command = [sys.executable, "-m", "benchmarks.load", workload, "--seconds", str(seconds)]
    command += ["--address", cluster.address]
    command += ["--password-file", str(cluster.root_password_path)]
    before_s, before_revision = cpu_seconds(cluster), await revision_of(cluster)
    await told_by(command)
    spent_s = cpu_seconds(cluster) - before_s
    return spent_s / (await revision_of(cluster) - before_revision) * 1e6


async def compared(workload: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure one workload in turns, on clusters of its own."""
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vs-audit")))
        clusters = {}
        for mode, flags in MODES.items():
            cluster = LocalCluster(directory / mode, "127.0.0.1:0", coordinator_arguments=flags)
            clusters[mode] = await stack.enter_async_context(cluster)
        for number in range(rounds):
            for mode in list(MODES)[:: -1 if number % 2 else 1]:
                found[mode].append(await cost_us(clusters[mode], workload, seconds))
            print(
                workload,
                {mode: round(each[-1], 2) for mode, each in found.items()},
                file=sys.stderr,
            )
    ratios = [on / off for on, off in zip(found["on"], found["off"], strict=True)]
    return {
        "cluster_cpu_us": {mode: round(median(each), 2) for mode, each in found.items()},
        "ratio": round(median(ratios), 3),
        "ratio_interval": [round(end, 3) for end in interval_of(ratios)],
    }


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything."""
    workloads = options.only or MEASURED
    found = {name: await compared(name, options.rounds, options.seconds) for name in workloads}
    return {"machine": machine(), "workloads": found}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, metavar="WORKLOAD")
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
