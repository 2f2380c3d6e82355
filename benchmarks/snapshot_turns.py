"""Measures the latency of commands with and without snapshots, in turns.

The p99 of all commands depends on the share of time in which a snapshot is under way. So the
figures include the p99 of the commands during a snapshot: from its cut to its adoption.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

from benchmarks.load import percentile_ms
from benchmarks.snapshot_files import adoptions
from benchmarks.snapshot_load import Call, read_calls
from benchmarks.targets import Figures
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client import Client
from viewstamp.cluster import LocalCluster
from viewstamp.cluster.local import COORDINATOR

# The numbers of callers: few without contention, and enough to keep the cluster busy.
LOADS: Final[Mapping[str, int]] = {"light": 4, "saturated": 256}
# The pause between two snapshots: none, and one as between requests by people.
PAUSES_S: Final[Mapping[str, float]] = {"during": 0.0, "paced": 1.0}
Interval: TypeAlias = tuple[float, float]  # begin and end, in seconds of the monotonic clock
_US_PER_S: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TimedSnapshot:
    """One snapshot: how long the caller waited, and when it was under way on the cluster.

    `cut_s` and `decided_s` are seconds since 1970.
    """

    generation: int
    seconds: float
    cut_s: float
    decided_s: float


class SnapshotTurns:
    """Measures one load in turns; `add` gets every row."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: Client,
        options: argparse.Namespace,
        stream_ids: Sequence[int],
        add: Callable[[str, Figures], None],
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._options = options
        self._stream_ids = stream_ids
        self._add = add

    async def measure(self, load: str) -> None:
        """Measure a load without snapshots, with one after another, and with one each second."""
        without = await self._load(load)
        self._add(f"without_{load}", without)
        for how, pause_s in PAUSES_S.items():
            during = await self._load_during_snapshots(load, pause_s)
            self._add(f"{how}_{load}", during)
            ratios = {"p99_ratio": "p99_ms", "overlapped_p99_ratio": "overlapped_p99_ms"}
            self._add(
                f"p99_{how}_{load}",
                {name: round(during[ms] / without["p99_ms"], 3) for name, ms in ratios.items()},
            )

    async def _load_during_snapshots(self, load: str, pause_s: float) -> Figures:
        enough = asyncio.Event()
        taking = asyncio.create_task(self._take_until(enough, pause_s))
        calls_path = self._cluster.data_directory / "calls-of-load"
        try:
            during = await self._load(load, calls_path)
        finally:
            enough.set()
            taken = await taking
        under_way = intervals(taken, adoptions(self._cluster.log_path(COORDINATOR)))
        return {**during, **beside(read_calls(calls_path), taken, under_way)}

    async def _take_until(self, enough: asyncio.Event, pause_s: float) -> list[TimedSnapshot]:
        """Take one snapshot after another, the last one of them to its end."""
        taken = []
        while not enough.is_set():
            taken.append(await take(self._client))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await enough.wait()
        return taken

    async def _load(self, load: str, calls_path: Path | None = None) -> Figures:
        command = [sys.executable, "-m", "benchmarks.snapshot_load"]
        command += ["--address", self._cluster.address]
        command += ["--password-file", str(self._cluster.root_password_path)]
        command += ["--callers", str(LOADS[load]), "--seconds", str(self._options.seconds)]
        command += ["--streams", *map(str, self._stream_ids)]
        if self._options.quick:
            command.append("--quick")
        if calls_path is not None:
            command += ["--calls", str(calls_path)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"the {load} load failed, see above")
        figures: Figures = json.loads(output)
        return figures


async def take(client: Client) -> TimedSnapshot:
    """Take a snapshot and wait until it is completed."""
    started = time.perf_counter()
    created = await client.snapshots.create()
    decided = await client.snapshots.decided(created.generation)
    if decided.state != snapshots_pb2.SNAPSHOT_STATE_COMPLETED:
        raise RuntimeError(f"snapshot {decided.generation} failed: {decided.failure}")
    return TimedSnapshot(
        decided.generation,
        time.perf_counter() - started,
        decided.created_at / _US_PER_S,
        decided.decided_at / _US_PER_S,
    )


def intervals(taken: Sequence[TimedSnapshot], adopted_s: Mapping[int, float]) -> Sequence[Interval]:
    """Return the interval of each snapshot, on the clock that times the calls.

    `adopted_s` are the adoptions, in seconds since 1970; a snapshot without one ends at its
    decision.
    """
    ahead_s = time.time() - time.perf_counter()
    ends = [adopted_s.get(one.generation, one.decided_s) for one in taken]
    return [
        (one.cut_s - ahead_s, max(end_s, one.decided_s) - ahead_s)
        for one, end_s in zip(taken, ends, strict=True)
    ]


def beside(
    calls: Sequence[Call], taken: Sequence[TimedSnapshot], under_way: Sequence[Interval]
) -> Figures:
    """Return the figures of the snapshots taken during calls, and of those calls.

    Snapshots before the first call and after the last one, when nothing else happens, do not count.
    """
    first, last = min(sent for sent, _ in calls), max(answered for _, answered in calls)
    counted = [
        one.seconds
        for one, (cut, end) in zip(taken, under_way, strict=True)
        if cut <= last and first <= end
    ]
    overlapped = sorted(overlapping(calls, under_way))
    return {
        "snapshots": len(counted),
        "snapshots_per_s": round(len(counted) / (last - first), 1),
        "snapshot_s": round(median(counted), 3),
        "snapshot_max_s": round(max(counted), 3),
        "overlapped_commands": len(overlapped),
        "overlapped_p99_ms": percentile_ms(overlapped, 99),
    }


def overlapping(calls: Sequence[Call], under_way: Sequence[Interval]) -> list[float]:
    """Return the latencies of the calls during which a snapshot was under way.

    Snapshots are in order.
    """
    ends = [end for _, end in under_way]
    found = []
    for sent, answered in calls:
        first = bisect_left(ends, sent)
        if first < len(under_way) and under_way[first][0] <= answered:
            found.append(answered - sent)
    return found
