"""`viewstamp snapshot bisect`: the first kept generation in which a condition holds."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import typer

from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.cli.output import moment, printed
from viewstamp.cli.settings import EXIT_REFUSED, Settings, settings_of
from viewstamp.cli.snapshot_options import (
    NEWEST,
    FilesOption,
    progress_bar,
    telling,
    warn_of_bad_copies,
)
from viewstamp.cli.snapshot_shell import show_place
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.errors import BadExpression
from viewstamp.snapshots.explore.bisecting import Bisected, BisectOutcome, bisected, kept_between
from viewstamp.snapshots.explore.expressions import Condition, Progress, read_condition

OLDEST: Final = 0


def bisect(
    context: typer.Context,
    expression: Annotated[str, typer.Argument(help="A condition, as shown below.")],
    data: FilesOption,
    first: Annotated[
        int, typer.Option("--from", min=OLDEST, help="Oldest generation; 0: the oldest kept.")
    ] = OLDEST,
    last: Annotated[
        int, typer.Option("--to", min=NEWEST, help="Newest generation; 0: the newest kept.")
    ] = NEWEST,
) -> None:
    """Find the first of the kept snapshots on disk in which a condition holds, by binary search.

    It assumes that the condition, once true, stays true, and looks at both ends first. Exits with
    0 if it found where the condition begins to hold; with 1 if the condition holds at the first
    already, or not at the last; with 2 for a wrong expression.

    Conditions: exists(KIND), exists(KIND where PREDICATE), count(...) > 7, joined by and, or, not,
    and parentheses. KIND is topic, partition, stream, user, group, member, broker, session or
    another kind of `snapshot inspect`. PREDICATE compares fields with values or fields, by
    == != < <= > >= and ~ for a glob, or is a field that is true or false. len(FIELD) counts a list.

    Examples: 'exists(topic where name == "orders")', 'count(partition) > 1000',
    'exists(user where username ~ "temp-*" and status == "active")'
    """
    settings = settings_of(context)
    with telling(settings):
        copies = Copies(copy_directories(data))
        try:
            condition = read_condition(expression)
        except BadExpression as error:
            show_place(settings, error)
            raise
        numbers = kept_between(copies, first, last)
        found = _searched(settings, copies, numbers, condition)
        warn_of_bad_copies(settings, copies)
    if not printed(settings, _document(expression, found)):
        typer.echo(_sentence(found))
    if found.outcome is not BisectOutcome.BEGINS:
        raise typer.Exit(EXIT_REFUSED)


def _searched(
    settings: Settings, copies: Copies, numbers: list[int], condition: Condition
) -> Bisected:
    with progress_bar(settings) as progress:
        # Both ends, then halves of what lies between them.
        total = min(len(numbers), 2) + max(len(numbers) - 2, 0).bit_length()
        searching = progress.add_task("bisecting", total=total)
        reading = progress.add_task("reading", total=None)

        def begun(number: int) -> Progress:
            progress.advance(searching)
            progress.reset(reading, description=f"reading generation {number}")
            return partial(progress.advance, reading)

        return bisected(copies, numbers, condition, begun)


def _document(expression: str, found: Bisected) -> dict[str, Any]:
    return {
        "expression": expression,
        "outcome": found.outcome.value,
        "before": _about(found.before),
        "since": _about(found.since),
        "generations": found.generations,
        "looked_at": list(found.looked_at),
    }


def _about(manifest: SnapshotManifest) -> dict[str, Any]:
    return {
        "generation": manifest.generation,
        "cut_op": manifest.cut_op,
        "cut_revision": manifest.cut_revision,
        "timestamp": manifest.timestamp,
    }


def _sentence(found: Bisected) -> str:
    before, since = _named(found.before), _named(found.since)
    looks = f"looked at {len(found.looked_at)} of {found.generations} generations"
    match found.outcome:
        case BisectOutcome.BEGINS:
            return (
                f"it holds from {since} on, and not yet in {before}: it began to hold after"
                f" revision {found.before.cut_revision}, at {found.since.cut_revision} at the"
                f" latest ({looks})"
            )
        case BisectOutcome.HOLDS_AT_FIRST:
            return f"it holds already in {before}, the first one: it began to hold there or earlier"
        case BisectOutcome.HOLDS_NOWHERE:
            is_only = found.before.generation == found.since.generation
            other = ", the only one" if is_only else f", nor in {since}, the last one"
            return f"it does not hold in {before}{other}"
        case BisectOutcome.ENDS:
            return (
                f"it holds in {before} and no longer in {since}: a search needs a condition that"
                " stays true; search for its opposite, with not (...)"
            )


def _named(manifest: SnapshotManifest) -> str:
    return (
        f"generation {manifest.generation} (revision {manifest.cut_revision},"
        f" {moment(manifest.timestamp)})"
    )
