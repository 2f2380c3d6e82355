"""Changes as lines: one for each change, as text for people or as a document for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from viewstamp.cli import EXIT_INTERRUPTED
from viewstamp.cli.calls import run
from viewstamp.cli.documents import document_line
from viewstamp.cli.output import plain, print_table
from viewstamp.cli.settings import Settings, fail, settings_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
    from viewstamp.client import Client
    from viewstamp.client.watching import Watch


class WatchedName(Enum):
    """The types of entities that can be watched, by their short names."""

    user = "user"
    token = "token"
    stream = "stream"
    topic = "topic"
    group = "group"
    member = "member"
    broker = "broker"
    placements = "placements"


# By short name: the full name of the message, and the field that people know the entity by.
FULL_NAMES: Final = {
    WatchedName.user: "viewstamp.api.users.v1.User",
    WatchedName.token: "viewstamp.api.users.v1.PersonalAccessToken",
    WatchedName.stream: "viewstamp.api.streams.v1.Stream",
    WatchedName.topic: "viewstamp.api.streams.v1.Topic",
    WatchedName.group: "viewstamp.api.consumer_groups.v1.ConsumerGroup",
    WatchedName.member: "viewstamp.api.consumer_groups.v1.Member",
    WatchedName.broker: "viewstamp.api.brokers.v1.Broker",
    WatchedName.placements: "viewstamp.api.brokers.v1.Placements",
}
_SHORT_NAMES: Final = {full: short.value for short, full in FULL_NAMES.items()}
_NAME_FIELDS: Final = ("name", "username", "session_id")
_ID_FIELDS: Final = ("stream_id", "topic_id", "group_id", "user_id")
# The kind of a line about an entity that was there when the watch began.
LISTED: Final = "listed"
# The widths of the columns before the name, in characters: a revision, a kind, a type.
_WIDTHS: Final = (8, 7, 6)


class ChangePrinter:
    """Prints changes until somebody interrupts it, or `count` of them were printed."""

    def __init__(self, settings: Settings, count: int | None = None) -> None:
        self._settings = settings
        self._left = count
        self._watch: Watch | None = None

    async def show(self, watch: Watch) -> None:
        """Print what an open watch brings. Raises its errors."""
        self._watch = watch
        async for revision in watch:
            for change in revision.changes:
                self.print(change_line(self._settings, change))
                if self._is_last():
                    return

    def print(self, line: str) -> None:
        """Print a line; exit in silence if nobody reads any more."""
        try:
            typer.echo(line)
        except BrokenPipeError:
            # What the interpreter flushes at its end goes nowhere, too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None

    def end(self) -> NoReturn:
        """Say where to go on after Ctrl-C, and exit."""
        if self._watch is not None and not self._settings.for_programs:
            revision = self._watch.revision
            step = f"go on with --from-revision {revision + 1}"
            typer.echo(f"watched up to revision {revision}: {step}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)

    def _is_last(self) -> bool:
        if self._left is not None:
            self._left -= 1
        return self._left == 0


def run_followed(
    context: typer.Context,
    followed: ChangePrinter,
    action: Callable[[Client], Coroutine[Any, Any, None]],
) -> None:
    """Connect and run an action that prints what it follows, until it ends or is interrupted."""
    try:
        run(context, action)
    except KeyboardInterrupt:
        followed.end()


def follow_list(
    context: typer.Context,
    listed: Callable[[Client], AsyncIterator[Message]],
    columns: Sequence[str],
    name: WatchedName,
    revision: int | None = None,
    *,
    stream: int | str | None = None,
    topic: int | str | None = None,
) -> None:
    """List entities, then print what happens to them; a list of an earlier revision has an end.

    The watch begins before the list, so nothing is left out; a change in between is in both.
    """
    settings = settings_of(context)
    if revision is not None:
        step = f"leave one out, or watch from there: `viewstamp watch --from-revision {revision}`"
        fail(settings, "BAD_OPTIONS", "--watch and --revision contradict each other", step)
    followed = ChangePrinter(settings)

    async def follow(client: Client) -> None:
        types = [FULL_NAMES[name]]
        async with client.watch(stream=stream, topic=topic, entity_types=types) as watch:
            found = [item async for item in listed(client)]
            if settings.for_programs:
                for item in found:
                    listed_one = _listed(watch.revision, FULL_NAMES[name], item)
                    followed.print(document_line(settings.output, listed_one))
            elif found:
                print_table(columns, [plain(item) for item in found])
            await followed.show(watch)

    run_followed(context, followed, follow)


def change_line(settings: Settings, change: watch_pb2.Change) -> str:
    """Return a change: a document, or one line of revision, kind, type, name and ids."""
    entity = _entity(change)
    kind = _kind(change)
    if settings.for_programs:
        return document_line(settings.output, _values(change, kind, entity))
    ids = [
        f"{field.removesuffix('_id')} {getattr(change, field)}"
        for field in _ID_FIELDS
        if getattr(change, field)
    ]
    names = [str(entity[field]) for field in _NAME_FIELDS if field in entity]
    name = " ".join((names or ["-"])[0].splitlines())
    short = _SHORT_NAMES.get(change.entity_type, change.entity_type)
    told = (str(change.revision).rjust(_WIDTHS[0]), kind.ljust(_WIDTHS[1]), short.ljust(_WIDTHS[2]))
    return "  ".join((*told, f"{name} ({', '.join(ids)})" if ids else name))


def _values(change: watch_pb2.Change, kind: str, entity: dict[str, Any]) -> dict[str, Any]:
    return {
        "revision": change.revision,
        "kind": kind,
        "type": change.entity_type,
        **{field: getattr(change, field) for field in _ID_FIELDS},
        "entity": entity or None,
    }


def _listed(revision: int, full_name: str, entity: Message) -> dict[str, Any]:
    """Return the values of an entity of a list, which was listed at `revision` or later."""
    return {"revision": revision, "kind": LISTED, "type": full_name, "entity": plain(entity)}


def _kind(change: watch_pb2.Change) -> str:
    from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2

    return watch_pb2.ChangeKind.Name(change.kind).removeprefix("CHANGE_KIND_").lower()


def _entity(change: watch_pb2.Change) -> dict[str, Any]:
    """Return an entity as JSON values without the fields that a change does not have.

    An entity of a newer build is empty.
    """
    from viewstamp.client import ProtocolError
    from viewstamp.client.watching import DERIVED_FIELDS, decoded

    try:
        values = plain(decoded(change))
    except ProtocolError:
        return {}
    derived = DERIVED_FIELDS.get(change.entity_type, ())
    return {field: value for field, value in values.items() if field not in derived}
