"""An import on a terminal: bars while it runs, a table of what became of everything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from viewstamp.importer.execution import Progress as Told
from viewstamp.importer.execution import planned_counts
from viewstamp.importer.plan import ImportPlan
from viewstamp.importer.report import Report


@contextmanager
def progress_bars(console: Console, plan: ImportPlan) -> Iterator[Told]:
    """Show a bar for each kind of thing; yields the function that takes the progress."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks = {
            kind: progress.add_task(kind, total=planned)
            for kind, planned in planned_counts(plan).items()
        }
        yield lambda kind, count: progress.advance(tasks[kind], count)


def print_report(console: Console, report: Report) -> None:
    """Print counts that add up against the catalogue, what was skipped, and what failed."""
    verb = "would be " if report.dry_run else ""
    table = Table(title="import", title_justify="left")
    for column in ("", "planned", f"{verb}created", f"{verb}updated", "existing", "failed"):
        table.add_column(column, justify="right" if column else "left")
    for kind, counts in report.kinds.items():
        numbers = (counts.planned, counts.created, counts.updated, counts.existing)
        table.add_row(kind, *map(str, numbers), str(len(counts.failures)))
    console.print(table)
    plan = report.plan
    console.print(
        f"{plan.entries} entries in the catalogue = {plan.imported_entries} imported + "
        f"{len(plan.skipped_entries)} skipped; they name {plan.topic_mentions} topics, "
        f"{len(plan.topics)} of them distinct; {plan.grants} grants to send messages"
    )
    for skipped in (*plan.skipped_entries, *plan.skipped_producers):
        console.print(f"skipped {escape(skipped.what)}: {escape(skipped.reason)}")
    for counts in report.kinds.values():
        for failure in counts.failures:
            console.print(f"failed: {escape(failure)}")
