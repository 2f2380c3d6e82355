"""Load on existing topics: callers send UpdateTopic for random topics. Prints JSON.

The load is a process of its own, so that it shares nothing with the process that takes snapshots.
With `--calls` it writes the times when each call was sent and answered (`read_calls`).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.load import summary
from benchmarks.load_target import WARM_UP_S, by_callers
from benchmarks.snapshot_state import FULL, QUICK, StateTopics
from benchmarks.wire import Samples
from viewstamp import client as library

Call: TypeAlias = tuple[float, float]  # sent and answered, in seconds of the monotonic clock


@dataclass(slots=True)
class TimedSamples(Samples):
    """Samples with the time of each answer, in seconds of the monotonic clock."""

    answered_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, sent: float, now: float, commands: int = 1) -> None:
        """Note an answer."""
        known = len(self.latencies_s)
        Samples.add(self, sent, now, commands)
        if len(self.latencies_s) > known:
            self.answered_s.append(now)

    def write(self, path: Path) -> None:
        """Write every call to a file, for `read_calls`."""
        path.write_bytes(self.answered_s.tobytes() + self.latencies_s.tobytes())


def read_calls(path: Path) -> Sequence[Call]:
    """Return the times when each call was sent and answered, from the file of the load."""
    values = array("d", path.read_bytes())
    half = len(values) // 2
    return [
        (answered - latency, answered)
        for answered, latency in zip(values[:half], values[half:], strict=True)
    ]


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    password = options.password_file.read_text().strip()
    size = QUICK if options.quick else FULL
    topics = StateTopics(options.streams, size)
    chance, values = random.Random(options.callers), count(1)
    client = await library.connect(options.address, username="root", password=password)
    async with client:
        samples = TimedSamples(WARM_UP_S, options.seconds)
        await by_callers(
            samples,
            options.callers,
            lambda: client.call(topics.update(chance.randrange(topics.count), next(values))),
        )
    if options.calls is not None:
        samples.write(options.calls)
    return {**summary(samples), "max_ms": round(max(samples.latencies_s) * 1000, 3)}


def main() -> int:
    """Measure one load and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshot_load", description=__doc__)
    parser.add_argument("--address", required=True, help="host:port")
    parser.add_argument("--password-file", type=Path, required=True, help="root's password")
    parser.add_argument("--streams", type=int, nargs="+", required=True, help="ids")
    parser.add_argument("--callers", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--quick", action="store_true", help="the state is a tenth")
    parser.add_argument("--calls", type=Path, help="file for the times of all calls")
    options = parser.parse_args()
    gc.disable()
    print(json.dumps(asyncio.run(run(options))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
