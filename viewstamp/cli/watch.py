"""`viewstamp watch`: every committed change, as a line."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from viewstamp.cli.completing import complete_group, complete_stream, complete_topic
from viewstamp.cli.following import FULL_NAMES, ChangePrinter, WatchedName, run_followed
from viewstamp.cli.grammar import entity
from viewstamp.cli.options import REVISION_MAX
from viewstamp.cli.settings import settings_of

if TYPE_CHECKING:
    from viewstamp.api.routing.v1 import routing_pb2
    from viewstamp.client import Client


class WatchedDomain(Enum):
    """The domains that can be watched."""

    users = "users"
    streams = "streams"
    groups = "groups"


def watch(
    context: typer.Context,
    stream: Annotated[
        str | None,
        typer.Option(
            help="Only this stream, its topics and their groups (id or name).",
            autocompletion=complete_stream,
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            help="Only this topic of --stream, and its groups (id or name).",
            autocompletion=complete_topic,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Only this group of --topic, and its members (id or name).",
            autocompletion=complete_group,
        ),
    ] = None,
    domain: Annotated[
        list[WatchedDomain] | None, typer.Option(help="Only this domain; may be repeated.")
    ] = None,
    type_: Annotated[
        list[WatchedName] | None,
        typer.Option("--type", help="Only entities of this type; may be repeated."),
    ] = None,
    from_revision: Annotated[
        int,
        typer.Option(
            min=0,
            max=REVISION_MAX,
            metavar="REVISION",
            help="Begin at this revision; without it, at the next one.",
        ),
    ] = 0,
    count: Annotated[
        int | None, typer.Option(min=1, help="End after so many changes; without it, never.")
    ] = None,
) -> None:
    """Show changes as they are committed, until Ctrl-C.

    One line for each change: its revision, what happened (created, updated, deleted), the type of
    the entity, its name and ids. With --json a line is a JSON object with the entity after the
    change, or before it if it was deleted. No change is left out and none comes twice, also when
    replicas fail or restart: the command goes on at another one.

    A watch of one stream or topic needs permission to read it; any other one needs permission to
    list what it shows. A login ends after an hour: for longer, set VIEWSTAMP_PERSONAL_ACCESS_TOKEN.
    """
    followed = ChangePrinter(settings_of(context), count)

    async def follow(client: Client) -> None:
        watched = client.watch(
            from_revision=from_revision,
            stream=None if stream is None else entity(stream),
            topic=None if topic is None else entity(topic),
            group=None if group is None else entity(group),
            domains=[_stage(each) for each in domain or ()],
            entity_types=[FULL_NAMES[each] for each in type_ or ()],
        )
        async with watched as opened:
            await followed.show(opened)

    _check_places(stream, topic, group)
    run_followed(context, followed, follow)


def _check_places(stream: str | None, topic: str | None, group: str | None) -> None:
    if topic is not None and stream is None:
        raise typer.BadParameter("--topic needs its --stream: give both")
    if group is not None and topic is None:
        raise typer.BadParameter("--group needs its --stream and --topic: give all three")


def _stage(domain: WatchedDomain) -> routing_pb2.Stage.ValueType:
    from viewstamp.api.routing.v1 import routing_pb2

    return {
        WatchedDomain.users: routing_pb2.STAGE_USERS,
        WatchedDomain.streams: routing_pb2.STAGE_STREAMS,
        WatchedDomain.groups: routing_pb2.STAGE_CONSUMER_GROUPS,
    }[domain]
