"""Measures the analysis of traces: seconds for each phase and peak memory, by number of spans.

`python -m benchmarks.analytics [--spans N ...] [--quick]` prints one JSON object. For each size the
whole job runs in a process of its own, as `viewstamp analyze --master local[2]` does it: OTLP JSON
lines to the table `spans`, then every trace table, the comparison of two periods among them, and
the page. Then duckdb computes what SQL can express of it, in one process of its own
(`analytics_duckdb`), which shows from which size on Spark is the better tool. Generating the
telemetry is not counted. Both must find the same numbers, else the run fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics import session
from testkit.generators.spans import SpanLoad, generate
from viewstamp.limits import MIB

SPANS: Final = (1_000_000, 3_000_000, 10_000_000)
QUICK_SPANS: Final = (200_000,)
# The spans of one generated part; every size uses these parts, and each has a seed of its own.
PART_SPANS: Final = 1_000_000
CORES: Final = 2
# One of 100 commands fails, one of 1000 lines is sent again, and one of 100 requests belongs to
# another system.
LOAD: Final = {"error_rate": 0.01, "duplicate_line_rate": 0.001, "foreign_rate": 0.01}
SAMPLE_S: Final = 0.5
TARGET: Final = {"spans": 10_000_000, "must_s": 360.0, "aim_s": 180.0}
# Memory is flat if the peak at the largest size is at most this multiple of the one before.
FLAT_RATIO_MAX: Final = 1.15
# Memory of Java beside its heap (code, classes, threads, buffers), and of a task's Python worker.
JAVA_MB, PYTHON_MB, WORKER_MB = 768, 192, 256
# The memory that the manual states for so many cores, whatever the size: the most that each part
# was seen to use, and a margin.
MEMORY_MB: Final = session.heap_mb_of(CORES) + JAVA_MB + PYTHON_MB + WORKER_MB * CORES
# Tables that both write, and the columns whose sums must be the same.
AGREED: Final = {
    "rpc_red": ("count", "errors"),
    "stage_latency": ("count",),
    "latency_heatmap": ("count",),
    "service_graph": ("calls", "errors"),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """The output of a process, its time, CPU time and peak memory, all with its children."""

    told: dict[str, Any]
    seconds: float
    cpu_s: float
    peak_mb: dict[str, float]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analytics", description=__doc__)
    add = parser.add_argument
    add("--spans", type=int, nargs="+", help=f"sizes to measure, by default {SPANS}")
    add("--quick", action="store_true", help=f"only {QUICK_SPANS[0]} spans: does everything run?")
    options = parser.parse_args()
    sizes = options.spans or (QUICK_SPANS if options.quick else SPANS)
    with tempfile.TemporaryDirectory(prefix="viewstamp-analytics-") as directory:
        report = measure_all(sorted(sizes), Path(directory))
    print(json.dumps(report, indent=2))
    return 0


def measure_all(sizes: Sequence[int], directory: Path) -> dict[str, Any]:
    """Generate the largest size, and measure each."""
    parts = generate_parts(max(sizes), min(PART_SPANS, sizes[0]), directory)
    runs = {}
    for size in sizes:
        inputs = parts[: -(-size // min(PART_SPANS, sizes[0]))]
        runs[str(size)] = measure(size, inputs, directory)
    return {
        "machine": {"cores": os.cpu_count(), "memory_mb": psutil.virtual_memory().total // MIB},
        "runs": runs,
        "crossover": crossover(runs),
        "targets": judged(runs),
    }


def generate_parts(spans: int, part_spans: int, directory: Path) -> list[Path]:
    """Return directories of so many spans each, written by as many processes as there are cores."""
    begun = time.monotonic()
    paths = [directory / f"part-{number}" for number in range(-(-spans // part_spans))]
    loads = [SpanLoad(part_spans, seed=1 + seed, **LOAD) for seed in range(len(paths))]  # type: ignore[arg-type]
    with ProcessPoolExecutor(CORES) as pool:
        written = sum(done.size_bytes for done in pool.map(generate, paths, loads))
    tell(f"{spans} spans, {written / 1e6:.0f} MB, in {time.monotonic() - begun:.0f} s")
    return paths


def measure(size: int, inputs: Sequence[Path], directory: Path) -> dict[str, Any]:
    """Return the costs of one size with Spark and duckdb. Raises RuntimeError if they disagree."""
    found: dict[str, Any] = {"input_mb": round(_size(inputs) / 1e6)}
    outputs = {}
    for name in ("spark", "duckdb"):
        outputs[name] = directory / name
        command = [sys.executable, "-m", f"benchmarks.analytics_{name}", str(outputs[name])]
        done = watched([*command, *map(str, inputs)])
        found[name] = done.told | {
            "wall_s": round(done.seconds, 1),
            "cpu_s": round(done.cpu_s, 1),
            "peak_mb": done.peak_mb,
        }
        tell(f"{size} spans, {name}: {found[name]}")
    check(outputs["spark"], outputs["duckdb"])
    for output in outputs.values():
        subprocess.run(["rm", "-r", str(output)], check=True)
    return found


def watched(command: Sequence[str]) -> Measured:
    """Run a program that prints JSON, and watch its memory. Raises RuntimeError if it fails.

    Memory is resident; what forked processes share counts once (proportional set size).
    """
    begun = time.monotonic()
    peaks: dict[str, float] = {}
    cpu_s: dict[int, float] = {}
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    while process.poll() is None:
        sizes = {"java": 0.0, "python": 0.0}
        for member in family(process.pid):
            with contextlib.suppress(psutil.Error):  # it has just ended
                name = "java" if "java" in member.name() else "python"
                sizes[name] += member.memory_full_info().pss / MIB
                times = member.cpu_times()
                cpu_s[member.pid] = times.user + times.system
        for name, size in (sizes | {"all": sum(sizes.values())}).items():
            peaks[name] = max(peaks.get(name, 0.0), size)
        time.sleep(SAMPLE_S)
    assert process.stdout is not None
    output = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {process.returncode}, see above")
    rounded = {name: round(size, 1) for name, size in peaks.items()}
    seconds = time.monotonic() - begun
    return Measured(json.loads(output.splitlines()[-1]), seconds, sum(cpu_s.values()), rounded)


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all below it; nothing if it has ended."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def check(ours: Path, theirs: Path) -> None:
    """Raise RuntimeError unless both found the same requests, calls and errors."""
    for table, columns in AGREED.items():
        for column in columns:
            found = [_sum(output / table, column) for output in (ours, theirs)]
            if found[0] != found[1]:
                raise RuntimeError(f"{table}.{column}: Spark says {found[0]}, duckdb {found[1]}")


def _sum(path: Path, column: str) -> int:
    return int(pc.sum(pq.read_table(path, columns=[column])[column]).as_py() or 0)


def crossover(runs: dict[str, Any]) -> dict[str, Any]:
    """Return Spark's time as a ratio to duckdb's: elapsed time, and CPU time of all processes.

    The result has the ratio at each size, and the number of spans from which Spark needs less:
    where the straight lines through the smallest and the largest size meet, None if they never do.
    If the machine had other work to do, use the CPU time.
    """
    return {measure: _crossing(runs, measure) for measure in ("total_s", "cpu_s")}


def _crossing(runs: dict[str, Any], measure: str) -> dict[str, Any]:
    seconds = {name: [run[name][measure] for run in runs.values()] for name in ("spark", "duckdb")}
    pairs = zip(runs, seconds["spark"], seconds["duckdb"], strict=True)
    found: dict[str, Any] = {"spark_over_duckdb": {n: round(a / b, 2) for n, a, b in pairs}}
    if len(runs) > 1:
        first, last = (int(sorted(runs, key=int)[place]) for place in (0, -1))
        slopes = {name: (some[-1] - some[0]) / (last - first) for name, some in seconds.items()}
        behind_s = seconds["spark"][0] - seconds["duckdb"][0]
        gained = slopes["duckdb"] - slopes["spark"]
        found["spans"] = round(first + behind_s / gained) if gained > 0 else None
        found["seconds_per_million_more"] = {n: round(s * 1e6, 1) for n, s in slopes.items()}
    return found


def judged(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the targets that these sizes can show, with their verdicts."""
    rows: list[dict[str, Any]] = []
    target = str(TARGET["spans"])
    if target in runs:
        total = runs[target]["spark"]["total_s"]
        verdict = (
            "aim" if total <= TARGET["aim_s"] else "must" if total <= TARGET["must_s"] else "missed"
        )
        rows.append(
            {
                "what": f"{target} spans to all tables, s",
                "must": TARGET["must_s"],
                "aim": TARGET["aim_s"],
                "measured": total,
                "verdict": verdict,
            }
        )
    peaks = [run["spark"]["peak_mb"]["all"] for run in runs.values()]
    if len(peaks) > 1:
        rows.append(
            _at_most(
                "peak memory, largest size against the one before",
                FLAT_RATIO_MAX,
                round(peaks[-1] / peaks[-2], 3),
            )
        )
    return [*rows, _at_most("peak memory at any size, MB", MEMORY_MB, max(peaks))]


def _at_most(what: str, limit: float, measured: float) -> dict[str, Any]:
    """Return a target that is reached or missed."""
    verdict = "aim" if measured <= limit else "missed"
    return {"what": what, "must": limit, "aim": limit, "measured": measured, "verdict": verdict}


def _size(inputs: Sequence[Path]) -> int:
    return sum(path.stat().st_size for one in inputs for path in one.rglob("*.jsonl"))


def tell(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
