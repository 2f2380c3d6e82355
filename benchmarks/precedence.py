"""What it gains that backups yield to the primary on a shared machine: prints one JSON object.

`python -m benchmarks.precedence [--rounds N] [--seconds S] [WORKLOAD ...]`. Two clusters of three
replicas run on this machine; in one of them nobody is told that it is shared (ADR 17). Each
workload is measured in one, then in the other, and in the other order in the next round. Figures
are commands per second and the p99 in milliseconds, medians of the rounds; ratios are of each
round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.commands import machine, told_by
from viewstamp.cluster import LocalReplicas, Program

REPLICAS: Final = 3
ROUNDS: Final = 6
SECONDS: Final = 2.0
WORKLOADS: Final = ("create_concurrent",)
EQUAL, YIELDING = "equal shares", "backups yield"


def alone(_: int, program: Program) -> Program:
    """Leave out what tells a coordinator that its machine is shared."""
    return replace(program, command=tuple(a for a in program.command if a != "--shares-machine"))


CLUSTERS: Final[dict[str, Callable[[Path], LocalReplicas]]] = {
    EQUAL: lambda path: LocalReplicas(path, REPLICAS, "127.0.0.1:0", adapt=alone),
    YIELDING: lambda path: LocalReplicas(path, REPLICAS, "127.0.0.1:0"),
}


async def measure(cluster: LocalReplicas, workload: str, seconds: float) -> dict[str, float]:
    """Return what one load on the primary says."""
    command = [sys.executable, "-m", "benchmarks.load", workload, "--seconds", str(seconds)]
    command += ["--address", cluster.addresses[0]]
    command += ["--password-file", str(cluster.root_password_path)]
    return await told_by(command)


async def compare(rounds: int, seconds: float, workloads: list[str]) -> dict[str, Any]:
    """Measure everything by turns."""
    taken: dict[str, list[dict[str, dict[str, float]]]] = {workload: [] for workload in workloads}
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="viewstamp-"))
        places = {name: Path(directory) / str(number) for number, name in enumerate(CLUSTERS)}
        clusters = {
            name: await stack.enter_async_context(made(places[name]))
            for name, made in CLUSTERS.items()
        }
        for number in range(rounds):
            order = list(clusters) if number % 2 else list(clusters)[::-1]
            for workload in workloads:
                one = {name: await measure(clusters[name], workload, seconds) for name in order}
                taken[workload].append(one)
                print(number + 1, workload, one, file=sys.stderr, flush=True)
    return {"machine": machine(), **{workload: row(taken[workload]) for workload in workloads}}


def row(taken: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return the figures of one workload, and the ratio of each round."""
    result: dict[str, Any] = {}
    for figure in ("commands_per_s", "p99_ms"):
        result[figure] = {name: median(one[name][figure] for one in taken) for name in CLUSTERS}
    ratios = [one[YIELDING]["commands_per_s"] / one[EQUAL]["commands_per_s"] for one in taken]
    result["ratios"] = [round(ratio, 3) for ratio in ratios]
    result["ratio"] = round(median(ratios), 3)
    return result


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precedence")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=" ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    chosen = parser.parse_args()
    workloads = chosen.workloads or list(WORKLOADS)
    print(json.dumps(asyncio.run(compare(chosen.rounds, chosen.seconds, workloads)), indent=2))


if __name__ == "__main__":
    main()
