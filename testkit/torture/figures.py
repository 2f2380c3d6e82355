"""The figures of rounds: a line each, so that a campaign goes on where it was; and their sums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testkit.campaigns.fingerprint import fingerprint
from testkit.torture.round import RoundFigures
from viewstamp.routing import SERVICE_NAMES

# What a round runs: itself with the coordinator, and the services, which are programs of their own.
PROGRAMS: Final = (
    "testkit.torture.round",
    *(f"services.{name}.__main__" for name in SERVICE_NAMES),
)
FINDINGS_SHOWN: Final = 20


def load(path: Path) -> list[RoundFigures]:
    """Return the rounds that this very code has done."""
    code = fingerprint(*PROGRAMS)
    lines = map(json.loads, _lines(path))
    return [RoundFigures(**line["round"]) for line in lines if line["code"] == code]


def save(path: Path, figures: RoundFigures) -> None:
    """Add a round; whoever is killed meanwhile leaves the file as it was."""
    line = json.dumps({"code": fingerprint(*PROGRAMS), "round": asdict(figures)})
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text("".join(f"{each}\n" for each in (*_lines(path), line)))
    beside.replace(path)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def total(rounds: Sequence[RoundFigures]) -> dict[str, Any]:
    """Return the figures of all rounds together, for machines."""
    silences = [each for one in rounds for each in one.silences_ms]
    recoveries = [one.recovery_ms for one in rounds if one.recovery_ms]
    return {
        "rounds": len(rounds),
        "kills": sum(one.kill_count for one in rounds),
        "kills_by_process": _summed(one.kills for one in rounds),
        "faults": _summed(one.faults for one in rounds),
        "transactions": sum(one.transactions for one in rounds),
        "counts": _summed(one.counts for one in rounds),
        "requests": sum(one.requests for one in rounds),
        "requests_sent_again": sum(one.sent_again for one in rounds),
        "answers_compared": sum(one.duplicates for one in rounds),
        "silences": len(silences),
        "silence_median_ms": round(median(silences)) if silences else 0,
        "silence_worst_ms": max(silences, default=0),
        "recovery_median_ms": round(median(recoveries)) if recoveries else 0,
        "recovery_worst_ms": max(recoveries, default=0),
        "revisions_watched": sum(one.watched for one in rounds),
        "snapshots_verified": sum(one.snapshots for one in rounds),
        "findings": [f"seed {one.seed}: {text}" for one in rounds for text in one.findings],
        "took_s": round(sum(one.took_s for one in rounds)),
    }


def print_report(console: Console, rounds: Sequence[RoundFigures]) -> None:
    """Print tables of what was done and seen, and every finding."""
    found = total(rounds)
    for title in ("kills_by_process", "faults", "counts"):
        table = Table("what", "times", title=title.replace("_", " "))
        for name, count in sorted(found[title].items()):
            table.add_row(escape(name), f"{count:,}")
        console.print(table)
    table = Table("figure", "value")
    for name, value in found.items():
        if isinstance(value, int):
            table.add_row(name.replace("_", " "), f"{value:,}")
    console.print(table)
    for text in found["findings"][:FINDINGS_SHOWN]:
        console.print(f"[red]finding[/red]: {escape(text)}")


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    summed: Counter[str] = Counter()
    for each in counts:
        summed.update(each)
    return dict(sorted(summed.items()))
