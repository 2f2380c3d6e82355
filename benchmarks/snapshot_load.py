"""Load on what exists: UpdateTopic of topics drawn from all, by a number of callers. Prints JSON.

A process of its own, so that whoever takes snapshots meanwhile shares nothing with it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.load import WARM_UP_S, by_callers, summary
from benchmarks.snapshot_state import FULL, QUICK, Topics
from benchmarks.wire import Samples
from viewstamp import client as library


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    password = options.password_file.read_text().strip()
    size = QUICK if options.quick else FULL
    topics = Topics(options.streams, size)
    chance, values = random.Random(options.callers), count(1)
    client = await library.connect(options.address, username="root", password=password)
    async with client:
        samples = Samples(WARM_UP_S, options.seconds)
        await by_callers(
            samples,
            options.callers,
            lambda: client.call(topics.update(chance.randrange(topics.count), next(values))),
        )
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
    options = parser.parse_args()
    gc.disable()
    print(json.dumps(asyncio.run(run(options))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
