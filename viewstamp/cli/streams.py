"""`viewstamp stream ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from viewstamp.cli.calls import collected, run
from viewstamp.cli.canonical import part
from viewstamp.cli.describing import LINES, Limit
from viewstamp.cli.describing import describe as show_description
from viewstamp.cli.following import WatchedName, follow_list
from viewstamp.cli.grammar import entity
from viewstamp.cli.options import (
    AtRevision,
    DryRun,
    ExpectedRevision,
    Following,
    StreamArgument,
    Yes,
    confirm,
    guards,
)
from viewstamp.cli.output import done, show, show_list
from viewstamp.cli.settings import settings_of

app = typer.Typer(
    help="Manage streams, which hold topics.", no_args_is_help=True, rich_markup_mode="markdown"
)

COLUMNS = ("id", "name", "topics_count", "created_at", "modified_revision")


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="1 to 255 bytes, unique.")],
    dry_run: DryRun = False,
) -> None:
    """Create a stream."""
    response = run(context, lambda client: client.streams.create(name, validate_only=dry_run))
    sentence = f"created stream {name!r} with id {response.stream_id}"
    created = part(name, response.stream_id)
    done(settings_of(context), response, sentence, dry_run=dry_run, name=created)


@app.command()
def rename(
    context: typer.Context,
    stream: StreamArgument,
    name: Annotated[str, typer.Argument(help="The new name.")],
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Give a stream another name."""
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context, lambda client: client.streams.update(entity(stream), name=name, **bound)
    )
    done(settings_of(context), response, f"renamed stream {stream} to {name!r}", dry_run=dry_run)


@app.command()
def delete(
    context: typer.Context,
    stream: StreamArgument,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a stream with its topics, their groups, and every grant on them."""
    settings = settings_of(context)
    question = f"Delete stream {stream} with its topics, groups and grants?"
    confirm(settings, question, yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(context, lambda client: client.streams.delete(entity(stream), **bound))
    done(settings, response, f"deleted stream {stream}", dry_run=dry_run)


@app.command()
def purge(
    context: typer.Context,
    stream: StreamArgument,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Tell the data plane to drop every message of a stream."""
    settings = settings_of(context)
    confirm(settings, f"Drop every message of stream {stream}?", yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(context, lambda client: client.streams.purge(entity(stream), **bound))
    done(settings, response, f"purged stream {stream}", dry_run=dry_run)


@app.command("list")
def list_(context: typer.Context, watch: Following = False, revision: AtRevision = None) -> None:
    """List all streams by id."""
    if watch:
        listed = WatchedName.stream
        follow_list(context, lambda client: client.streams.list(), COLUMNS, listed, revision)
        return
    streams = collected(context, lambda client: client.streams.list(), revision)
    empty = "no streams yet: create one with `viewstamp stream create NAME`"
    show_list(
        settings_of(context), streams, COLUMNS, empty, lambda stream: part(stream.name, stream.id)
    )


@app.command()
def get(context: typer.Context, stream: StreamArgument, revision: AtRevision = None) -> None:
    """Show one stream."""
    found = run(context, lambda client: client.streams.get(entity(stream)), revision)
    name = part(found.name, found.id)
    show(settings_of(context), found, f"stream {found.name}", name=name)


@app.command()
def describe(
    context: typer.Context,
    stream: StreamArgument,
    limit: Limit = LINES,
    revision: AtRevision = None,
) -> None:
    """Show a stream with its topics: partitions, offsets that remain, and the size allowed."""
    from viewstamp.cli.descriptions import stream_description

    show_description(
        context, lambda reads: stream_description(reads, entity(stream), limit), revision
    )
