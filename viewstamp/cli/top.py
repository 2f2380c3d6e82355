"""`viewstamp top`: a live view of a cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from viewstamp.cli import EXIT_INTERRUPTED
from viewstamp.cli.calls import run
from viewstamp.cli.output import (
    moment_text,
    print_table,
    printed_lines,
    table_cells,
    table_titles,
)
from viewstamp.cli.settings import Settings, settings_of
from viewstamp.views import view_words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from viewstamp.cli.measuring import ClusterMeter
    from viewstamp.client import Client

REPLICA_COLUMNS: Final = ("replica_id", "role", "status", "view", "commit", "lag", "link")
ALARM_COLUMNS: Final = ("kind", "message", "since")
GROUP_COLUMNS: Final = ("group", "lag", "lag_is_whole")
INTERVAL_MIN_S: Final = 0.1
# A reading may take so long, even if the next one is to come sooner.
READING_MIN_S: Final = 2.0
GROUPS_SHOWN: Final = 5
GROUPS_SHOWN_MAX: Final = 100


def top(
    context: typer.Context,
    interval: Annotated[
        float, typer.Option(min=INTERVAL_MIN_S, help="Seconds between two readings.")
    ] = 2.0,
    groups: Annotated[
        int,
        typer.Option(
            min=0, max=GROUPS_SHOWN_MAX, help="Number of groups with the highest lag; 0 for none."
        ),
    ] = GROUPS_SHOWN,
    once: Annotated[
        bool, typer.Option("--once", help="Read twice, for the rates, and print the second.")
    ] = False,
) -> None:
    """Show replicas, rates, snapshots, alarms and the lag of groups, refreshed until Ctrl-C.

    Rates are differences between two readings. In a pipe it prints once, as with --once; with
    --json it prints a line for each reading. When no replica answers, it shows the last values and
    since when, and goes on. The lag is that of the first 100 groups, and of their first 16,384
    partitions.
    """
    settings = settings_of(context)
    is_once = once or not (settings.for_programs or sys.stdout.isatty())

    async def follow(client: Client) -> None:
        from viewstamp.cli.measuring import ClusterMeter

        meter = ClusterMeter(client.within(max(interval, READING_MIN_S)), groups)
        if is_once:
            await meter.read()
            await asyncio.sleep(interval)
            _print(settings, await meter.read())
        elif settings.for_programs:
            await _print_all(settings, meter, interval)
        else:
            await _show_live(meter, interval)

    try:
        run(context, follow)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


async def _print_all(settings: Settings, meter: ClusterMeter, interval_s: float) -> None:
    while True:
        _print(settings, await meter.read())
        sys.stdout.flush()
        await asyncio.sleep(interval_s)


async def _show_live(meter: ClusterMeter, interval_s: float) -> None:
    # Imported late: pipes and programs do not need it.
    from rich.live import Live

    with Live(auto_refresh=False, screen=True) as live:
        while True:
            live.update(_framed(await meter.read()), refresh=True)
            await asyncio.sleep(interval_s)


def _print(settings: Settings, values: dict[str, Any]) -> None:
    if printed_lines(settings, [values]):
        return
    for line in _headline(values):
        typer.echo(line)
    for columns, rows, title in _tables(values):
        print_table(columns, rows, title)


def _framed(values: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from viewstamp.cli.framed import framed_table

    tables = (
        framed_table(table_titles(columns), table_cells(columns, rows), title)
        for columns, rows, title in _tables(values)
    )
    return Group(*map(Text, _headline(values)), *tables)


def _headline(values: dict[str, Any]) -> Iterator[str]:
    """Yield the lines above the tables."""
    if values["no_answer_since"]:
        yield f"no answer since {moment_text(values['no_answer_since'])}: {values['failure']}"
    if "cluster" not in values:
        return
    place = f"view {view_words(values['view'])}   epoch {values['epoch']}"
    yield f"cluster {values['cluster']}   primary {values['primary']}   {place}"
    commands, entries = _rate(values["commands_per_s"]), _rate(values["entries_per_s"])
    yield (
        f"revision {values['revision']}   commands {commands}   entries {entries}   "
        f"sessions {values['sessions']}"
    )
    age_s = values["snapshot_age_s"]
    told = "none" if age_s is None else f"{values['snapshot']}, {age_s} s old"
    yield f"snapshot {told}"
    if not values["alarms"]:
        yield "no alarms"


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:g}/s"


def _tables(values: dict[str, Any]) -> Iterator[tuple[Sequence[str], list[dict[str, Any]], str]]:
    """Yield columns, rows and title of each table that has rows."""
    for key, columns, title in (
        ("replicas", REPLICA_COLUMNS, "replicas"),
        ("alarms", ALARM_COLUMNS, "alarms"),
        ("groups", GROUP_COLUMNS, "groups with the highest lag"),
    ):
        if values.get(key):
            yield columns, values[key], title
