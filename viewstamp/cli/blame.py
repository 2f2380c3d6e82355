"""`viewstamp blame ...`: who changed an entity, when, by which command, and how."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from viewstamp import limits, past_limits
from viewstamp.cli.blame_words import COLUMNS, row_of
from viewstamp.cli.calls import run
from viewstamp.cli.canonical import PlaceCommand
from viewstamp.cli.grammar import entity
from viewstamp.cli.options import (
    REVISION_MAX,
    BrokerArgument,
    GroupArgument,
    StreamArgument,
    TopicArgument,
    UserArgument,
)
from viewstamp.cli.output import plain, print_table, printed, timestamp
from viewstamp.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from viewstamp.api.history.v1 import history_service_pb2 as history_pb2
    from viewstamp.client import Client
    from viewstamp.client.history import BlamedPartName

app = typer.Typer(
    help="Show who changed an entity: when, by which command, and what.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

# What every change changes says nothing.
_NOT_TOLD: Final = frozenset({"modified_revision"})
CHANGES: Final = 100
FromRevision = Annotated[
    int,
    typer.Option(
        min=0,
        max=REVISION_MAX,
        metavar="REVISION",
        help="Begin at this revision; without it, as early as is known.",
    ),
]
Changes = Annotated[int, typer.Option("--limit", min=1, help="End after so many changes.")]


@dataclass(frozen=True, slots=True)
class _Blamed:
    """What is asked about: an entity by its names, or what belongs to it."""

    names: dict[str, int | str]
    part: BlamedPartName | None = None
    partition: int | None = None


@app.command()
def user(
    context: typer.Context,
    user: UserArgument,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Who changed its personal access tokens instead.")
    ] = False,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a user, or its tokens."""
    blamed = _Blamed({"user": entity(user)}, "tokens" if tokens else None)
    _blame(context, blamed, from_revision, limit)


@app.command()
def stream(
    context: typer.Context,
    stream: StreamArgument,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a stream."""
    _blame(context, _Blamed({"stream": entity(stream)}), from_revision, limit)


@app.command(cls=PlaceCommand)
def topic(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    placements: Annotated[
        bool,
        typer.Option(
            "--placements", help="Who changed which brokers have its partitions, and are in sync."
        ),
    ] = False,
    partition: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=limits.PARTITIONS_PER_TOPIC_MAX - 1,
            metavar="PARTITION",
            help="With --placements: only of this partition.",
        ),
    ] = None,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a topic, or who has its partitions."""
    if partition is not None and not placements:
        raise typer.BadParameter("it goes with --placements", param_hint="--partition")
    names = {"stream": entity(stream), "topic": entity(topic)}
    blamed = _Blamed(names, "placements" if placements else None, partition)
    _blame(context, blamed, from_revision, limit)


@app.command(cls=PlaceCommand)
def group(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    members: Annotated[
        bool, typer.Option("--members", help="Who joined, left or was moved instead.")
    ] = False,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a consumer group, its options and epochs; or its members."""
    names = {"stream": entity(stream), "topic": entity(topic), "group": entity(group)}
    _blame(context, _Blamed(names, "members" if members else None), from_revision, limit)


@app.command()
def broker(
    context: typer.Context,
    broker: BrokerArgument,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a broker."""
    _blame(context, _Blamed({"broker": entity(broker)}), from_revision, limit)


def _blame(context: typer.Context, blamed: _Blamed, from_revision: int, limit: int) -> None:
    """Read the changes of an entity, and print them."""
    settings = settings_of(context)

    async def read(client: Client) -> dict[str, Any]:
        found = await _read(settings, client, blamed, from_revision, limit)
        earlier = None if blamed.part else _had_other_name(found, from_revision)
        if earlier is None:
            return found
        *_, last = blamed.names
        by_id = replace(blamed, names={**blamed.names, last: earlier})
        return await _read(settings, client, by_id, from_revision, limit)

    found = run(context, read)
    if not printed(settings, found):
        _print(found, blamed.partition)


async def _read(
    settings: Settings,
    client: Client,
    blamed: _Blamed,
    from_revision: int,
    limit: int,
) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    names: dict[str, Any] = blamed.names
    async for page in client.blame(
        **names,
        part=blamed.part,
        partition=blamed.partition,
        from_revision=from_revision,
        page_size=min(limit, past_limits.BLAME_PAGE_MAX),
    ):
        found += map(_values, page.changes)
        if len(found) >= limit:
            break
        _tell_progress(settings, page)
    return {
        "oldest_revision": page.oldest_revision,
        "revision": page.header.revision,
        "next_revision": page.next_revision,
        "changes": found,
    }


def _had_other_name(found: dict[str, Any], from_revision: int) -> int | None:
    """Return the id of an entity that got the name later than it was created, if it is the only
    one that was found by it.

    One that is gone is known by its names alone, so what it was before it had one is asked for by
    its id.
    """
    entities = [change["after"] or change["before"] or {} for change in found["changes"]]
    ids = {entity.get("id") for entity in entities}
    if len(ids) != 1 or None in ids:
        return None
    created = entities[0]["created_revision"]
    oldest = max(found["oldest_revision"], from_revision)
    is_missing = oldest <= created < found["changes"][0]["revision"]
    return int(entities[0]["id"]) if is_missing else None


def _tell_progress(settings: Settings, page: history_pb2.BlameEntityResponse) -> None:
    if page.next_revision and not settings.for_programs and sys.stderr.isatty():
        far = f"{page.next_revision - 1} of {page.header.revision}"
        typer.echo(f"went through the log up to revision {far}", err=True)


def _print(found: dict[str, Any], partition: int | None) -> None:
    oldest, last, following = (
        found[key] for key in ("oldest_revision", "revision", "next_revision")
    )
    if found["changes"]:
        print_table(COLUMNS, (row_of(change, partition) for change in found["changes"]))
    else:
        typer.echo("nothing has changed it in this time")
    if following:
        typer.echo(f"up to revision {following - 1}; go on with --from-revision {following}")
    if oldest > 1:
        typer.echo(
            f"from revision {oldest} to {last}: what was before is not kept, or not shown to you"
        )
    else:
        typer.echo(f"up to revision {last}, since the cluster began")


def _values(change: history_pb2.EntityChange) -> dict[str, Any]:
    from viewstamp.client.history import entities_of

    before, after = (None if one is None else plain(one) for one in entities_of(change))
    values = plain(change)
    for name in ("before", "after", "timestamp", "kind"):
        del values[name]
    return {
        **values,
        "time": timestamp(change.timestamp),
        "kind": plain(change)["kind"],
        "before": before,
        "after": after,
        "changed": {
            name: {"before": old, "after": new} for name, old, new in _differences(before, after)
        },
    }


def _differences(
    before: dict[str, Any] | None, after: dict[str, Any] | None
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields of an entity that changed; none if it is new or gone."""
    if before is None or after is None:
        return
    for name, new in after.items():
        if name not in _NOT_TOLD and before[name] != new:
            yield name, before[name], new
