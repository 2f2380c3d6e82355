"""`viewstamp blame ...`: who changed an entity, when, by which command, and how."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from viewstamp.cli.calls import run
from viewstamp.cli.canonical import PlaceCommand
from viewstamp.cli.grammar import entity
from viewstamp.cli.options import (
    BrokerArgument,
    GroupArgument,
    StreamArgument,
    TopicArgument,
    UserArgument,
)
from viewstamp.cli.output import moment_text, plain, print_table, printed, timestamp
from viewstamp.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from viewstamp.api.history.v1 import history_service_pb2 as history_pb2
    from viewstamp.client import Client

app = typer.Typer(
    help="Show who changed an entity: when, by which command, and what.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

COLUMNS: Final = ("revision", "time", "who", "command", "what")
# What every change changes says nothing.
_NOT_TOLD: Final = frozenset({"modified_revision"})
CHANGES: Final = 100
# A value in a table; documents have all of it.
VALUE_CHARACTERS_MAX: Final = 60
FromRevision = Annotated[
    int,
    typer.Option(
        min=0, metavar="REVISION", help="Begin at this revision; without it, as early as is known."
    ),
]
Changes = Annotated[int, typer.Option("--limit", min=1, help="End after so many changes.")]


@app.command()
def user(
    context: typer.Context,
    user: UserArgument,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a user."""
    _blame(context, {"user": user}, from_revision, limit)


@app.command()
def stream(
    context: typer.Context,
    stream: StreamArgument,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a stream."""
    _blame(context, {"stream": stream}, from_revision, limit)


@app.command(cls=PlaceCommand)
def topic(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a topic."""
    _blame(context, {"stream": stream, "topic": topic}, from_revision, limit)


@app.command(cls=PlaceCommand)
def group(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a consumer group: its options and epochs, not its members."""
    names = {"stream": stream, "topic": topic, "group": group}
    _blame(context, names, from_revision, limit)


@app.command()
def broker(
    context: typer.Context,
    broker: BrokerArgument,
    from_revision: FromRevision = 0,
    limit: Changes = CHANGES,
) -> None:
    """Show who changed a broker."""
    _blame(context, {"broker": broker}, from_revision, limit)


def _blame(context: typer.Context, names: dict[str, str], from_revision: int, limit: int) -> None:
    """Read the changes of an entity, and print them."""
    settings = settings_of(context)
    named = {name: entity(text) for name, text in names.items()}

    async def read(client: Client) -> dict[str, Any]:
        found = await _read(settings, client, named, from_revision, limit)
        earlier = _had_other_name(found, from_revision)
        if earlier is None:
            return found
        *_, last = named
        return await _read(settings, client, {**named, last: earlier}, from_revision, limit)

    found = run(context, read)
    if not printed(settings, found):
        _print(found)


async def _read(
    settings: Settings,
    client: Client,
    named: dict[str, int | str],
    from_revision: int,
    limit: int,
) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    async for page in client.blame(**named, from_revision=from_revision, page_size=limit):
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


def _print(found: dict[str, Any]) -> None:
    oldest, last, following = (
        found[key] for key in ("oldest_revision", "revision", "next_revision")
    )
    if found["changes"]:
        print_table(COLUMNS, map(_row, found["changes"]))
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


def _row(change: dict[str, Any]) -> dict[str, Any]:
    method = change["method"].rpartition("/")[2]
    return {
        "revision": change["revision"],
        "time": "-" if change["time"] is None else moment_text(change["time"]),
        "who": _who(change),
        "command": method,
        "what": "; ".join(_what(change)) or change["kind"],
    }


def _who(change: dict[str, Any]) -> str:
    if change["is_internal"]:
        return "the cluster"
    name = change["username"] or "(gone)"
    session = f", session {change['session_id']}" if change["session_id"] else ""
    return f"{name} (id {change['user_id']}{session})"


def _what(change: dict[str, Any]) -> Iterable[str]:
    """Yield what changed, in words."""
    for name, each in change["changed"].items():
        yield from _field(name, each["before"], each["after"])


def _field(name: str, old: Any, new: Any) -> Iterable[str]:
    """Yield a changed field; of a nested one only what changed in it."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in new:
            if old.get(key) != new[key]:
                yield from _field(f"{name}.{key}", old.get(key), new[key])
    else:
        yield f"{name}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = "-" if value in (None, "", []) else str(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."
