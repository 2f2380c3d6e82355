"""`viewstamp group ...`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from viewstamp.cli.calls import collected, run
from viewstamp.cli.following import WatchedName, follow_list
from viewstamp.cli.grammar import entity
from viewstamp.cli.options import (
    DryRun,
    ExpectedRevision,
    Following,
    GroupArgument,
    StreamArgument,
    TopicArgument,
    Yes,
    confirm,
    guards,
)
from viewstamp.cli.output import done, plain, print_table, show, show_list
from viewstamp.cli.settings import settings_of

app = typer.Typer(
    help="Manage consumer groups of topics.", no_args_is_help=True, rich_markup_mode="markdown"
)

COLUMNS = ("id", "name", "state", "assignor", "members_count", "partitions_count", "group_epoch")
MEMBER_COLUMNS = (
    "session_id",
    "user_id",
    "state",
    "member_epoch",
    "owned_partitions",
    "revoking_partitions",
    "target_partitions",
)


MemberTimeout = Annotated[
    int,
    typer.Option(
        help="A member that shows no life for this long is removed, in ms: 6,000 to 3,600,000; 0"
        " for the default of 45,000."
    ),
]


class AssignorName(Enum):
    """How partitions are assigned to members."""

    uniform = "uniform"
    range = "range"


@app.command()
def create(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    name: Annotated[str, typer.Argument(help="1 to 255 bytes, unique on the topic.")],
    assignor: Annotated[
        AssignorName, typer.Option(help="How partitions are assigned to members.")
    ] = AssignorName.uniform,
    member_timeout_ms: MemberTimeout = 0,
    dry_run: DryRun = False,
) -> None:
    """Create a group on a topic."""
    from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2

    number = consumer_groups_pb2.Assignor.Value(f"ASSIGNOR_{assignor.value.upper()}")
    response = run(
        context,
        lambda client: client.groups.create(
            entity(stream),
            entity(topic),
            name,
            assignor=number,
            member_timeout_ms=member_timeout_ms,
            validate_only=dry_run,
        ),
    )
    sentence = f"created group {name!r} with id {response.group_id}"
    done(settings_of(context), response, sentence, dry_run=dry_run)


@app.command()
def update(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    assignor: Annotated[
        AssignorName | None, typer.Option(help="How partitions are assigned from now on.")
    ] = None,
    member_timeout_ms: MemberTimeout | None = None,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Change how a group assigns partitions, and how long its members may be silent."""
    from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2

    name = "UNSPECIFIED" if assignor is None else assignor.value.upper()
    number = consumer_groups_pb2.Assignor.Value(f"ASSIGNOR_{name}")
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context,
        lambda client: client.groups.update(
            entity(stream),
            entity(topic),
            entity(group),
            assignor=number,
            member_timeout_ms=member_timeout_ms,
            **bound,
        ),
    )
    done(settings_of(context), response, f"updated group {group}", dry_run=dry_run)


@app.command()
def delete(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a group with its members and offsets."""
    settings = settings_of(context)
    confirm(settings, f"Delete group {group} with its members?", yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context,
        lambda client: client.groups.delete(entity(stream), entity(topic), entity(group), **bound),
    )
    done(settings, response, f"deleted group {group}", dry_run=dry_run)


@app.command("list")
def list_(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    watch: Following = False,
) -> None:
    """List the groups of a topic by id."""
    if watch:
        follow_list(
            context,
            lambda client: client.groups.list(entity(stream), entity(topic)),
            COLUMNS,
            WatchedName.group,
            stream=entity(stream),
            topic=entity(topic),
        )
        return
    groups = collected(context, lambda client: client.groups.list(entity(stream), entity(topic)))
    empty = f"no groups yet: create one with `viewstamp group create {stream} {topic} NAME`"
    show_list(settings_of(context), groups, COLUMNS, empty)


@app.command()
def get(
    context: typer.Context, stream: StreamArgument, topic: TopicArgument, group: GroupArgument
) -> None:
    """Show one group: epochs, members, what they own and what they should own."""
    settings = settings_of(context)
    found = run(
        context, lambda client: client.groups.get(entity(stream), entity(topic), entity(group))
    )
    if settings.as_json:
        show(settings, found, "")
        return
    show(settings, found, f"group {found.name}", without=("members",))
    if found.members:
        members = [plain(member) for member in found.members]
        print_table(MEMBER_COLUMNS, members, "members")
