"""`viewstamp topic ...`."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from viewstamp import limits
from viewstamp.cli.calls import collected, run
from viewstamp.cli.canonical import PlaceCommand, joined, part, typed_part
from viewstamp.cli.describing import LINES, Limit
from viewstamp.cli.describing import describe as show_description
from viewstamp.cli.following import WatchedName, follow_list
from viewstamp.cli.grammar import ago, duration_us, entity, moment, size_bytes
from viewstamp.cli.options import (
    AtRevision,
    DryRun,
    ExpectedRevision,
    Following,
    StreamArgument,
    TopicArgument,
    Yes,
    confirm,
    guards,
)
from viewstamp.cli.output import done, plain, print_table, printed, show, show_list
from viewstamp.cli.placements import place, placements
from viewstamp.cli.settings import settings_of

if TYPE_CHECKING:
    from viewstamp.api.streams.v1 import streams_pb2

app = typer.Typer(
    help="Manage topics of streams.", no_args_is_help=True, rich_markup_mode="markdown"
)
partitions_app = typer.Typer(
    help="Manage partitions of a topic.", no_args_is_help=True, rich_markup_mode="markdown"
)
app.add_typer(partitions_app, name="partitions")

COLUMNS = ("id", "name", "partitions_count", "created_at", "modified_revision")
PARTITION_COLUMNS = ("first", "count", "created_revision")
WATERMARK_COLUMNS = ("partition", "start_offset", "end_offset")
FOUND_COLUMNS = ("partition", "offset", "written_by", "start_offset", "end_offset")


class Compression(Enum):
    """How the data plane compresses messages."""

    none = "none"
    gzip = "gzip"
    lz4 = "lz4"
    zstd = "zstd"


Expiry = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long messages are kept: 90s, 12h, 7d, never."),
]
MaxSize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Maximum size of the topic: 10GiB, unlimited.")
]
SegmentSize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Segment size, 1MiB to 1GiB; fixed at creation.")
]
CompressionOption = Annotated[Compression | None, typer.Option(help="Compression of messages.")]
Replication = Annotated[
    int | None,
    typer.Option(
        min=1, max=limits.REPLICATION_FACTOR_MAX, help="Number of copies of each message."
    ),
]
Count = Annotated[
    int, typer.Argument(min=1, max=limits.PARTITIONS_PER_REQUEST_MAX, help="Number of partitions.")
]


def _options(
    expiry: str | None,
    max_size: str | None,
    compression: Compression | None,
    replication_factor: int | None,
    segment_size: str | None = None,
) -> streams_pb2.TopicOptions:
    from viewstamp.api.streams.v1 import streams_pb2

    algorithm = "UNSPECIFIED" if compression is None else compression.value.upper()
    return streams_pb2.TopicOptions(
        message_expiry_us=None if expiry is None else duration_us(expiry),
        max_topic_size_bytes=None if max_size is None else size_bytes(max_size),
        compression_algorithm=streams_pb2.CompressionAlgorithm.Value(
            f"COMPRESSION_ALGORITHM_{algorithm}"
        ),
        replication_factor=replication_factor,
        segment_size_bytes=None if segment_size is None else size_bytes(segment_size),
    )


@app.command(cls=PlaceCommand)
def create(
    context: typer.Context,
    stream: StreamArgument,
    name: Annotated[str, typer.Argument(help="1 to 255 bytes, unique in the stream.")],
    partitions: Annotated[
        int,
        typer.Option(min=0, max=limits.PARTITIONS_PER_REQUEST_MAX, help="Number of partitions."),
    ] = 1,
    message_expiry: Expiry = None,
    max_size: MaxSize = None,
    compression: CompressionOption = None,
    replication_factor: Replication = None,
    segment_size: SegmentSize = None,
    dry_run: DryRun = False,
) -> None:
    """Create a topic with its partitions."""
    options = _options(message_expiry, max_size, compression, replication_factor, segment_size)
    response = run(
        context,
        lambda client: client.topics.create(
            entity(stream),
            name,
            partitions_count=partitions,
            options=options,
            validate_only=dry_run,
        ),
    )
    sentence = f"created topic {name!r} with id {response.topic_id} and {partitions} partitions"
    created = joined(typed_part(stream), part(name, response.topic_id))
    done(settings_of(context), response, sentence, dry_run=dry_run, name=created)


@app.command(cls=PlaceCommand)
def update(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    name: Annotated[str | None, typer.Option(help="The new name.")] = None,
    message_expiry: Expiry = None,
    max_size: MaxSize = None,
    compression: CompressionOption = None,
    replication_factor: Replication = None,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Rename a topic or change its options; absent options change nothing."""
    options = _options(message_expiry, max_size, compression, replication_factor)
    response = run(
        context,
        lambda client: client.topics.update(
            entity(stream),
            entity(topic),
            name=name,
            options=options,
            **guards(expected_revision, dry_run=dry_run),
        ),
    )
    done(settings_of(context), response, f"updated topic {topic}", dry_run=dry_run)


@app.command(cls=PlaceCommand)
def delete(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a topic with its groups and every grant on it."""
    settings = settings_of(context)
    question = f"Delete topic {topic} of stream {stream} with its groups and grants?"
    confirm(settings, question, yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context, lambda client: client.topics.delete(entity(stream), entity(topic), **bound)
    )
    done(settings, response, f"deleted topic {topic}", dry_run=dry_run)


@app.command(cls=PlaceCommand)
def purge(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Tell the data plane to drop every message of a topic."""
    settings = settings_of(context)
    question = f"Drop every message of topic {topic} of stream {stream}?"
    confirm(settings, question, yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context, lambda client: client.topics.purge(entity(stream), entity(topic), **bound)
    )
    done(settings, response, f"purged topic {topic}", dry_run=dry_run)


@app.command("list", cls=PlaceCommand)
def list_(
    context: typer.Context,
    stream: StreamArgument,
    watch: Following = False,
    revision: AtRevision = None,
) -> None:
    """List the topics of a stream by id."""
    if watch:
        follow_list(
            context,
            lambda client: client.topics.list(entity(stream)),
            COLUMNS,
            WatchedName.topic,
            revision,
            stream=entity(stream),
        )
        return
    topics = collected(context, lambda client: client.topics.list(entity(stream)), revision)
    empty = f"no topics yet: create one with `viewstamp topic create {stream} NAME`"
    show_list(settings_of(context), topics, COLUMNS, empty, lambda topic: _name(stream, topic))


@app.command(cls=PlaceCommand)
def get(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    revision: AtRevision = None,
) -> None:
    """Show one topic with its options."""
    found = run(context, lambda client: client.topics.get(entity(stream), entity(topic)), revision)
    show(settings_of(context), found, f"topic {found.name}", name=_name(stream, found))


@app.command(cls=PlaceCommand)
def describe(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    limit: Limit = LINES,
    revision: AtRevision = None,
) -> None:
    """Show a topic with its partitions, watermarks, and groups with their state and lag."""
    from viewstamp.cli.descriptions import topic_description

    place = (entity(stream), entity(topic))
    show_description(context, lambda reads: topic_description(reads, *place, limit), revision)


@app.command(cls=PlaceCommand)
def watermarks(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    revision: AtRevision = None,
) -> None:
    """Show where the data of partitions begins and ends, as far as it was reported."""
    found = collected(
        context, lambda client: client.topics.watermarks(entity(stream), entity(topic)), revision
    )
    empty = "nothing was reported yet: brokers do it with ReportPartitionEnds"
    show_list(settings_of(context), found, WATERMARK_COLUMNS, empty)


@app.command("find-offsets", cls=PlaceCommand)
def find_offsets(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    time: Annotated[
        datetime | None,
        typer.Option(
            parser=moment, metavar="TIME", help="From this time on: 2026-11-28T10:00:00Z."
        ),
    ] = None,
    duration: Annotated[
        datetime | None,
        typer.Option(parser=ago, metavar="DURATION", help="From so long ago on: 90s, 2h, 7d."),
    ] = None,
) -> None:
    """Show where to read what was written from a time on; `group reset-offsets` sets it.

    All before an offset was written by the time in `written_by`, the last one before the time asked
    for that is remembered; what was written between the two is read, too. Without it the offset is
    the first that remains.
    """
    given = [each for each in (time, duration) if each is not None]
    if len(given) != 1:
        raise typer.BadParameter(
            "give one of the two: a time, or how long ago", param_hint="--time and --duration"
        )
    (since,) = given
    found = collected(
        context,
        lambda client: client.groups.find_offsets(entity(stream), entity(topic), since),
    )
    empty = "nothing was reported yet: brokers do it with ReportPartitionEnds"
    show_list(settings_of(context), found, FOUND_COLUMNS, empty)


app.command(cls=PlaceCommand)(placements)
app.command(cls=PlaceCommand)(place)


@partitions_app.command("add", cls=PlaceCommand)
def add_partitions(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    count: Count,
    expected_revision: ExpectedRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Add partitions at the end; groups of the topic are rebalanced."""
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context,
        lambda client: client.topics.add_partitions(entity(stream), entity(topic), count, **bound),
    )
    sentence = f"added {count} partitions to topic {topic}, now {response.partitions_count}"
    done(settings_of(context), response, sentence, dry_run=dry_run)


@partitions_app.command("remove", cls=PlaceCommand)
def remove_partitions(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    count: Count,
    expected_revision: ExpectedRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove partitions from the end, with the messages in them."""
    settings = settings_of(context)
    question = f"Remove the last {count} partitions of topic {topic} with their messages?"
    confirm(settings, question, yes=yes, dry_run=dry_run)
    bound = guards(expected_revision, dry_run=dry_run)
    response = run(
        context,
        lambda client: client.topics.remove_partitions(
            entity(stream), entity(topic), count, **bound
        ),
    )
    sentence = f"removed {count} partitions of topic {topic}, now {response.partitions_count}"
    done(settings, response, sentence, dry_run=dry_run)


@partitions_app.command("list", cls=PlaceCommand)
def list_partitions(context: typer.Context, stream: StreamArgument, topic: TopicArgument) -> None:
    """Show the partitions as runs that were created together."""
    ranges = run(context, lambda client: client.topics.partitions(entity(stream), entity(topic)))
    rows = [plain(one) for one in ranges]
    if not printed(settings_of(context), rows):
        print_table(PARTITION_COLUMNS, rows)


def _name(stream: str, topic: streams_pb2.Topic) -> str:
    """Return the canonical name of a topic of the stream that the user has named."""
    return joined(typed_part(stream, topic.stream_id), part(topic.name, topic.id))
