"""Measures what commands cost on our transport and on the library's: prints one JSON object.

`python -m benchmarks.commands_by_transport [--rounds N] [--seconds S] [--only WORKLOAD ...]`. Each
round starts a cluster of one replica for each transport, in turn, and loads it from a process that
uses the same transport. Figures are medians of the rounds: commands per second, latencies, and
microseconds of processor time that each process spent for a command. That is of the whole run, so
it has a share of connecting, of clean-up, and of what an idle process does: compare it only where
many commands were under way. A ratio is ours divided by the library's, in one
round. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.commands import CommandBench, lone_pair, machine
from benchmarks.load import WORKLOADS
from benchmarks.load_target import WARM_UP_S
from viewstamp import transports

ROUNDS: Final = 5
SECONDS: Final = 3.0
TRANSPORTS: Final = (transports.GRPCIO, transports.WIRE)
DEFAULT_WORKLOADS: Final = (
    "create_sequential",
    "create_sequential_unary",
    "create_concurrent",
    "create_unary",
)
US_PER_S: Final = 1_000_000

Rounds = Sequence[Mapping[str, Mapping[str, Mapping[str, float]]]]
"""Figures by their name, by workload, by transport, in each round."""


def figures_of(measured: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """Return what one measurement tells, with the processor time of each process for a command."""
    commands = measured["commands_per_s"] * (seconds + WARM_UP_S)
    spent_s = {**measured["server_cpu_s"], "client": measured["load_cpu_s"]}
    costs = {f"{name}_cpu_us": spent_s[name] / commands * US_PER_S for name in sorted(spent_s)}
    return {name: measured[name] for name in ("commands_per_s", "p50_ms", "p99_ms")} | costs


def summary(rounds: Rounds) -> dict[str, Any]:
    """Return medians for both transports, and the ratio of each figure, by workload."""
    library, ours = TRANSPORTS
    result: dict[str, Any] = {}
    for workload, figures in rounds[0][library].items():
        rows = result[workload] = {}
        for name in figures:
            pairs = [(each[library][workload][name], each[ours][workload][name]) for each in rounds]
            rows[name] = {
                library: round(median(one for one, _ in pairs), 3),
                ours: round(median(other for _, other in pairs), 3),
                "ratio": round(median(other / one for one, other in pairs if one), 3),
            }
    return result


def in_order(number: int) -> Sequence[str]:
    """Return which transport of a round is measured first, and which second."""
    return TRANSPORTS if number % 2 == 0 else TRANSPORTS[::-1]


async def measure(transport: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure all workloads on a cluster of their own."""
    os.environ[transports.VARIABLE] = transport  # the processes that are started inherit it
    with tempfile.TemporaryDirectory(prefix="viewstamp-benchmark-") as name:
        async with lone_pair(Path(name), options) as pair:
            bench = CommandBench(pair, options)
            return {
                workload: figures_of(await bench.measure(workload), options.seconds)
                for workload in options.only
            }


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure in rounds, and return the result."""
    rounds = []
    for number in range(options.rounds):
        rounds.append({each: await measure(each, options) for each in in_order(number)})
        print(f"round {number + 1}: {rounds[-1]}", file=sys.stderr, flush=True)
    return {"machine": machine(), "medians": summary(rounds)}


def parse() -> argparse.Namespace:
    """Return the options."""
    name = "python -m benchmarks.commands_by_transport"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    ours = [workload for workload in WORKLOADS if not workload.startswith("etcd_")]
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", nargs="+", choices=ours, default=list(DEFAULT_WORKLOADS))
    parser.set_defaults(without_etcd=True, request_bytes=0)
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    print(json.dumps(asyncio.run(run(parse())), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
