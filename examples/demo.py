"""The guided demonstration: real input, many consumers, every process killed, nothing lost.

Starts a cluster in a directory of its own, imports the event stream catalogue of the Wikimedia
Foundation, lets dozens of sessions join and leave its consumer groups while streams, topics,
groups, users and tokens come and go, and kills the coordinator and each domain service with SIGKILL
while at least 100 commands are in flight. Meanwhile it takes snapshots, and it kills the
coordinator and a domain service once more in the middle of a cut. Then it looks for everything that
was acknowledged. The digests of the state must equal those of the last snapshot's layers, of fresh
processes that restart from it, and of fresh processes that replay the whole log. In the end it
analyses the run's own traces and snapshots with Spark, and leaves a report.

Exit code: 0 if every promise was kept, 1 if not, or if the analysis fails, 130 if interrupted.
If Spark cannot run, or DEMO_ANALYTICS=0, a line says so, and only the other promises count.
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
from typing import Any, Final

import grpc.aio
from rich.console import Console
from rich.markup import escape

from testkit.load import LoadTrial, TrialOptions
from testkit.load.analysis import Analysis, AnalysisFailed, analyze, left_out
from testkit.load.display import (
    live_progress,
    print_analysis,
    print_checks,
    print_kills,
    print_snapshots,
)
from testkit.load.interrupt import cancel_on_signals
from testkit.load.kills import PROCESSES, PlannedKill
from testkit.load.session import LoadFailed
from testkit.load.trial import DATA_DIRECTORY
from viewstamp.client import Client, ClientError, Refusal
from viewstamp.cluster import ClusterError
from viewstamp.cluster.local import COORDINATOR
from viewstamp.importer import (
    PasswordFile,
    PasswordFileError,
    Report,
    import_plan,
    read_plan,
)
from viewstamp.importer.display import print_report, progress_bars
from viewstamp.routing import SERVICE_NAMES
from viewstamp.telemetry.settings import TELEMETRY_DIRECTORY, TelemetrySettings

CATALOGUE: Final = Path(__file__).with_name("wikimedia_event_streams.json")
SESSIONS: Final = 36
DELAY_MAX_S: Final = 2.0
# A snapshot is requested so long after the last one, and is due after so many commands.
SNAPSHOT_PAUSE_S: Final = 1.5
SNAPSHOT_COMMANDS: Final = 2_000
SNAPSHOTS_KEPT: Final = 100
# Every call is traced, because this run need not be fast, but worth a look.
TRACE_RATIO: Final = 1.0
# The run leaves these below the directory in which it was started.
REPORT: Final = Path("var", "demo", "report.html")
EXIT_KEPT: Final = 0
EXIT_BROKEN: Final = 1
EXIT_INTERRUPTED: Final = 130
# Errors of a run that cannot be finished; any other error is a defect of this script.
FAILURES: Final = (
    LoadFailed,
    AnalysisFailed,
    PasswordFileError,
    ClusterError,
    ClientError,
    Refusal,
    grpc.aio.AioRpcError,
    TimeoutError,
    OSError,
)


class Demo:
    """One demonstration in one directory."""

    def __init__(self, console: Console, directory: Path, seed: int) -> None:
        self.imports: list[Report] = []
        self.analysis = Analysis(left_out=left_out())
        self._console = console
        self._directory = directory
        self._data = directory / DATA_DIRECTORY
        self._seed = seed
        self._plan = read_plan(CATALOGUE)
        self._kills = planned_kills(seed)
        self.trial = LoadTrial(
            TrialOptions(
                directory=directory,
                seed=seed,
                kills=self._kills,
                snapshot_pause_s=SNAPSHOT_PAUSE_S,
                snapshot_commands=SNAPSHOT_COMMANDS,
                snapshots_kept=SNAPSHOTS_KEPT,
                sessions=SESSIONS,
                delay_max_s=DELAY_MAX_S,
                telemetry=self._telemetry(),
                prepare=self._import,
            )
        )

    @property
    def imported(self) -> bool:
        """Whether the import succeeded, and a second import found everything there."""
        first, again = self.imports
        changes = sum(counts.created + counts.updated for counts in again.kinds.values())
        return first.succeeded and again.succeeded and not changes

    async def run(self) -> bool:
        """Run and print it, and return whether every promise was kept. Raises FAILURES."""
        cancel_on_signals()
        self._console.rule("Viewstamp: a demonstration")
        self._console.print(f"seed {self._seed}, directory {self._directory}")
        if self.analysis.left_out:
            print_analysis(self._console, self.analysis)
        self._console.print("starting coordinator, users, streams and consumer_groups")
        async with live_progress(self._console, self.trial, len(self._kills)):
            report = await self.trial.run()
        print_kills(self._console, report.kills)
        print_snapshots(self._console, report)
        print_checks(self._console, report)
        return report.succeeded and self.imported

    def report(self) -> None:
        """Analyse the run's traces and snapshots, if Spark can run here; print the findings."""
        if not self.analysis.left_out:
            command = f"viewstamp analyze --data-directory {self._data}"
            self._console.print(f"analysing this run, as by: {command}", soft_wrap=True)
            with self._console.status("starting Spark …") as status:

                def tell(step: str) -> None:
                    status.update(step)
                    if not step.endswith("…"):
                        self._console.print(f"  {escape(step)}")

                self.analysis = analyze(self._data, REPORT, tell)
        print_analysis(self._console, self.analysis)

    def _telemetry(self) -> TelemetrySettings | None:
        if self.analysis.left_out:
            return None
        return TelemetrySettings(self._data / TELEMETRY_DIRECTORY, TRACE_RATIO)

    async def _import(self, client: Client) -> None:
        passwords = PasswordFile(self._directory / "imported_passwords.json")
        with progress_bars(self._console, self._plan) as progress:
            first = await import_plan(client, self._plan, passwords, progress=progress)
        again = await import_plan(client, self._plan, passwords)
        self.imports += [first, again]
        print_report(self._console, first)
        existing = sum(counts.existing for counts in again.kinds.values())
        self._console.print(f"imported once more: all {existing:,} were recognised")
        self._console.print(f"now {SESSIONS} sessions join and leave groups, create and delete")


def planned_kills(seed: int) -> list[PlannedKill]:
    """Return every process once, and the coordinator and a service during a cut, shuffled."""
    chance = random.Random(seed)
    kills = [PlannedKill(process) for process in PROCESSES]
    kills += [
        PlannedKill(name, during_cut=True) for name in (COORDINATOR, chance.choice(SERVICE_NAMES))
    ]
    chance.shuffle(kills)
    return kills


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration and return the exit code."""
    options = _options(arguments)
    logging.getLogger("viewstamp").addHandler(logging.NullHandler())
    console = Console(quiet=options.json, highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="viewstamp-demo-"))
    keep = options.keep
    try:
        exit_code = _run(console, directory, options)
        keep = keep or exit_code == EXIT_BROKEN
        return exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted")
        return EXIT_INTERRUPTED
    finally:
        if keep:
            print(f"kept for a look: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory)


def _run(console: Console, directory: Path, options: argparse.Namespace) -> int:
    started_s = time.monotonic()
    demo = Demo(console, directory, options.seed)
    try:
        kept = asyncio.run(demo.run())
        demo.report()
    except FAILURES as error:
        text = f"{type(error).__name__}: {error}"
        console.print(f"[red]the demonstration failed[/red]: {escape(text)}")
        if options.json:
            print(json.dumps({"succeeded": False, "error": text}))
        return EXIT_BROKEN
    took_s = round(time.monotonic() - started_s, 1)
    if options.json:
        print(json.dumps(_as_json(demo, kept, took_s), indent=1))
    verdict = "[green]every promise was kept" if kept else "[red]a promise was broken"
    console.rule(f"{verdict}[/] ({took_s} s)")
    return EXIT_KEPT if kept else EXIT_BROKEN


def _as_json(demo: Demo, kept: bool, took_s: float) -> dict[str, Any]:
    return {
        "succeeded": kept,
        "took_s": took_s,
        "imports": [report.to_json() for report in demo.imports],
        "trial": demo.trial.report.to_json(),
        "analysis": demo.analysis.to_json(),
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Show what a cluster survives.")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--seed", type=int, default=1, help="of commands, order and times of kills")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
