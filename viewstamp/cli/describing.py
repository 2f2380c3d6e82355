"""`describe`: an entity with what belongs to it, in sections, of one revision where that can be.

Everything is read again, a few times, if the cluster changed in between. Each section has a limit,
so that a description can be read, and costs little, however large the entity is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from viewstamp.cli.calls import run
from viewstamp.cli.output import print_table, printed, show_values
from viewstamp.cli.settings import settings_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from viewstamp.client import Client, Consistency

T = TypeVar("T")

# How often everything is read, if the answers are of several revisions.
READINGS_MAX: Final = 3
# Lines of each section.
LINES: Final = 20
LINES_MAX: Final = 1000
# Runs of partitions in one cell.
RUNS_SHOWN: Final = 8

Limit = Annotated[int, typer.Option(min=1, max=LINES_MAX, help="Lines of each section.")]


@dataclass(frozen=True, slots=True)
class DescribedSection:
    """A part of a description: rows, of which a table shows some columns.

    `is_whole` tells whether there are no more rows than these.
    """

    columns: Sequence[str]
    rows: Sequence[dict[str, Any]]
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class EntityDescription:
    """An entity of a kind, such as `topic`, with its sections by title."""

    kind: str
    name: str
    entity: dict[str, Any]
    sections: dict[str, DescribedSection]


class NotedReads:
    """Passes reads on to a client, and notes the revisions of the answers."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.revisions: set[int] = set()

    async def call(self, request: Message, *, consistency: Consistency | None = None) -> Any:
        """Return the answer. Raises Refusal, ClientError."""
        level: Any = {} if consistency is None else {"consistency": consistency}
        answer = await self._client.call(request, **level)
        self.revisions.add(answer.header.revision)
        return answer


def describe(
    context: typer.Context,
    described: Callable[[NotedReads], Awaitable[EntityDescription]],
    revision: int | None = None,
) -> None:
    """Connect, read a description, and print it, as of a revision if one is given."""

    async def read(client: Client) -> tuple[EntityDescription, set[int]]:
        for _ in range(READINGS_MAX):
            reads = NotedReads(client)
            found = await described(reads)
            if len(reads.revisions) == 1:
                break
        return found, reads.revisions

    found, revisions = run(context, read, revision)
    if not printed(settings_of(context), _values(found, revisions)):
        _print(found, revisions)


async def some(items: AsyncIterator[T], limit: int) -> tuple[list[T], bool]:
    """Return the first items, and whether these are all."""
    found: list[T] = []
    async for item in items:
        if len(found) == limit:
            return found, False
        found.append(item)
    return found, True


def runs(numbers: Iterable[int]) -> str:
    """Return ascending numbers as runs, of which the last ones may be left out: `0-3, 7`."""
    edges = list(numbers)
    starts = [edges[0], *(b for a, b in pairwise(edges) if b != a + 1)] if edges else []
    ends = [*(a for a, b in pairwise(edges) if b != a + 1), *edges[-1:]]
    pairs = zip(starts, ends, strict=True)
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in islice(pairs, RUNS_SHOWN)]
    more = ["..."] if len(starts) > RUNS_SHOWN else []
    return ", ".join([*shown, *more])


def _values(found: EntityDescription, revisions: set[int]) -> dict[str, Any]:
    sections = {_key(title): section for title, section in found.sections.items()}
    return {
        "revision": min(revisions),
        "last_revision": max(revisions),
        found.kind: found.entity,
        **{key: list(section.rows) for key, section in sections.items()},
        "cut_off": [key for key, section in sections.items() if not section.is_whole],
    }


def _key(title: str) -> str:
    return title.replace(" ", "_")


def _print(found: EntityDescription, revisions: set[int]) -> None:
    show_values(found.entity, f"{found.kind} {found.name}")
    for title, section in found.sections.items():
        typer.echo()
        if not section.rows:
            typer.echo(f"{title}: none")
            continue
        print_table(section.columns, [_short(row) for row in section.rows], title)
        if not section.is_whole:
            typer.echo(f"there are more {title}: raise --limit")
    typer.echo()
    typer.echo(_age(revisions))


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {key: runs(each) if isinstance(each, list) else each for key, each in row.items()}


def _age(revisions: set[int]) -> str:
    first, last = min(revisions), max(revisions)
    if first == last:
        return f"as of revision {first}"
    return f"as of revisions {first} to {last}: the cluster changed in between"
