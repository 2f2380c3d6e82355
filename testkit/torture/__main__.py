"""`python -m testkit.torture`: hurt three real replicas for an hour, and judge what callers saw.

Rounds that are in the file of figures are not run again. Exit code: 0 if every promise was kept, 1
if not, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from testkit.load.interrupt import cancel_on_signals
from testkit.torture import figures
from testkit.torture.cluster import REPLICAS, running
from testkit.torture.injector import FaultInjector
from testkit.torture.round import FAILURES, RoundFigures, TortureRound, in_words
from testkit.torture.schedule import schedule

KILLS: Final = 1_000
MINUTES: Final = 60.0
ROUND_S: Final = 30.0
# Then a new cluster begins; a cluster with a finding ends at once, and is kept as evidence.
ROUNDS_PER_CLUSTER: Final = 6
FIGURES: Final = Path(".torture.jsonl")
# The evidence of a finding is a gigabyte: with so many clusters kept a run ends.
CLUSTERS_KEPT_MAX: Final = 5
EXIT_KEPT: Final = 0
EXIT_BROKEN: Final = 1
EXIT_INTERRUPTED: Final = 130


@dataclass(slots=True)
class TortureCampaign:
    """Rounds, one after another, until there are enough kills or rounds, or the time is over."""

    options: argparse.Namespace
    directory: Path
    progress: Progress
    done: list[RoundFigures]
    clusters_kept: int = 0

    async def run(self) -> None:
        """Run all rounds that are left."""
        cancel_on_signals()
        task = self.progress.add_task("", total=self.options.kills)
        self._show(task)
        ends_s = time.monotonic() + 60 * self.options.minutes
        seeds = self._seeds()
        while not self._is_enough() and time.monotonic() < ends_s:
            await self._rounds_of_one_cluster(seeds, ends_s, task)

    async def _rounds_of_one_cluster(
        self, seeds: Iterator[int], ends_s: float, task: TaskID
    ) -> None:
        # A name of its own: evidence of an earlier run may be here.
        cluster_directory = Path(tempfile.mkdtemp(prefix="cluster-", dir=self.directory))
        kept = False
        async with running(cluster_directory / "replicas") as cluster:
            for _ in range(ROUNDS_PER_CLUSTER):
                if self._is_enough() or time.monotonic() > ends_s or kept:
                    break
                seed = next(seeds)
                number = 1 + seed - self.options.seed
                faults = schedule(seed, self.options.seconds, REPLICAS)
                injector = partial(FaultInjector, cluster, faults=faults)
                directory = cluster_directory / f"seed-{seed}"
                one = TortureRound(cluster, number, seed, injector, directory)
                found = await one.run()
                self.done.append(found)
                figures.save(self.options.figures, found)
                kept = bool(found.findings)
                self._show(task)
        if kept:
            self.clusters_kept += 1
        else:
            await asyncio.to_thread(shutil.rmtree, cluster_directory)

    def _seeds(self) -> Iterator[int]:
        known = {one.seed for one in self.done}
        return (seed for seed in itertools.count(self.options.seed) if seed not in known)

    def _is_enough(self) -> bool:
        if self.clusters_kept == CLUSTERS_KEPT_MAX:
            return True
        if self.options.rounds is not None:
            return len(self.done) >= int(self.options.rounds)
        return sum(one.kill_count for one in self.done) >= int(self.options.kills)

    def _show(self, task: TaskID) -> None:
        kills = sum(one.kill_count for one in self.done)
        transactions = sum(one.transactions for one in self.done)
        findings = sum(len(one.findings) for one in self.done)
        text = f"{len(self.done)} rounds, {transactions:,} transactions, {findings} findings; kills"
        self.progress.update(task, completed=kills, description=text)
        if not self.progress.console.is_terminal:
            self.progress.console.print(f"{text}: {kills}", highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign, print its report, and return the exit code."""
    options = _options(arguments)
    logging.getLogger("viewstamp").addHandler(logging.NullHandler())
    console = Console(quiet=options.json, highlight=False)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="viewstamp-torture-"))
    directory.mkdir(parents=True, exist_ok=True)
    wanted = options.seed + (options.rounds or sys.maxsize)
    done = [one for one in figures.load(options.figures) if options.seed <= one.seed < wanted]
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            # Not uvloop: it forks where asyncio spawns, and gRPC's threads do not survive that.
            asyncio.run(TortureCampaign(options, directory, progress, done).run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; the same command goes on after the last round that was done")
        _clean(options, directory, done)
        return EXIT_INTERRUPTED
    except FAILURES as error:
        print(f"a cluster could not be run: {in_words(error)}", file=sys.stderr)
        return EXIT_BROKEN
    found = figures.total(done)
    if options.json:
        print(json.dumps(found, indent=1))
    figures.print_report(console, done)
    _clean(options, directory, done)
    return EXIT_BROKEN if found["findings"] else EXIT_KEPT


def _clean(options: argparse.Namespace, directory: Path, done: Sequence[RoundFigures]) -> None:
    """Remove a temporary directory, unless it has evidence."""
    if any(one.findings for one in done):
        print(f"evidence of this run is in {directory}", file=sys.stderr)
    elif options.directory is None:
        shutil.rmtree(directory)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m testkit.torture", description="Hurt three real replicas, and judge them."
    )
    parser.add_argument("--rounds", type=int, help="how many; default: until --kills are made")
    parser.add_argument("--kills", type=int, default=KILLS, help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="default: %(default)g")
    parser.add_argument(
        "--seconds", type=float, default=ROUND_S, help="of faults in a round; default: %(default)g"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--directory", type=Path, help="of clusters; default: a temporary one")
    parser.add_argument(
        "--figures", type=Path, default=FIGURES, help="of rounds done; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
