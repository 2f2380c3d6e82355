"""Measures the cost of traces and metrics: prints one JSON object.

`python -m benchmarks.telemetry [--quick] [--rounds N] [--seconds S] [--only WORKLOAD ...]
[--mode MODE ...]`. One cluster for each mode (off, 1 % of commands, all of them) is started here,
on loopback. They are measured in turns, every other round in reverse (ABBA), so that neither a
drift of the machine nor the previous measurement favours one of them. After four rounds new
processes start, because random properties of a process, such as the layout of its memory, stay for
its life. Load and cluster have the same mode. Ratios are of each round. The verdict is on their
median; the report adds the interval that holds the true median in at least 90 of 100 runs. If the
interval is wider than the difference of interest, more rounds are needed, not longer ones.

The report has throughput, and the CPU time that the processes of the cluster spend per command.
Both depend on other load on the machine, since fuller prepares are cheaper. `direct` does not: it
is the CPU time of one thread for all that telemetry adds to a command, without a cluster
(`benchmarks.telemetry_direct`; `--direct` for nothing else).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import comb
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil

from benchmarks import telemetry_direct as direct
from benchmarks.commands import machine, told_by
from benchmarks.load import WORKLOADS
from viewstamp.client import connect
from viewstamp.cluster import LocalCluster
from viewstamp.telemetry.settings import TelemetrySettings, arguments_of

MODES: Final[dict[str, float | None]] = {"off": None, "1 %": 0.01, "100 %": 1.0}
MEASURED: Final = ("create_concurrent", "create_unary", "create_sequential")
SECONDS: Final = 2.0
ROUNDS: Final = 16
ROUNDS_TOGETHER: Final = 4  # with the same processes
INTERVAL_CONFIDENCE: Final = 0.9
QUICK_SECONDS: Final = 1.0
QUICK_ROUNDS: Final = 2
# The largest accepted loss of throughput at 1 % sampling, and the loss to aim at.
LOSS_MUST: Final = 0.05
LOSS_AIM: Final = 0.02


def settings_of(mode: str, directory: Path) -> TelemetrySettings:
    """Return the telemetry of a mode."""
    ratio = MODES[mode]
    if ratio is None:
        return TelemetrySettings()
    return TelemetrySettings(directory / "telemetry", ratio, metrics_listen="127.0.0.1:0")


@asynccontextmanager
async def clusters(directory: Path, modes: Sequence[str]) -> AsyncIterator[dict[str, LocalCluster]]:
    """Start one cluster for each mode."""
    async with AsyncExitStack() as stack:
        started = {}
        for number, mode in enumerate(modes):
            own = directory / str(number)
            own.mkdir()
            telemetry = settings_of(mode, own)
            cluster = LocalCluster(own / "data", "127.0.0.1:0", telemetry=telemetry)
            started[mode] = await stack.enter_async_context(cluster)
        yield started


async def measure(
    cluster: LocalCluster, mode: str, workload: str, seconds: float
) -> dict[str, float]:
    """Run one measurement; add the CPU time of the cluster's processes per command."""
    command = [sys.executable, "-m", "benchmarks.load", workload, "--seconds", str(seconds)]
    command += ["--address", cluster.address]
    command += ["--password-file", str(cluster.root_password_path)]
    # The load writes its own files beside those of its cluster, and must not use the cluster's
    # port.
    own = settings_of(mode, cluster.data_directory.parent)
    command += arguments_of(TelemetrySettings(own.directory, own.trace_ratio))
    before_s, before_revision = cpu_seconds(cluster), await revision_of(cluster)
    figures: dict[str, float] = await told_by(command)
    spent_s = cpu_seconds(cluster) - before_s
    commands = await revision_of(cluster) - before_revision
    figures["cluster_cpu_us"] = round(spent_s / commands * 1e6, 2)
    return figures


async def revision_of(cluster: LocalCluster) -> int:
    """Return how many commands a cluster has sequenced."""
    password = cluster.root_password_path.read_text().strip()
    async with await connect(
        cluster.address, username="root", password=password, register_session=False
    ) as client:
        return (await client.status()).header.revision


def cpu_seconds(cluster: LocalCluster) -> float:
    """Return the CPU seconds that all processes of a cluster have used."""
    times = [psutil.Process(pid).cpu_times() for pid in cluster.pids.values()]
    return sum(spent.user + spent.system for spent in times)


def compared(rounds: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return medians by mode, and the ratios to `off` round by round."""
    result: dict[str, Any] = {}
    for mode in rounds[0]:
        row: dict[str, Any] = {
            name: median(one[mode][name] for one in rounds) for name in rounds[0][mode]
        }
        for figure in ("commands_per_s", "cluster_cpu_us"):
            ratios = [one[mode][figure] / one["off"][figure] for one in rounds]
            row[f"{figure}_ratio"] = round(median(ratios), 4)
            row[f"{figure}_ratio_interval"] = [round(end, 3) for end in interval_of(ratios)]
            row[f"{figure}_ratios"] = [round(ratio, 3) for ratio in ratios]
        result[mode] = row
    if "1 %" not in result:
        return result
    loss = 1 - result["1 %"]["commands_per_s_ratio"]
    result["loss_at_1_percent"] = round(loss, 4)
    verdicts = ((LOSS_AIM, "aim"), (LOSS_MUST, "must"))
    result["verdict"] = next((name for limit, name in verdicts if loss <= limit), "missed")
    return result


def interval_of(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the narrowest pair of ordered values that holds the true median.

    The confidence is INTERVAL_CONFIDENCE, whatever the distribution. Few values give the first and
    the last one, which may hold the median less often.
    """
    ordered = sorted(ratios)
    count, outside, below = len(ordered), 0.0, 0
    while below < count // 2:
        outside += 2 * comb(count, below) / 2**count  # so many lie below the true median, or above
        if outside > 1 - INTERVAL_CONFIDENCE:
            break
        below += 1
    cut = max(0, below - 1)
    return ordered[cut], ordered[count - 1 - cut]


async def rounds_of(workload: str, options: argparse.Namespace) -> list[Any]:
    """Measure one workload in turns, on clusters of its own."""
    rounds: list[Any] = []
    modes = [mode for mode in MODES if mode in (options.mode or MODES)]
    while len(rounds) < options.rounds:
        with tempfile.TemporaryDirectory(prefix="vs-telemetry") as name:
            async with clusters(Path(name), modes) as started:
                for _ in range(min(ROUNDS_TOGETHER, options.rounds - len(rounds))):
                    order = modes if len(rounds) % 2 == 0 else modes[::-1]
                    rounds.append(await one_round(started, order, workload, options.seconds))
                    rates = {
                        mode: (found["commands_per_s"], found["cluster_cpu_us"])
                        for mode, found in rounds[-1].items()
                    }
                    print(workload, len(rounds), rates, file=sys.stderr, flush=True)
    return rounds


async def one_round(
    started: Mapping[str, LocalCluster], order: Sequence[str], workload: str, seconds: float
) -> dict[str, dict[str, float]]:
    """Measure each mode once, in this order; return the modes in the order of `MODES`."""
    found = {mode: await measure(started[mode], mode, workload, seconds) for mode in order}
    return {mode: found[mode] for mode in MODES if mode in found}


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything."""
    result: dict[str, Any] = {"machine": machine(), "workloads": {}}
    result["direct_us_per_command"] = await direct.measured(options.rounds)
    if options.direct:
        return result
    for workload in options.only or MEASURED:
        result["workloads"][workload] = compared(await rounds_of(workload, options))
    return result


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short and noisy")
    parser.add_argument("--direct", action="store_true", help="without clusters")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--mode", action="append", choices=MODES, help="beside `off`")
    parser.add_argument("--only", action="append", choices=WORKLOADS)
    options = parser.parse_args()
    if options.mode:
        options.mode.append("off")  # what the others are compared with
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    print(json.dumps(asyncio.run(run(options)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
