"""`viewstamp group ...`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from viewstamp import limits
from viewstamp.cli.calls import collected, run
from viewstamp.cli.canonical import PlaceCommand, joined, part, typed_part
from viewstamp.cli.completing import complete_stream
from viewstamp.cli.describing import LINES, Limit
from viewstamp.cli.describing import describe as show_description
from viewstamp.cli.following import WatchedName, follow_list
from viewstamp.cli.grammar import ago, entity, moment, offsets_by_partition
from viewstamp.cli.options import (
    AtRevision,
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
from viewstamp.cli.output import done, plain, print_table, printed, show_list, show_values
from viewstamp.cli.settings import settings_of

if TYPE_CHECKING:
    from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2

app = typer.Typer(
    help="Manage consumer groups of topics.", no_args_is_help=True, rich_markup_mode="markdown"
)

COLUMNS = ("id", "name", "state", "assignor", "members_count", "partitions_count", "group_epoch")
ALL_COLUMNS = ("stream_id", "topic_id", *COLUMNS)
MEMBER_COLUMNS = (
    "session_id",
    "user_id",
    "state",
    "member_epoch",
    "owned_partitions",
    "revoking_partitions",
    "target_partitions",
)
OFFSET_COLUMNS = ("partition", "offset", "start_offset", "end_offset", "lag")


_MEMBER_TIMEOUT = typer.Option(
    min=0,
    max=limits.MEMBER_TIMEOUT_MAX_US // 1_000,
    help="A member that shows no life for this long is removed, in ms: 6,000 to 3,600,000; 0"
    " for the default of 45,000.",
)
MemberTimeout = Annotated[int, _MEMBER_TIMEOUT]
MemberTimeoutChange = Annotated[int | None, _MEMBER_TIMEOUT]
_OFFSETS_RETENTION = typer.Option(
    min=0,
    max=limits.OFFSETS_RETENTION_MAX_US // 1_000,
    help="Offsets are forgotten once the group has had neither members nor commits for this"
    " long, in ms: 60,000 to 315,360,000,000 (ten years); 0 keeps them for ever.",
)
OffsetsRetention = Annotated[int, _OFFSETS_RETENTION]
OffsetsRetentionChange = Annotated[int | None, _OFFSETS_RETENTION]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        min=0,
        max=limits.PARTITIONS_PER_TOPIC_MAX - 1,
        metavar="PARTITION",
        help="Of this partition alone; may be repeated.",
    ),
]

OffsetsRevision = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="REVISION",
        help="Refuse unless this is the group's offsets_revision, which `group get` shows.",
    ),
]


ToTime = Annotated[
    datetime | None,
    typer.Option(
        parser=moment,
        metavar="TIME",
        help="To what was written at this time and later: 2026-11-28T10:00:00Z. What was written"
        " some time before may be read, too: see `viewstamp topic find-offsets`.",
    ),
]
ByDuration = Annotated[
    datetime | None,
    typer.Option(
        parser=ago,
        metavar="DURATION",
        help="To what was written so long ago and later: 90s, 2h, 7d.",
    ),
]


class AssignorName(Enum):
    """How partitions are assigned to members."""

    uniform = "uniform"
    range = "range"


class ResetTarget(Enum):
    """Where a group is to read on."""

    earliest = "earliest"
    latest = "latest"


@app.command(cls=PlaceCommand)
def create(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    name: Annotated[str, typer.Argument(help="1 to 255 bytes, unique on the topic.")],
    assignor: Annotated[
        AssignorName, typer.Option(help="How partitions are assigned to members.")
    ] = AssignorName.uniform,
    member_timeout_ms: MemberTimeout = 0,
    offsets_retention_ms: OffsetsRetention = 0,
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
            offsets_retention_ms=offsets_retention_ms,
            validate_only=dry_run,
        ),
    )
    sentence = f"created group {name!r} with id {response.group_id}"
    created = joined(typed_part(stream), typed_part(topic), part(name, response.group_id))
    done(settings_of(context), response, sentence, dry_run=dry_run, name=created)


@app.command(cls=PlaceCommand)
def update(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    assignor: Annotated[
        AssignorName | None, typer.Option(help="How partitions are assigned from now on.")
    ] = None,
    member_timeout_ms: MemberTimeoutChange = None,
    offsets_retention_ms: OffsetsRetentionChange = None,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Change how a group assigns partitions, how long its members may be silent, and how long
    offsets are kept."""
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
            offsets_retention_ms=offsets_retention_ms,
            **bound,
        ),
    )
    done(settings_of(context), response, f"updated group {group}", dry_run=dry_run)


@app.command(cls=PlaceCommand)
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


@app.command("list", cls=PlaceCommand)
def list_(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    watch: Following = False,
    revision: AtRevision = None,
) -> None:
    """List the groups of a topic by id."""
    if watch:
        follow_list(
            context,
            lambda client: client.groups.list(entity(stream), entity(topic)),
            COLUMNS,
            WatchedName.group,
            revision,
            stream=entity(stream),
            topic=entity(topic),
        )
        return
    groups = collected(
        context, lambda client: client.groups.list(entity(stream), entity(topic)), revision
    )
    empty = f"no groups yet: create one with `viewstamp group create {stream} {topic} NAME`"
    show_list(
        settings_of(context), groups, COLUMNS, empty, lambda group: _name(stream, topic, group)
    )


@app.command("list-all")
def list_all(
    context: typer.Context,
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="STREAM",
            help="Only those of this stream (id or name).",
            autocompletion=complete_stream,
        ),
    ] = None,
) -> None:
    """List the groups of all topics, with the ids of their streams and topics."""
    whose = None if stream is None else entity(stream)
    groups = collected(context, lambda client: client.groups.list_all(whose))
    empty = "no groups yet: create one with `viewstamp group create STREAM TOPIC NAME`"
    show_list(settings_of(context), groups, ALL_COLUMNS, empty, _id_name)


@app.command(cls=PlaceCommand)
def get(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    revision: AtRevision = None,
) -> None:
    """Show one group: epochs, members, what they own and what they should own."""
    settings = settings_of(context)
    place = (entity(stream), entity(topic), entity(group))
    found = run(context, lambda client: client.groups.get(*place), revision)
    values = plain(found)
    if printed(settings, values, [_name(stream, topic, found)]):
        return
    show_values(values, f"group {found.name}", without=("members",))
    if found.members:
        members = [plain(member) for member in found.members]
        print_table(MEMBER_COLUMNS, members, "members")


@app.command(cls=PlaceCommand)
def describe(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    limit: Limit = LINES,
    revision: AtRevision = None,
) -> None:
    """Show a group with its epochs, its members and their partitions, and its lag by partition."""
    from viewstamp.cli.descriptions import group_description

    place = (entity(stream), entity(topic), entity(group))
    show_description(context, lambda reads: group_description(reads, *place, limit), revision)


@app.command(cls=PlaceCommand)
def offsets(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    revision: AtRevision = None,
) -> None:
    """Show how far a group has read, and how far it lags behind what was reported as written.

    Partitions of which the group has committed nothing are left out.
    """
    settings = settings_of(context)
    found = collected(
        context,
        lambda client: client.groups.fetch_offsets(entity(stream), entity(topic), entity(group)),
        revision,
    )
    empty = f"no offsets yet: members of group {group} commit them as they read"
    show_list(settings, found, OFFSET_COLUMNS, empty)
    if found and not settings.for_programs:
        typer.echo(_total_lag(found))


@app.command("reset-offsets", cls=PlaceCommand)
def reset_offsets(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    to: Annotated[
        ResetTarget | None, typer.Option(help="To where the data begins, or ends.")
    ] = None,
    to_time: ToTime = None,
    by_duration: ByDuration = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTITION=OFFSET",
            help="To this offset, the next one to be read; may be repeated.",
        ),
    ] = None,
    partition: Partitions = None,
    allow_out_of_range: Annotated[
        bool,
        typer.Option(
            "--allow-out-of-range",
            help="Accept an --offset outside of what was reported of its partition.",
        ),
    ] = False,
    expected_revision: OffsetsRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Set offsets of a group that has no members.

    Give --to, --to-time, --by-duration or --offset.
    """
    time = to_time or by_duration
    _check_reset((to, to_time, by_duration), offset, partition, allowed=allow_out_of_range)
    from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as service_pb2

    name = "UNSPECIFIED" if to is None else to.value.upper()
    number = service_pb2.OffsetReset.Value(f"OFFSET_RESET_{name}")
    given = offsets_by_partition(offset or ())
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context,
        lambda client: client.groups.reset_offsets(
            entity(stream),
            entity(topic),
            entity(group),
            given,
            to=number,
            time=time,
            partitions=partition or None,
            allow_out_of_range=allow_out_of_range,
            **bound,
        ),
    )
    targets = [to.value] if to else [time.isoformat()] if time else []
    where = "".join(f" to {target}" for target in targets)
    sentence = f"reset {_which(sorted(given) or partition)} of group {group}{where}"
    done(settings_of(context), response, sentence, dry_run=dry_run)


@app.command("delete-offsets", cls=PlaceCommand)
def delete_offsets(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    group: GroupArgument,
    partition: Partitions = None,
    expected_revision: OffsetsRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Forget offsets of a group that has no members, by default of all partitions."""
    settings = settings_of(context)
    which = _which(partition)
    confirm(settings, f"Forget {which} of group {group}?", yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context,
        lambda client: client.groups.delete_offsets(
            entity(stream), entity(topic), entity(group), partitions=partition or None, **bound
        ),
    )
    done(settings, response, f"deleted {which} of group {group}", dry_run=dry_run)


def _name(stream: str, topic: str, group: consumer_groups_pb2.ConsumerGroup) -> str:
    """Return the canonical name of a group of the stream and topic that the user has named."""
    return joined(
        typed_part(stream, group.stream_id),
        typed_part(topic, group.topic_id),
        part(group.name, group.id),
    )


def _id_name(group: consumer_groups_pb2.ConsumerGroup) -> str:
    """Return the canonical name of a group whose stream and topic nobody has named."""
    return joined(str(group.stream_id), str(group.topic_id), part(group.name, group.id))


def _check_reset(
    targets: Sequence[object],
    offset: Sequence[str] | None,
    partition: Sequence[int] | None,
    *,
    allowed: bool,
) -> None:
    """Raise BadParameter for options that do not go together."""
    if sum(map(bool, (*targets, offset))) != 1:
        raise typer.BadParameter(
            "give one of them: where the data begins or ends, a time, how long ago, or offsets of"
            " partitions",
            param_hint="--to, --to-time, --by-duration and --offset",
        )
    if partition and offset:
        raise typer.BadParameter(
            "it goes with the others: an --offset names its partition itself",
            param_hint="--partition",
        )
    if allowed and not offset:
        raise typer.BadParameter(
            "it goes with --offset: data never begins or ends out of range",
            param_hint="--allow-out-of-range",
        )


def _which(partitions: Sequence[int] | None) -> str:
    """Return which offsets are meant, in words."""
    if not partitions:
        return "all offsets"
    noun = "partition" if len(partitions) == 1 else "partitions"
    return f"the offsets of {noun} {', '.join(map(str, partitions))}"


def _total_lag(found: Iterable[consumer_groups_pb2.CommittedOffset]) -> str:
    """Return the sum of all lags that are known, and how many are not."""
    lags = [each.lag if each.HasField("lag") else None for each in found]
    known = [lag for lag in lags if lag is not None]
    total = f"total lag: {sum(known)}"
    if len(known) == len(lags):
        return total
    return f"{total} (of {len(known)} partitions; nothing was reported of {len(lags) - len(known)})"
