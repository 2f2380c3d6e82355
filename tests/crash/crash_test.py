"""Kill every process of a loaded cluster again and again, and check all that was acknowledged.

SIGKILL hits the coordinator and each domain service at random moments, with at least 100 commands
in flight each time. The test asks for one snapshot after another, and as many more kills fall
between the cut of a snapshot and its decision. The load sends every request in flight again under
its number, and once more after its answer. The answers that the load recorded must agree with a
sequential model, with paged reads, and with the digests of a replay from scratch, archived journal
segments included. Every snapshot that is left must verify, and a restart from the last one must
lead to the same digests (`testkit/load`).

Exit code: 0 if every promise was kept, 1 if not, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import grpc.aio
from rich.console import Console
from rich.markup import escape

from testkit.load import LoadTrial, TrialOptions
from testkit.load.display import (
    live_progress,
    print_checks,
    print_kill_summary,
    print_snapshots,
)
from testkit.load.interrupt import cancel_on_signals
from testkit.load.kills import PROCESSES, PlannedKill
from testkit.load.oracle import Check, Violation
from testkit.load.session import LoadFailed
from viewstamp.client import Client, ClientError, Refusal
from viewstamp.cluster import ClusterError

KILLS_PER_PROCESS: Final = 10
KILLS_PER_PROCESS_SHORT: Final = 2
DELAY_MAX_S: Final = 1.0
PARTITIONS_MAX: Final = 4
# Snapshots follow one another, and those kept have deltas on deltas while older ones are collected.
SNAPSHOT_PAUSE_S: Final = 0.2
SNAPSHOTS_KEPT: Final = 12
# The load never deletes these streams; each has topics and groups that many sessions use.
LASTING_STREAMS: Final = 4
LASTING_TOPICS: Final = 3
LASTING_GROUPS: Final = 3
EXIT_KEPT: Final = 0
EXIT_BROKEN: Final = 1
EXIT_INTERRUPTED: Final = 130
FAILURES: Final = (
    LoadFailed,
    ClusterError,
    ClientError,
    Refusal,
    grpc.aio.AioRpcError,
    TimeoutError,
    OSError,
)


def kills_in_random_order(per_process: int, seed: int) -> list[PlannedKill]:
    """Return every process this many times, and as often again during a cut, in random order."""
    kills = [
        PlannedKill(process, during_cut)
        for process in PROCESSES
        for during_cut in (False, True)
        for _ in range(per_process)
    ]
    random.Random(seed).shuffle(kills)
    return kills


async def create_lasting_groups(client: Client) -> None:
    """Create the groups that exist before, during and after the load."""
    for stream in (f"lasting-{index}" for index in range(LASTING_STREAMS)):
        await client.streams.create(stream)
        for topic in (f"topic-{index}" for index in range(LASTING_TOPICS)):
            await client.topics.create(stream, topic, partitions_count=PARTITIONS_MAX)
            for group in (f"group-{index}" for index in range(LASTING_GROUPS)):
                await client.groups.create(stream, topic, group)


async def crash(console: Console, directory: Path, per_process: int, seed: int) -> LoadTrial:
    """Run the whole test and return it, with its report. Raises FAILURES."""
    cancel_on_signals()
    kills = kills_in_random_order(per_process, seed)
    trial = LoadTrial(
        TrialOptions(
            directory=directory,
            seed=seed,
            kills=kills,
            snapshot_pause_s=SNAPSHOT_PAUSE_S,
            snapshot_commands=0,
            snapshots_kept=SNAPSHOTS_KEPT,
            delay_max_s=DELAY_MAX_S,
            partitions_max=PARTITIONS_MAX,
            prepare=create_lasting_groups,
        )
    )
    async with live_progress(console, trial, len(kills)):
        report = await trial.run()
    if per_process >= KILLS_PER_PROCESS_SHORT and not report.segments_dropped:
        evidence = "no journal segment was dropped: every restart could have replayed the whole log"
        report.violations.append(Violation(Check.RESTORED, evidence))
    return trial


def main(arguments: list[str] | None = None) -> int:
    """Run the crash test and return the exit code."""
    options = _options(arguments)
    per_process = KILLS_PER_PROCESS_SHORT if options.short else options.kills_per_process
    logging.getLogger("viewstamp").addHandler(logging.NullHandler())
    console = Console(quiet=options.json, highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="viewstamp-crash-"))
    console.print(
        f"{per_process} kills per process and as many during a cut, seed {options.seed}, "
        f"directory {directory}"
    )
    keep = False
    try:
        kept = _run(console, directory, per_process, options)
        keep = not kept
        return EXIT_KEPT if kept else EXIT_BROKEN
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted")
        return EXIT_INTERRUPTED
    finally:
        if keep:
            print(f"kept as evidence: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory)


def _run(console: Console, directory: Path, per_process: int, options: argparse.Namespace) -> bool:
    started_s = time.monotonic()
    try:
        report = asyncio.run(crash(console, directory, per_process, options.seed)).report
    except FAILURES as error:
        text = f"{type(error).__name__}: {error}"
        console.print(f"[red]the crash test could not be brought to an end[/red]: {escape(text)}")
        if options.json:
            print(json.dumps({"succeeded": False, "error": text}))
        return False
    print_kill_summary(console, report.kills)
    print_snapshots(console, report)
    print_checks(console, report)
    took_s = round(time.monotonic() - started_s, 1)
    if options.json:
        print(json.dumps({**report.to_json(), "took_s": took_s}, indent=1))
    verdict = "[green]every promise was kept" if report.succeeded else "[red]a promise was broken"
    console.print(f"{verdict}[/] ({len(report.kills)} kills, {took_s} s)")
    return report.succeeded


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill processes of a loaded cluster.")
    parser.add_argument(
        "--kills-per-process", type=int, default=KILLS_PER_PROCESS, help="default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=1, help="of commands, order and times of kills")
    parser.add_argument(
        "--short", action="store_true", help=f"{KILLS_PER_PROCESS_SHORT} kills per process"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
