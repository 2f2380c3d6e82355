"""A trial on a terminal: what is in flight while it runs, then what was killed and what held."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from testkit.load.analysis import Analysis
from testkit.load.cuts import Moment
from testkit.load.kills import PROCESSES, ProcessKill
from testkit.load.trial import LoadTrial, TrialReport

REFRESH_S: Final = 0.2
EVIDENCE_LINES_MAX: Final = 10
FINDINGS_SHOWN_MAX: Final = 8
SEVERITY_COLOURS: Final = {"critical": "red", "warning": "yellow", "good": "green"}

# Of kills that were meant for a cut.
COLUMNS_OF_MOMENTS: Final = {
    Moment.ASKED: "before the cut",
    Moment.CUT: "during it",
    Moment.DECIDED: "after it",
}
STEPS: Final = {
    "load": "load, and kills",
    "check": "checking by paged reads",
    "restore": "restarting from the last snapshot",
    "replay": "replaying the log from scratch",
    "done": "done",
}


@asynccontextmanager
async def live_progress(console: Console, trial: LoadTrial, kills: int) -> AsyncIterator[None]:
    """Show the kills, and the commands acknowledged and in flight, while the load runs.

    The steps before it have their own display, such as the bars of an import.
    """
    follower = asyncio.create_task(_follow(console, trial, kills))
    try:
        yield
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)


async def _follow(console: Console, trial: LoadTrial, kills: int) -> None:
    await trial.loading.wait()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("kills, {task.fields[load]}"),
        TimeElapsedColumn(),
    )
    load = trial.load
    assert load is not None, "the load begins before it is told of"
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=kills, load="")
        while True:
            progress.update(
                task,
                description=STEPS[trial.current_step],
                completed=len(trial.report.kills),
                load=f"{load.acknowledged:,} commands acknowledged, {load.in_flight} in flight",
            )
            await asyncio.sleep(REFRESH_S)


def print_kills(console: Console, kills: Sequence[ProcessKill]) -> None:
    """Print every kill, and of those during a cut where they fell and what came of the snapshot."""
    table = Table(title="killed with SIGKILL, under load", title_justify="left")
    for column in ("process", "commands in flight", "new ones acknowledged", "all acknowledged"):
        table.add_column(column, justify="left" if column == "process" else "right")
    table.add_column("snapshot at that moment")
    for kill in kills:
        times = (f"after {ms:,} ms" for ms in (kill.first_new_ms, kill.in_flight_ms))
        table.add_row(kill.process, str(kill.in_flight), *times, _cut(kill))
    console.print(table)


def _cut(kill: ProcessKill) -> str:
    if kill.cut is None:
        return ""
    if not kill.counts:
        return f"{kill.cut.generation} {kill.cut.moment}: made again"
    return f"{kill.cut.generation} {kill.cut.moment}, then {kill.cut.state}"


def print_kill_summary(console: Console, kills: Sequence[ProcessKill]) -> None:
    """Print kills by process: how many, how busy, how long until commands got through again."""
    table = Table(title="killed with SIGKILL, under load", title_justify="left")
    table.add_column("process")
    for column in ("kills", "in flight, least", "median ms", "worst ms", "all answered, worst ms"):
        table.add_column(column, justify="right")
    for column in COLUMNS_OF_MOMENTS.values():
        table.add_column(column, justify="right")
    for process in PROCESSES:
        mine = [kill for kill in kills if kill.process == process]
        if not mine:
            continue
        first = [kill.first_new_ms for kill in mine]
        moments = Counter(kill.cut.moment for kill in mine if kill.cut is not None)
        numbers = (
            len(mine),
            min(kill.in_flight for kill in mine),
            round(median(first)),
            max(first),
            max(kill.in_flight_ms for kill in mine),
            *(moments[moment] for moment in COLUMNS_OF_MOMENTS),
        )
        table.add_row(process, *(f"{number:,}" for number in numbers))
    console.print(table)


def print_snapshots(console: Console, report: TrialReport) -> None:
    """Print the snapshots that were kept, and what restarts went on from."""
    table = Table(title="snapshots", title_justify="left")
    for column in ("generation", "state", "because", "cut at revision", "entities", "bytes"):
        table.add_column(column, justify="left" if column in ("state", "because") else "right")
    for one in report.snapshots:
        numbers = (f"{number:,}" for number in (one.cut_revision, one.entities, one.size_bytes))
        because = "asked for" if one.is_asked else "due"
        state = f"{one.state}: {one.failure}" if one.failure else one.state
        table.add_row(str(one.generation), escape(state), because, *numbers)
    console.print(table)
    restarts = report.starts[1:]
    from_snapshot = [start for start in restarts if start.generation]
    entries = max((start.replay_ops for start in from_snapshot), default=0)
    console.print(
        f"the coordinator was restarted {len(restarts)} times, {len(from_snapshot)} of them from a "
        f"snapshot, with at most {entries} log entries after it; journal segments that snapshots "
        f"made superfluous: {report.segments_dropped}"
    )


def print_checks(console: Console, report: TrialReport) -> None:
    """Print what was sent, what exists, and what each check found, with evidence."""
    console.print(
        f"{report.requests:,} requests with {report.commands:,} commands were acknowledged, "
        f"{report.refused:,} of them as refused by the rules; {report.sent_again:,} requests were "
        f"sent again over a kill, {report.duplicates:,} once more after their answer"
    )
    entities = ", ".join(f"{count:,} {kind}" for kind, count in report.entities.items())
    console.print(f"reads find {entities} at revision {report.revision:,}")
    table = Table(title="what was promised", title_justify="left")
    table.add_column("check")
    table.add_column("result")
    for check, violations in report.checks.items():
        result = f"[red]{len(violations)} violations" if violations else "[green]kept"
        table.add_row(str(check), result)
    console.print(table)
    for check, violations in report.checks.items():
        for violation in violations[:EVIDENCE_LINES_MAX]:
            console.print(f"[red]violated[/red] {check.name}: {escape(violation.evidence)}")
        if len(violations) > EVIDENCE_LINES_MAX:
            console.print(f"  and {len(violations) - EVIDENCE_LINES_MAX} more")


def print_analysis(console: Console, analysis: Analysis) -> None:
    """Print the main findings and where the report is, or why there is none."""
    if analysis.report is None:
        console.print(f"[yellow]no report[/yellow]: {escape(analysis.left_out)}")
        return
    table = Table(title="what the traces and snapshots of this run show", title_justify="left")
    table.add_column("")
    table.add_column("finding")
    for severity, text in analysis.findings[:FINDINGS_SHOWN_MAX]:
        table.add_row(f"[{SEVERITY_COLOURS.get(severity, 'default')}]{severity}", escape(text))
    console.print(table)
    more = max(0, len(analysis.findings) - FINDINGS_SHOWN_MAX)
    rest = f"{more} more findings, plots and tables" if more else "plots and tables"
    console.print(f"{rest}: {escape(str(analysis.report))} ({analysis.took_s} s)", soft_wrap=True)
