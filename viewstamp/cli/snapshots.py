"""`viewstamp snapshot ...`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Annotated, Any, Final

import typer
from google.protobuf.message import Message
from typer.core import TyperGroup

from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.cli import snapshot_progress
from viewstamp.cli.calls import ask_here, collected, run
from viewstamp.cli.completing import complete_generation
from viewstamp.cli.grammar import duration_us
from viewstamp.cli.options import DryRun, ExpectedRevision, Yes, confirm, guards
from viewstamp.cli.output import done, moment_text, plain, print_table, printed, show_values
from viewstamp.cli.settings import EXIT_REFUSED, Settings, fail, settings_of
from viewstamp.cli.snapshot_options import (
    NEWEST,
    CopiesOption,
    DataOption,
    DirectoryOption,
    GenerationArgument,
    HereOption,
    offline_copies,
    progress_console,
    telling,
)
from viewstamp.client import Client
from viewstamp.client.identifiers import Guards


class SnapshotGroup(TyperGroup):
    """Loads the commands that read files only when one of them or the list of all is used."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is called, or completed."""
        if args[0] not in self.commands:
            self.commands.update(_commands_on_files())
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        self.commands.update(_commands_on_files())
        return super().list_commands(ctx)


def _commands_on_files() -> dict[str, Any]:
    from viewstamp.cli import snapshot_bisect, snapshot_diff, snapshot_files, snapshot_shell

    holder = typer.Typer(rich_markup_mode="markdown")
    files = snapshot_files
    commands: tuple[Any, ...] = (
        *(files.verify, files.download, files.inspect, files.export),
        *(snapshot_diff.diff, snapshot_bisect.bisect, snapshot_shell.shell),
    )
    for command in commands:
        holder.command()(command)
    group: Any = typer.main.get_command(holder)
    return dict(group.commands)


app = typer.Typer(
    cls=SnapshotGroup,
    help="Manage snapshots: all state at one revision, on a cluster or on disk.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

# Narrow enough for a terminal of 80 columns.
COLUMNS = ("generation", "state", "cut_at", "kept", "entities", "bytes")
TASK_COLUMNS = ("stage", "entities", "size_bytes", "applied_revision")

OneGeneration = Annotated[
    int,
    typer.Argument(
        min=1,
        help="Number of the snapshot.",
        metavar="GENERATION",
        autocompletion=complete_generation,
    ),
]


class RetentionOption(Enum):
    """How long a snapshot is kept."""

    last = "last"
    daily = "daily"
    pinned = "pinned"


KeepFor = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="Keep it for 12h, 30d or 2w in any case, and no longer pinned; never: no time.",
    ),
]
_US_PER_MS: Final = 1_000


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
    keep_for: KeepFor = "never",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until it is completed or has failed.")
    ] = True,
    dry_run: DryRun = False,
) -> None:
    """Take a snapshot. Exits with 1 if it fails."""
    settings = settings_of(context)
    keep_for_ms = duration_us(keep_for) // _US_PER_MS

    async def take(client: Client) -> tuple[Any, snapshots_pb2.Snapshot | None]:
        created = await client.snapshots.create(
            retention=_retention(retention), keep_for_ms=keep_for_ms, validate_only=dry_run
        )
        if not wait or dry_run:
            return created, None
        console = progress_console(settings)
        return created, await snapshot_progress.decided(
            console, client.snapshots, created.generation
        )

    created, decided = run(context, take)
    generation = created.generation
    if decided is None:
        sentence = f"began snapshot {generation}"
        done(settings, created, sentence, dry_run=dry_run, name=str(generation))
    elif decided.state == snapshots_pb2.SNAPSHOT_STATE_FAILED:
        step = "look at the coordinator's log and `viewstamp status`, then create another one"
        text = f"snapshot {generation} failed: {decided.failure}"
        fail(settings, "SNAPSHOT_FAILED", text, step, exit_code=EXIT_REFUSED)
    elif not printed(settings, row := _row(decided), [str(generation)]):
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
    here: HereOption = False,
) -> None:
    """List snapshots, newest first: those of the cluster, or those with files in a directory."""
    settings = settings_of(context)
    _check_alone(data, directory or copies, here)
    if data is not None:
        from viewstamp.cli import snapshot_view

        view = snapshot_view.read_view(settings, data)
        snapshot_view.tell_age(settings, view)
        _print_list(settings, view.snapshots)
        return
    if here:
        _print_list(settings, _listed_here(context))
        return
    with telling(settings):
        there = offline_copies(directory, copies)
        if there is not None:
            from viewstamp.cli import snapshot_files

            snapshot_files.list_directory(settings, there)
            return
    _print_list(settings, collected(context, lambda client: client.snapshots.list()))


def _request_for(generation: int) -> Message:
    if generation:
        return snapshots_pb2.GetSnapshotRequest(generation=generation)
    return snapshots_pb2.GetLatestSnapshotRequest()


def _listed_here(context: typer.Context) -> list[snapshots_pb2.Snapshot]:
    found, token = list[snapshots_pb2.Snapshot](), ""
    while True:
        page = ask_here(context, snapshots_pb2.ListSnapshotsRequest(page_token=token))
        found += page.snapshots
        token = page.next_page_token
        if not token:
            return found


def _check_alone(*places: object) -> None:
    if sum(map(bool, places)) > 1:
        raise typer.BadParameter("give --data, --directory, --copies or --here, only one of them")


def _print_list(settings: Settings, snapshots: Sequence[snapshots_pb2.Snapshot]) -> None:
    rows = [_row(snapshot) for snapshot in snapshots]
    if printed(settings, rows, (str(snapshot.generation) for snapshot in snapshots)):
        return
    if rows:
        print_table(COLUMNS, map(_short, rows))
    else:
        typer.echo("no snapshots yet: create one with `viewstamp snapshot create`")


@app.command("show")
def show_(
    context: typer.Context,
    generation: GenerationArgument = NEWEST,
    directory: DirectoryOption = None,
    copies: CopiesOption = None,
    data: DataOption = None,
    here: HereOption = False,
) -> None:
    """Show one snapshot: its sections with digests and sizes; from a directory also its layers."""
    settings = settings_of(context)
    _check_alone(data, directory or copies, here)
    if data is not None:
        from viewstamp.cli import snapshot_view

        view = snapshot_view.read_view(settings, data)
        with telling(settings):
            stored = view.snapshot(generation)
        snapshot_view.tell_age(settings, view)
        _print_one(settings, stored, view.copies.get(stored.generation, ()))
        return
    if here:
        _print_one(settings, ask_here(context, _request_for(generation)).snapshot)
        return
    with telling(settings):
        there = offline_copies(directory, copies)
        if there is not None:
            from viewstamp.cli import snapshot_files

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
    values = {**_row(found), **({"copies": list(copies)} if copies else {})}
    if printed(settings, values, [str(found.generation)]):
        return
    show_values(plain(found), f"snapshot {found.generation}", without=("tasks", "decided_at"))
    tasks = [plain(task) for task in found.tasks]
    print_table(TASK_COLUMNS, tasks, "sections")
    for task in tasks:
        typer.echo(f"digest of {task['stage']}: {task['state_digest']}")
    for copy in copies:
        typer.echo(f"verified copy in {copy}")


@app.command()
def delete(
    context: typer.Context,
    generation: OneGeneration,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a snapshot; not the last completed one, and not one that is being written."""
    settings = settings_of(context)
    confirm(settings, f"Delete snapshot {generation}?", yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(context, lambda client: client.snapshots.delete(generation, **bound))
    done(settings, response, f"deleted snapshot {generation}", dry_run=dry_run)


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

    Pinned snapshots, the last completed one and one that is being written always stay.
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
def pin(
    context: typer.Context,
    generation: OneGeneration,
    keep_for: KeepFor = "never",
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Keep a snapshot until it is deleted, or only for a time with --keep-for."""
    bound = guards(expected_revision, dry_run=dry_run)
    _set_retention(context, generation, RetentionOption.pinned, bound, duration_us(keep_for))


@app.command()
def unpin(
    context: typer.Context,
    generation: OneGeneration,
    retention: Annotated[
        Unpinned, typer.Option(help="Keep it among the last ones, or as the one of its day.")
    ] = Unpinned.last,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Allow a snapshot to be deleted when it is old."""
    _set_retention(context, generation, retention, guards(expected_revision, dry_run=dry_run))


def _set_retention(
    context: typer.Context,
    generation: int,
    retention: RetentionOption | Unpinned,
    bound: Guards,
    keep_for_us: int = 0,
) -> None:
    response = run(
        context,
        lambda client: client.snapshots.set_retention(
            generation, _retention(retention), keep_for_ms=keep_for_us // _US_PER_MS, **bound
        ),
    )
    sentence = f"set the retention of snapshot {generation} to {retention.value}"
    done(settings_of(context), response, sentence, dry_run=bound.get("validate_only", False))


def _row(snapshot: snapshots_pb2.Snapshot) -> dict[str, Any]:
    """Return a snapshot's fields, and the totals of its sections."""
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
