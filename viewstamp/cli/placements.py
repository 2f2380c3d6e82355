"""`viewstamp topic placements` and `viewstamp topic place`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from viewstamp import limits
from viewstamp.cli.calls import collected, run
from viewstamp.cli.grammar import entity
from viewstamp.cli.options import (
    AtRevision,
    DryRun,
    StreamArgument,
    TopicArgument,
    Yes,
    confirm,
    guards,
)
from viewstamp.cli.output import done, show_list
from viewstamp.cli.settings import settings_of

if TYPE_CHECKING:
    from viewstamp.client import Client

COLUMNS = ("partition", "leader", "leader_epoch", "replicas", "in_sync", "revision")
PlacementsRevision = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="REVISION",
        help="Refuse unless this is the highest revision of these placements, which"
        " `topic placements` shows; 0: unless none of them is placed.",
    ),
]


def placements(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    revision: AtRevision = None,
) -> None:
    """Show which brokers have the partitions of a topic, who is in sync, and who leads.

    A leader of 0 means that no broker can lead the partition at the moment.
    """
    found = collected(
        context, lambda client: client.brokers.placements(entity(stream), entity(topic)), revision
    )
    empty = f"no partition is placed: `viewstamp topic place {stream} {topic} --all` does it"
    show_list(settings_of(context), found, COLUMNS, empty)


def place(
    context: typer.Context,
    stream: StreamArgument,
    topic: TopicArgument,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            min=0,
            max=limits.PARTITIONS_PER_TOPIC_MAX - 1,
            metavar="PARTITION",
            help="This partition; may be repeated.",
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All partitions of the topic.")] = False,
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="BROKER,BROKER",
            help="Brokers (ids or names), the preferred leader first; without it the cluster"
            " chooses, for partitions that are not placed.",
        ),
    ] = None,
    allow_data_loss: Annotated[
        bool,
        typer.Option(
            "--allow-data-loss",
            help="Also if none of the brokers is in sync: they begin with what they have.",
        ),
    ] = False,
    expected_revision: PlacementsRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Give partitions of a topic to brokers.

    Of the brokers that had a partition before, at least one that is in sync has to stay. A leader
    tells when the new ones are in sync; then the old ones can be taken away by another call.
    """
    _check(partition, replicas, is_all=all_, allow_data_loss=allow_data_loss)
    settings = settings_of(context)
    if allow_data_loss:
        question = f"Lose what brokers {replicas} lack of {_which(partition)} of topic {topic}?"
        confirm(settings, question, yes=yes, dry_run=dry_run)

    async def placed(client: Client) -> Any:
        chosen = [await _broker_id(client, name) for name in (replicas or "").split(",") if name]
        found = await client.topics.get(entity(stream), entity(topic))
        numbers = sorted(partition) if partition else range(found.partitions_count)
        if expected_revision is not None:
            _check_together(len(numbers))
        for some in _together(numbers):
            response = await client.brokers.place(
                found.stream_id,
                found.id,
                dict.fromkeys(some, chosen),
                allow_data_loss=allow_data_loss,
                **guards(expected_revision, dry_run=dry_run),
            )
        return response

    sentence = f"placed {_which(partition)} of topic {topic}"
    done(settings, run(context, placed), sentence, dry_run=dry_run)


def _check(
    partition: Sequence[int] | None, replicas: str | None, *, is_all: bool, allow_data_loss: bool
) -> None:
    """Raise BadParameter for options that do not go together."""
    if bool(partition) == is_all:
        raise typer.BadParameter(
            "give one of the two: some partitions, or all", param_hint="--partition and --all"
        )
    if allow_data_loss and not replicas:
        raise typer.BadParameter(
            "it goes with --replicas: the cluster itself loses no data",
            param_hint="--allow-data-loss",
        )


def _check_together(count: int) -> None:
    """Raise BadParameter for more partitions than one command may name: each has its own guard."""
    most = limits.PARTITIONS_PER_REQUEST_MAX
    if count > most:
        raise typer.BadParameter(
            f"it is about the partitions of one command, at most {most}, and these are {count}:"
            " name fewer with --partition",
            param_hint="--expected-revision",
        )


def _together(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield as many at a time as a command may name; at least once, so that there is an answer."""
    step = limits.PARTITIONS_PER_REQUEST_MAX
    for start in range(0, max(1, len(numbers)), step):
        yield numbers[start : start + step]


async def _broker_id(client: Client, text: str) -> int:
    named = entity(text.strip())
    return named if isinstance(named, int) else (await client.brokers.get(named)).id


def _which(partitions: Sequence[int] | None) -> str:
    if not partitions:
        return "all partitions"
    noun = "partition" if len(partitions) == 1 else "partitions"
    return f"{noun} {', '.join(map(str, sorted(partitions)))}"
