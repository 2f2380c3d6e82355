"""`viewstamp snapshot ...`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.cli import snapshot_diff, snapshot_files
from viewstamp.cli.options import Yes, confirm
from viewstamp.cli.output import done, moment_text, plain, print_json, print_table, show
from viewstamp.cli.session import run
from viewstamp.cli.settings import EXIT_REFUSED, Settings, fail, settings_of
from viewstamp.cli.snapshot_options import (
    CopiesOption,
    DataOption,
    DirectoryOption,
    GenerationArgument,
    offline_copies,
    progress_console,
    telling,
)
from viewstamp.client import Client

app = typer.Typer(
    help="Manage snapshots: all state at one revision, on a cluster or on disk.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

# Narrow enough for a terminal of 80 columns.
COLUMNS = ("generation", "state", "cut_at", "kept", "entities", "bytes")
TASK_COLUMNS = ("stage", "entities", "size_bytes", "applied_revision")

OneGeneration = Annotated[
    int, typer.Argument(min=1, help="Number of the snapshot.", metavar="GENERATION")
]


class RetentionOption(Enum):
    """How long a snapshot is kept."""

    last = "last"
    daily = "daily"
    pinned = "pinned"


class Unpinned(Enum):
    """How long a snapshot that is not pinned is kept."""

    last = "last"
    daily = "daily"


def _retention(retention: RetentionOption | Unpinned) -> snapshots_pb2.RetentionClass.ValueType:
    return snapshots_pb2.RetentionClass.Value(f"RETENTION_CLASS_{retention.value.upper()}")


@app.command()
def create(
    context: typer.Context,
    retention: Annotated[
        RetentionOption,
        typer.Option(help="Keep it among the last ones, as the one of its day, or until deleted."),
    ] = RetentionOption.last,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until it is completed or has failed.")
    ] = True,
) -> None:
    """Take a snapshot. Exits with 1 if it fails."""
    settings = settings_of(context)

    async def take(client: Client) -> tuple[Any, snapshots_pb2.Snapshot | None]:
        created = await client.snapshots.create(retention=_retention(retention))
        if not wait:
            return created, None
        with progress_console(settings).status(f"writing generation {created.generation}"):
            return created, await client.snapshots.decided(created.generation)

    created, decided = run(context, take)
    generation = created.generation
    if decided is None:
        done(settings, created, f"began snapshot {generation}")
    elif decided.state == snapshots_pb2.SNAPSHOT_STATE_FAILED:
        step = "look at the coordinator's log and `viewstamp status`, then create another one"
        text = f"snapshot {generation} failed: {decided.failure}"
        fail(settings, "SNAPSHOT_FAILED", text, step, exit_code=EXIT_REFUSED)
    elif settings.as_json:
        print_json(_row(decided))
    else:
        row = _row(decided)
        typer.echo(
            f"completed snapshot {generation}: {row['entities']} entities,"
            f" {row['size_bytes']} bytes (revision {decided.cut_revision})"
        )


@app.command("list")
def list_(
    context: typer.Context,
    directory: DirectoryOption = None,
    copies: CopiesOption = None,
    data: DataOption = None,
) -> None:
    """List snapshots, newest first: those of the cluster, or those whose files are there."""
    settings = settings_of(context)
    if data is not None:
        from viewstamp.cli import snapshot_view

        _check_alone(directory, copies)
        view = snapshot_view.read_view(settings, data)
        snapshot_view.tell_age(settings, view)
        _print_list(settings, view.snapshots)
        return
    with telling(settings):
        there = offline_copies(directory, copies)
        if there is not None:
            snapshot_files.list_directory(settings, there)
            return

    async def collect(client: Client) -> list[snapshots_pb2.Snapshot]:
        return [snapshot async for snapshot in client.snapshots.list()]

    _print_list(settings, run(context, collect))


def _check_alone(directory: Path | None, copies: list[Path] | None) -> None:
    if directory is not None or copies:
        raise typer.BadParameter("give --data, --directory or --copies, only one of them")


def _print_list(settings: Settings, snapshots: Sequence[snapshots_pb2.Snapshot]) -> None:
    rows = [_row(snapshot) for snapshot in snapshots]
    if settings.as_json:
        print_json(rows)
    elif rows:
        print_table(COLUMNS, map(_short, rows))
    else:
        typer.echo("no snapshots yet: create one with `viewstamp snapshot create`")


@app.command("show")
def show_(
    context: typer.Context,
    generation: GenerationArgument,
    directory: DirectoryOption = None,
    copies: CopiesOption = None,
    data: DataOption = None,
) -> None:
    """Show one snapshot: its sections with digests and sizes; from a directory also its layers."""
    settings = settings_of(context)
    if data is not None:
        from viewstamp.cli import snapshot_view

        _check_alone(directory, copies)
        view = snapshot_view.read_view(settings, data)
        with telling(settings):
            stored = view.snapshot(generation)
        snapshot_view.tell_age(settings, view)
        _print_one(settings, stored, view.copies.get(stored.generation, ()))
        return
    with telling(settings):
        there = offline_copies(directory, copies)
        if there is not None:
            snapshot_files.show_directory(settings, there, generation)
            return
    found = run(
        context,
        lambda client: (
            client.snapshots.get(generation) if generation else client.snapshots.latest()
        ),
    )
    _print_one(settings, found)


def _print_one(
    settings: Settings, found: snapshots_pb2.Snapshot, copies: Sequence[str] = ()
) -> None:
    if settings.as_json:
        print_json({**_row(found), **({"copies": list(copies)} if copies else {})})
        return
    show(settings, found, f"snapshot {found.generation}", without=("tasks", "decided_at"))
    tasks = [plain(task) for task in found.tasks]
    print_table(TASK_COLUMNS, tasks, "sections")
    for task in tasks:
        typer.echo(f"digest of {task['stage']}: {task['state_digest']}")
    for copy in copies:
        typer.echo(f"verified copy in {copy}")


@app.command()
def delete(context: typer.Context, generation: OneGeneration, yes: Yes = False) -> None:
    """Delete a snapshot; never the last good one, and none that is being written."""
    settings = settings_of(context)
    confirm(settings, f"Delete snapshot {generation}?", yes=yes, dry_run=False)
    response = run(context, lambda client: client.snapshots.delete(generation))
    done(settings, response, f"deleted snapshot {generation}")


@app.command()
def prune(
    context: typer.Context,
    keep_last: Annotated[int, typer.Option(min=1, help="Number of the newest to keep.")],
    keep_daily: Annotated[
        int, typer.Option(min=0, help="Also keep the newest of each of this many last days (UTC).")
    ] = 0,
    yes: Yes = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be deleted.")
    ] = False,
) -> None:
    """Delete the snapshots that the given retention does not keep.

    Pinned ones, the last good one and one that is being written always stay.
    """
    settings = settings_of(context)
    if dry_run or not yes:
        planned = run(
            context,
            lambda client: client.snapshots.prune(
                keep_last=keep_last, keep_daily=keep_daily, validate_only=True
            ),
        )
        named = _named(planned.generations)
        if dry_run or not planned.generations:
            done(settings, planned, f"deleted {named}", dry_run=True)
            return
        confirm(settings, f"Delete {named}?", yes=yes, dry_run=False)
    response = run(
        context,
        lambda client: client.snapshots.prune(keep_last=keep_last, keep_daily=keep_daily),
    )
    done(settings, response, f"deleted {_named(response.generations)}")


@app.command()
def pin(context: typer.Context, generation: OneGeneration) -> None:
    """Keep a snapshot until it is deleted."""
    _set_retention(context, generation, RetentionOption.pinned)


@app.command()
def unpin(
    context: typer.Context,
    generation: OneGeneration,
    retention: Annotated[
        Unpinned, typer.Option(help="Keep it among the last ones, or as the one of its day.")
    ] = Unpinned.last,
) -> None:
    """Let a snapshot be deleted when it is old."""
    _set_retention(context, generation, retention)


app.command()(snapshot_files.verify)
app.command()(snapshot_files.download)
app.command()(snapshot_files.inspect)
app.command()(snapshot_files.export)
app.command()(snapshot_diff.diff)


def _set_retention(
    context: typer.Context, generation: int, retention: RetentionOption | Unpinned
) -> None:
    response = run(
        context,
        lambda client: client.snapshots.set_retention(generation, _retention(retention)),
    )
    sentence = f"set the retention of snapshot {generation} to {retention.value}"
    done(settings_of(context), response, sentence)


def _row(snapshot: snapshots_pb2.Snapshot) -> dict[str, Any]:
    """Return a snapshot's fields, and what its sections add up to."""
    return {
        **plain(snapshot),
        "entities": sum(task.entities for task in snapshot.tasks),
        "size_bytes": sum(task.size_bytes for task in snapshot.tasks),
    }


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the columns of the table under short names."""
    cut_at = row["created_at"] and moment_text(row["created_at"])
    return {**row, "cut_at": cut_at, "kept": row["retention"], "bytes": row["size_bytes"]}


def _named(generations: Iterable[int]) -> str:
    numbers = list(map(str, generations))
    if not numbers:
        return "no snapshot"
    return f"snapshot{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
