"""The output of commands: documents with stable keys for programs, tables and sentences for people.

A table in a pipe is plain: no frame, no colour, no line cut or folded, one row for each line.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import typer

from viewstamp.cli import framed
from viewstamp.cli.documents import OutputFormat, document, document_line
from viewstamp.cli.settings import Settings

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

_CAMEL: Final = re.compile(r"(?<!^)(?=[A-Z])")

# Fields of log time, in microseconds since 1970.
MOMENTS: Final = frozenset(
    ("created_at", "decided_at", "expires_at", "idle_since", "kept_until", "since", "written_by")
)


def plain(message: Message) -> dict[str, Any]:
    """Return a message as JSON values: every field by name, numbers as numbers, no header.

    Enum values are in lower case without their prefix, bytes in hexadecimal, absent messages null.
    Times are RFC 3339 text, or null for no time.
    """
    descriptor: Any = message.DESCRIPTOR
    return {
        field.name: _plain_field(message, field)
        for field in descriptor.fields
        if field.name != "header"
    }


def enum_name(field: FieldDescriptor, number: int) -> str:
    """Return an enum value in lower case, without the prefix that its enum's name gives it."""
    enum = field.enum_type
    assert enum is not None
    value = enum.values_by_number.get(number)
    if value is None:
        return str(number)
    prefix = _CAMEL.sub("_", enum.name).upper() + "_"
    return str(value.name).removeprefix(prefix).lower()


def printed(settings: Settings, value: Any, names: Iterable[str] = ()) -> bool:
    """Print a value as a document, or its names, as the options ask; return False for a table."""
    if settings.for_programs:
        typer.echo(document(settings.output, value))
    elif settings.output is OutputFormat.name:
        for name in names:
            typer.echo(name)
    return settings.output is not OutputFormat.table


def printed_lines(settings: Settings, values: Iterable[Any]) -> bool:
    """Print values one after another, each as a document; return False for a table."""
    if settings.for_programs:
        for value in values:
            typer.echo(document_line(settings.output, value))
    return settings.for_programs


def show(
    settings: Settings,
    message: Message,
    title: str,
    without: Sequence[str] = (),
    *,
    name: str = "",
) -> None:
    """Print one entity: a document, its name, or a table without the fields in `without`."""
    values = plain(message)
    if not printed(settings, values, [name]):
        show_values(values, title, without)


def show_values(values: dict[str, Any], title: str, without: Sequence[str] = ()) -> None:
    """Print the values of an entity as a table, without the fields in `without`."""
    rows = []
    for name, value in values.items():
        if name not in without:
            text = _permissions(value) if name == "permissions" and value else _text(name, value)
            rows.append((name, text))
    if sys.stdout.isatty():
        framed.show_fields(title, rows)
    else:
        typer.echo(title)
        _print_plain(rows)


def show_list(
    settings: Settings,
    messages: Sequence[Any],
    columns: Sequence[str],
    empty: str,
    name: Callable[[Any], str] | None = None,
) -> None:
    """Print entities: an array of all their fields, their names, or a table of some fields."""
    rows = [plain(message) for message in messages]
    if printed(settings, rows, map(name, messages) if name is not None else ()):
        return
    if not rows:
        typer.echo(empty)
        return
    print_table(columns, rows)


def print_table(columns: Sequence[str], rows: Iterable[dict[str, Any]], title: str = "") -> None:
    """Print rows as a table; a column's title is its key."""
    cells = table_cells(columns, rows)
    if sys.stdout.isatty():
        framed.show_table(table_titles(columns), cells, title)
    else:
        if title:
            typer.echo(title)
        _print_plain([columns, *cells])


def table_cells(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Return the texts of the cells of a table."""
    return [[_text(column, row[column]) for column in columns] for row in rows]


def table_titles(columns: Sequence[str]) -> list[str]:
    """Return the titles of columns on a terminal."""
    return [column.replace("_", " ") for column in columns]


def fits_terminal(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> bool:
    """Whether a table fits on the terminal without a folded cell; in a pipe it always fits."""
    if not sys.stdout.isatty():
        return True
    cells = [columns, *([_text(column, row[column]) for column in columns] for row in rows)]
    width = sum(max(map(len, column)) for column in zip(*cells, strict=True))
    return width + framed.GAP * len(columns) <= shutil.get_terminal_size().columns


def done(
    settings: Settings,
    response: Message,
    sentence: str,
    *,
    dry_run: bool = False,
    name: str = "",
    **more: Any,
) -> None:
    """Report that a command took effect (or would): ids, revision, and a sentence for people.

    `name` is the canonical name of what it created.
    """
    header = response.header  # type: ignore[attr-defined]
    values = {**plain(response), **more, "revision": header.revision, "dry_run": dry_run}
    if printed(settings, values, [name]):
        return
    if dry_run:
        typer.echo(f"dry run: would have {sentence}; nothing was changed")
    else:
        typer.echo(f"{sentence} (revision {header.revision})")


def moment(microseconds: int) -> str:
    """Return log time as text: UTC, to the second."""
    at = datetime.fromtimestamp(microseconds // 1_000_000, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def _print_plain(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells, aligned, two spaces apart."""
    lines = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())


def timestamp(microseconds: int) -> str | None:
    """Return log time as RFC 3339 text, in UTC; None for 0, which means no time."""
    if not microseconds:
        return None
    at = datetime.fromtimestamp(microseconds // 1_000_000, UTC)
    return at.replace(microsecond=microseconds % 1_000_000).isoformat(timespec="microseconds")


def _plain_field(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return [_plain_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.name in MOMENTS:
        return timestamp(value)
    return _plain_value(field, value)


def _plain_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        return enum_name(field, value)
    return value.hex() if isinstance(value, bytes) else value


def _text(name: str, value: Any) -> str:
    if name in MOMENTS and value:
        # Entities of snapshots have these fields as they are on disk.
        return moment(value) if isinstance(value, int) else moment_text(value)
    if name == "expires_at":
        return "never"
    if value is None or value == "" or name in MOMENTS:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return _nested(value)
    if isinstance(value, list):
        return ", ".join(_text("", item) for item in value) or "-"
    return str(value)


def moment_text(value: str) -> str:
    """Return RFC 3339 text to the second, as people read it."""
    return f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M:%SZ}"


def _permissions(granted: dict[str, Any]) -> str:
    """Return permissions with a line for each entity on which some were granted."""
    lines = [f"everywhere: {_granted(granted['global'] or {})}"]
    for stream in granted["streams"]:
        stream_name = _identifier(stream["stream"])
        lines.append(f"stream {stream_name}: {_granted(stream)}")
        for topic in stream["topics"]:
            lines.append(f"topic {stream_name}/{_identifier(topic['topic'])}: {_granted(topic)}")
    return "\n".join(line for line in lines if not line.endswith(": ")) or "-"


def _granted(permissions: dict[str, Any]) -> str:
    return ", ".join(name for name, value in permissions.items() if value is True)


def _identifier(named: dict[str, Any]) -> str:
    return str(named["id"] if named["name"] is None else named["name"])


def _nested(values: dict[str, Any]) -> str:
    """Return the set fields of a message; of true flags only the name."""
    parts = []
    for name, value in values.items():
        if value in (None, False, "", []):
            continue
        parts.append(name if value is True else f"{name}={_text(name, value)}")
    return "; ".join(parts) or "-"
