"""Tables for a terminal. Only they load Rich, so pipes do not wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

# Characters between two columns.
GAP: Final = 3


def show_fields(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print the fields of one entity, below its title."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, escape(text))
    Console(highlight=False).print(table)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table; cells that are too wide for their column are folded."""
    from rich.console import Console

    Console(highlight=False).print(framed_table(columns, rows, title))


def framed_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """Return a table; cells that are too wide for their column are folded."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
