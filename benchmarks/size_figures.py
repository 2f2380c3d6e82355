"""What is read of processes beside a benchmark: memory, spans, and a caller's latencies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

from benchmarks.load import percentile_ms
from benchmarks.snapshot_etcd import family_mb
from benchmarks.snapshot_state import StateTopics, change
from benchmarks.targets import Figures
from viewstamp.client import Client
from viewstamp.cluster import LocalCluster
from viewstamp.routing import SERVICE_NAMES

NS_PER_S: Final = 1e9
KB_PER_MB: Final = 1_000 / 1.024

Result = TypeVar("Result")


def memory_of(cluster: LocalCluster) -> Figures:
    """Return the memory of each process, now and at its most, in MB."""
    used = {f"{name}_mb": family_mb(pid) for name, pid in cluster.pids.items()}
    peaks = {f"{name}_peak_mb": peak_mb(pid) for name, pid in cluster.pids.items()}
    services = sum(used[f"{name}_mb"] for name in SERVICE_NAMES)
    total = {"services_mb": round(services, 1), "total_mb": round(sum(used.values()), 1)}
    return {**used, **peaks, **total}


def peak_mb(pid: int) -> float:
    """Return the most memory that a process has had in RAM, in MB, its children left out."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / KB_PER_MB, 1)
    raise psutil.NoSuchProcess(pid)


class SizeCaller:
    """A caller that changes one topic after another, while something else is measured."""

    def __init__(self, client: Client, topics: StateTopics) -> None:
        self._client = client
        self._topics = topics
        self._values = count(10**12)
        self.latencies_s: list[float] = []

    async def beside(self, work: Awaitable[Result]) -> tuple[Result, Figures]:
        """Call until some work has ended; return its result, and how long the calls took."""
        self.latencies_s = []
        calling = asyncio.ensure_future(self._call())
        try:
            result = await work
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        latencies_s = sorted(self.latencies_s)
        if not latencies_s:
            return result, {"commands": 0}
        return result, {
            "commands": len(latencies_s),
            "command_p50_ms": percentile_ms(latencies_s, 50),
            "command_p99_ms": percentile_ms(latencies_s, 99),
            "command_max_ms": round(1_000 * latencies_s[-1], 3),
        }

    async def _call(self) -> None:
        for number in count():
            began_s = time.perf_counter()
            topic = number * 7919 % self._topics.count
            await change(self._client, self._topics, [topic], next(self._values))
            self.latencies_s.append(time.perf_counter() - began_s)


def last_spans(directory: Path) -> Mapping[str, float]:
    """Return how long the last span of each name took, in seconds, of what a process wrote."""
    found: dict[str, tuple[int, float]] = {}
    for path in sorted(directory.rglob("traces*.jsonl")):
        for span in _spans(path):
            begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            if begin >= found.get(span["name"], (0, 0.0))[0]:
                found[span["name"]] = (begin, (end - begin) / NS_PER_S)
    return {name: seconds for name, (_, seconds) in found.items()}


def _spans(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in path.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                yield from scope["spans"]
