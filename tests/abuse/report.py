"""The figures of a campaign as tables: for the terminal, and for `docs/security.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

BEGIN: Final = "<!-- begin: figures of `make abuse` -->"
END: Final = "<!-- end: figures of `make abuse` -->"
ANSWERS_SHOWN: Final = 4


def print_report(console: Console, figures: Mapping[str, Any]) -> None:
    """Print all tables and the verdict."""
    for title, columns, rows in _tables(figures):
        table = Table(*columns, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for broken in figures["broken"]:
        console.print(f"[red]broken:[/red] {broken}", markup=True)
    for view, stall in figures["stalls"].items():
        console.print(f"not judged: view {view} began while the machine stalled: {stall}")
    if not figures["broken"]:
        console.print("every promise was kept")


def write_tables(document: Path, figures: Mapping[str, Any]) -> None:
    """Replace the tables between the marks of a document. Raises ValueError without marks."""
    text = document.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no lines `{BEGIN}` and `{END}`")
    document.write_text(f"{head}{BEGIN}\n\n{_markdown(figures)}\n{END}{tail}")


def _markdown(figures: Mapping[str, Any]) -> str:
    parts = [
        f"{figures['hostile_calls']:,} hostile calls in {figures['seconds']:.0f} s on "
        f"{figures['plan']['replicas']} replicas; restarts: {sum(figures['restarts'].values())}; "
        f"view changes: {max(0, len(figures['views']) - 1)}, of which"
        f" {len(figures['stalls'])} while the machine stalled.\n"
    ]
    for title, columns, rows in _tables(figures):
        lines = [f"**{title}**\n", _line(columns), _line(["---"] * len(columns))]
        parts.append("\n".join([*lines, *map(_line, rows)]) + "\n")
    return "\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _tables(
    figures: Mapping[str, Any],
) -> Iterator[tuple[str, Sequence[str], list[Sequence[str]]]]:
    yield (
        "The honest caller",
        ("phase", "kind", "calls", "p50 ms", "p99 ms", "max ms", "errors"),
        [row for phase, each in figures["honest"].items() for row in _honest_rows(phase, each)],
    )
    yield (
        "Attacks",
        ("kind", "calls", "answers"),
        [
            (kind, f"{each['calls']:,}", _answers(each["answers"]))
            for kind, each in figures["attacks"].items()
        ],
    )
    yield (
        "Resident memory, MiB",
        ("process", "before", "peak", "after"),
        [
            (name, f"{each['first']:.0f}", f"{each['peak']:.0f}", f"{each['last']:.0f}")
            for name, each in figures["memory_mib"].items()
        ],
    )


def _honest_rows(phase: str, each: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for kind in ("command", "read", "login"):
        row = each[kind]
        if not row["count"]:
            continue
        errors = sum(n for text, n in each["errors"].items() if text.startswith(kind))
        times = [f"{row[name]:g}" for name in ("p50_ms", "p99_ms", "max_ms")]
        yield (phase, kind, str(row["count"]), *times, str(errors))


def _answers(answers: Mapping[str, int]) -> str:
    most = sorted(answers.items(), key=lambda item: -item[1])[:ANSWERS_SHOWN]
    return ", ".join(f"{name} {count:,}" for name, count in most)
