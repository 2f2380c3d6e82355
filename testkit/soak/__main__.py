"""`python -m testkit.soak`: hours of load with a kill a minute; what grows, and what is lost.

What was done is kept in a file, and the same command goes on after it. Exit code: 0 if every
promise was kept and nothing surely grows faster than the limit, 1 if not, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from testkit.links import unchanged
from testkit.load.interrupt import cancel_on_signals
from testkit.soak.kill_plan import kill_of
from testkit.soak.leaking_coordinator import leaking
from testkit.soak.offset_ledger import GroupPlace, OffsetLedger, create_group
from testkit.soak.process_samples import ProcessSampler
from testkit.soak.soak_figures import GrowthRule, SoakRecord, findings, print_soak, total
from testkit.soak.soak_round import SoakRound
from testkit.torture.cluster import ARGUMENTS, REPLICAS, TortureCluster, running
from testkit.torture.round import FAILURES, in_words
from viewstamp.limits import MIB

HOURS: Final = 4.0
ROUND_S: Final = 60.0
STRETCH_MINUTES: Final = 60.0
WARM_UP_MINUTES: Final = 10.0
LIMIT_PERCENT_PER_HOUR: Final = 1.0
SAMPLE_INTERVAL_S: Final = 5.0
RECORD: Final = Path(".soak.json")
# A soak with so many bad rounds ends: its disk fills with evidence.
BAD_ROUNDS_MAX: Final = 5
# The audit log has its full size within minutes, and grows no more.
SOAK_ARGUMENTS: Final = (*ARGUMENTS, "--audit-bytes", str(MIB))
EXIT_KEPT: Final = 0
EXIT_BROKEN: Final = 1
EXIT_INTERRUPTED: Final = 130


@dataclass(slots=True)
class Soak:
    """Rounds on one cluster until the hours are over."""

    options: argparse.Namespace
    directory: Path
    progress: Progress
    record: SoakRecord
    rule: GrowthRule

    async def run(self) -> None:
        """Run all rounds that are left."""
        cancel_on_signals()
        task = self.progress.add_task("", total=self.options.hours)
        self._show(task)
        if self._is_over():
            return
        adapt = leaking(self.options.plant_leak) if self.options.plant_leak else unchanged
        async with running(self.directory / "replicas", SOAK_ARGUMENTS, adapt) as cluster:
            sampler = _sampler_of(cluster)
            await create_group(cluster.admin, GroupPlace())
            sampling = asyncio.create_task(sampler.run(SAMPLE_INTERVAL_S))
            try:
                await self._rounds(cluster, sampler, sampling, task)
            finally:
                sampling.cancel()
                with suppress(asyncio.CancelledError):
                    await sampling

    async def _rounds(
        self,
        cluster: TortureCluster,
        sampler: ProcessSampler,
        sampling: asyncio.Task[None],
        task: TaskID,
    ) -> None:
        ledger, earlier = OffsetLedger(), list(self.record.lives)
        stretch = max(1, round(60 * self.options.stretch_minutes / self.options.round_seconds))
        while not self._is_over():
            number = len(self.record.rounds)
            directory = self.directory / f"round-{number}"
            kill = kill_of(number, stretch)
            one = SoakRound(cluster, number, kill, self.options.round_seconds, ledger, directory)
            found = await one.run()
            if sampling.done():
                sampling.result()  # a sampler that failed measures nothing
            self.record.rounds.append(found)
            self.record.lives = [*earlier, *sampler.lives.values()]
            self.record.load_averages.append(os.getloadavg()[0])
            self.record.save(self.options.record)
            if not found.findings:
                await asyncio.to_thread(shutil.rmtree, directory)
            self._show(task)

    def _is_over(self) -> bool:
        bad = sum(bool(one.findings) for one in self.record.rounds)
        return bad >= BAD_ROUNDS_MAX or self.record.hours >= self.options.hours

    def _show(self, task: TaskID) -> None:
        rounds = self.record.rounds
        kills = sum(one.kill_count for one in rounds)
        found = findings(self.record, self.rule)
        text = f"{len(rounds)} rounds, {kills} kills, {len(found)} findings; hours"
        self.progress.update(task, completed=self.record.hours, description=text)
        console = self.progress.console
        if not console.is_terminal:
            console.print(f"{text}: {self.record.hours:.2f}", highlight=False)
            for each in found:
                console.print(each, highlight=False, markup=False)


def _sampler_of(cluster: TortureCluster) -> ProcessSampler:
    def processes() -> Iterator[tuple[int, str, int]]:
        for number, replica in enumerate(cluster.replicas.replicas):
            for name, pid in replica.pids.items():
                yield number, name, pid

    directories = [cluster.replicas.replica_directory(each) for each in range(REPLICAS)]
    return ProcessSampler(processes, directories)


def main(arguments: list[str] | None = None) -> int:
    """Run the soak, print its report, and return the exit code."""
    options = _options(arguments)
    logging.getLogger("viewstamp").addHandler(logging.NullHandler())
    console = Console(quiet=options.json, highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="soak-", dir=options.directory))
    record = SoakRecord.load(options.record)
    rule = GrowthRule(options.limit, 60 * options.warm_up_minutes, options.round_seconds)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20))
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            # Not uvloop: it forks where asyncio spawns, and gRPC's threads do not survive that.
            asyncio.run(Soak(options, directory, progress, record, rule).run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; the same command goes on after the last round that was done")
        _clean(directory, record)
        return EXIT_INTERRUPTED
    except FAILURES as error:
        print(f"the cluster could not be run: {in_words(error)}", file=sys.stderr)
        return EXIT_BROKEN
    if options.json:
        print(json.dumps(total(record, rule), indent=1))
    print_soak(console, record, rule)
    _clean(directory, record)
    return EXIT_BROKEN if findings(record, rule) else EXIT_KEPT


def _clean(directory: Path, record: SoakRecord) -> None:
    """Remove the cluster, unless it has evidence."""
    if any(one.findings for one in record.rounds):
        print(f"evidence of this soak is in {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m testkit.soak",
        description="Load three real replicas for hours, kill a process a minute, and judge them.",
    )
    parser.add_argument("--hours", type=float, default=HOURS, help="default: %(default)g")
    parser.add_argument(
        "--round-seconds", type=float, default=ROUND_S, help="of load; default: %(default)g"
    )
    parser.add_argument(
        "--stretch-minutes",
        type=float,
        default=STRETCH_MINUTES,
        help="that a replica is spared; default: %(default)g",
    )
    parser.add_argument(
        "--warm-up-minutes",
        type=float,
        default=WARM_UP_MINUTES,
        help="of a process's life that do not count; default: %(default)g",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_PERCENT_PER_HOUR,
        help="growth in percent per hour that is too much; default: %(default)g",
    )
    parser.add_argument(
        "--plant-leak",
        type=int,
        default=0,
        metavar="BYTES_PER_S",
        help="have each coordinator keep so many more bytes each second, to see the judge find it",
    )
    parser.add_argument("--directory", type=Path, help="of the cluster; default: a temporary one")
    parser.add_argument(
        "--record", type=Path, default=RECORD, help="of what was done; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
