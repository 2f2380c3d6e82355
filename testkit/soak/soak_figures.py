"""What a soak found: its rounds, the growth of each process, and a file that it goes on from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from testkit.campaigns.fingerprint import fingerprint
from testkit.soak.process_samples import ProcessLife
from testkit.soak.slopes import Growth, Slope, slope_of
from testkit.torture import figures
from testkit.torture.round import RoundFigures
from viewstamp.routing import SERVICE_NAMES

PROGRAMS: Final = (
    "testkit.soak.soak_round",
    *(f"services.{name}.__main__" for name in SERVICE_NAMES),
)


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """When a life is judged, and what is too much."""

    limit_percent_per_hour: float
    warm_up_s: float
    piece_s: float


@dataclass(frozen=True, slots=True)
class MeasuredGrowth:
    """The growth of one figure in one life."""

    life: str
    figure: str
    slope: Slope
    verdict: Growth

    def in_words(self) -> str:
        """Return a sentence."""
        slope = self.slope
        return (
            f"{self.figure} of the {self.life} grows by {slope.percent_per_hour:.2f} % per hour"
            f" ({slope.low:.2f} to {slope.high:.2f}) over {slope.hours:.2f} h"
        )


@dataclass(slots=True)
class SoakRecord:
    """Rounds and lives so far, kept in a file; a change of the code begins anew."""

    rounds: list[RoundFigures] = field(default_factory=list)
    lives: list[ProcessLife] = field(default_factory=list)
    load_averages: list[float] = field(default_factory=list)

    @property
    def hours(self) -> float:
        """How long the rounds took."""
        return sum(one.took_s for one in self.rounds) / 3_600

    def save(self, path: Path) -> None:
        """Replace the file; whoever is killed meanwhile leaves it as it was."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.new")
        beside.write_text(json.dumps({"code": fingerprint(*PROGRAMS), **asdict(self)}))
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> SoakRecord:
        """Return what this very code has done."""
        found = json.loads(path.read_text()) if path.exists() else {}
        if found.get("code") != fingerprint(*PROGRAMS):
            return cls()
        return cls(
            [RoundFigures(**one) for one in found["rounds"]],
            [ProcessLife(**one) for one in found["lives"]],
            found["load_averages"],
        )


def growths(lives: Iterable[ProcessLife], rule: GrowthRule) -> list[MeasuredGrowth]:
    """Return the growth of each figure in each life that is long enough."""
    found = []
    for life in lives:
        for name, points in life.figures.items():
            slope = slope_of(points, rule.warm_up_s, rule.piece_s)
            if slope is not None:
                verdict = slope.judged(rule.limit_percent_per_hour)
                found.append(MeasuredGrowth(life.title, name, slope, verdict))
    return found


def findings(record: SoakRecord, rule: GrowthRule) -> list[str]:
    """Return broken promises, and growth that is surely above the limit."""
    too_fast = [one for one in growths(record.lives, rule) if one.verdict is Growth.ABOVE]
    broken = figures.total(record.rounds)["findings"]
    return [*broken, *(one.in_words() for one in too_fast)]


def total(record: SoakRecord, rule: GrowthRule) -> dict[str, Any]:
    """Return everything, for machines."""
    measured = growths(record.lives, rule)
    averages = record.load_averages
    return {
        **figures.total(record.rounds),
        "hours": round(record.hours, 2),
        "load_average": round(sum(averages) / len(averages), 1) if averages else 0.0,
        "rule": asdict(rule),
        "lives": len(record.lives),
        "growth": [
            {
                "process": one.life,
                "figure": one.figure,
                "percent_per_hour": round(one.slope.percent_per_hour, 2),
                "low": round(one.slope.low, 2),
                "high": round(one.slope.high, 2),
                "median": round(one.slope.level),
                "hours": round(one.slope.hours, 2),
                "verdict": one.verdict,
            }
            for one in measured
        ],
        "findings": findings(record, rule),
    }


def print_soak(console: Console, record: SoakRecord, rule: GrowthRule) -> None:
    """Print tables of what was done and of growth, and every finding."""
    figures.print_report(console, record.rounds)
    console.print(growth_table(growths(record.lives, rule), rule))
    for text in findings(record, rule):
        console.print(f"[red]finding[/red]: {escape(text)}")


def growth_table(measured: Sequence[MeasuredGrowth], rule: GrowthRule) -> Table:
    """Return the table of growth."""
    columns = ("process", "figure", "median", "% per hour", "interval", "hours", "verdict")
    title = f"growth; the limit is {rule.limit_percent_per_hour:g} % per hour"
    table = Table(*columns, title=title)
    for one in measured:
        slope = one.slope
        table.add_row(
            escape(one.life),
            one.figure,
            f"{slope.level:,.0f}",
            f"{slope.percent_per_hour:.2f}",
            f"{slope.low:.2f} to {slope.high:.2f}",
            f"{slope.hours:.2f}",
            one.verdict,
        )
    return table
