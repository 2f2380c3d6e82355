"""Which lines of the product no seed runs, and which of them a table explains.

The measurement is what coverage.py writes as JSON. Lines are told by file and function. A place
of the table is a folder (`coordinator/telemetry/`), a file (`coordinator/app/main.py`), a function
of a file (`coordinator/app/main.py parse`), or a class (`coordinator/storage.py FileStorage.*`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# What stands in no function.
MODULE: Final = "(module)"
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class Unreached:
    """Why no seed runs some places, and the test that runs them; a path, or a folder of tests."""

    reason: str
    test: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Lines of one function that no seed runs."""

    file: str
    function: str
    lines: tuple[int, ...]

    @property
    def place(self) -> str:
        """What the table calls it."""
        return f"{self.file} {self.function}"

    def is_in(self, place: str) -> bool:
        """Whether a place of the table covers it."""
        if place.endswith("/"):
            return self.file.startswith(place)
        if place.endswith(".*"):
            return self.place.startswith(place[:-1])
        return place in (self.file, self.place)


@dataclass(frozen=True, slots=True)
class Share:
    """How many statements a package has, and how many of them seeds run."""

    package: str
    statements: int
    run: int

    @property
    def percent(self) -> float:
        """How many of a hundred statements seeds run; a package without statements is run."""
        return self.run * _PERCENT / self.statements if self.statements else float(_PERCENT)


@dataclass(frozen=True, slots=True)
class Reached:
    """A judged measurement."""

    shares: tuple[Share, ...]
    """Of each package, in the end of all together."""
    named: tuple[tuple[Unreached, tuple[Gap, ...]], ...]
    not_named: tuple[Gap, ...]
    idle_places: tuple[str, ...]
    """Places of the table that name no line that is not run."""


def judge(measured: Mapping[str, Any], table: Sequence[Unreached]) -> Reached:
    """Return what a measurement says, given the table of what no seed runs."""
    gaps = list(gaps_of(measured))
    named = tuple((entry, tuple(_named(gaps, entry.places))) for entry in table)
    places = [place for entry in table for place in entry.places]
    return Reached(
        shares_of(measured),
        tuple((entry, found) for entry, found in named if found),
        tuple(gap for gap in gaps if not any(gap.is_in(place) for place in places)),
        tuple(place for place in places if not any(gap.is_in(place) for gap in gaps)),
    )


def _named(gaps: Sequence[Gap], places: Sequence[str]) -> Iterator[Gap]:
    return (gap for gap in gaps if any(gap.is_in(place) for place in places))


def gaps_of(measured: Mapping[str, Any]) -> Iterator[Gap]:
    """Yield the functions of which lines are not run, by file and line."""
    for file, entry in sorted(measured["files"].items()):
        parts = [
            Gap(file, function or MODULE, tuple(part["missing_lines"]))
            for function, part in entry["functions"].items()
            if part["missing_lines"]
        ]
        yield from sorted(parts, key=lambda gap: gap.lines)


def shares_of(measured: Mapping[str, Any]) -> tuple[Share, ...]:
    """Return what is run of each package, and of all."""
    statements: dict[str, int] = defaultdict(int)
    run: dict[str, int] = defaultdict(int)
    for file, entry in measured["files"].items():
        for package in (file.rpartition("/")[0], "all"):
            statements[package] += entry["summary"]["num_statements"]
            run[package] += entry["summary"]["covered_lines"]
    packages = [*sorted(package for package in statements if package != "all"), "all"]
    return tuple(Share(package, statements[package], run[package]) for package in packages)


# --- For readers ---


def ranges(lines: Sequence[int]) -> str:
    """Return line numbers in ascending order as a reader writes them: 3, 7-9."""
    found: list[list[int]] = []
    for line in lines:
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def markdown(reached: Reached) -> str:
    """Return what is run as tables: by package, and why the rest is not."""
    lines = ["| package | statements | run | share |", "|---|---:|---:|---:|"]
    for share in reached.shares:
        lines.append(
            f"| {share.package} | {share.statements:,} | {share.run:,} | {share.percent:.1f} % |"
        )
    lines += ["", "| lines that no seed runs | why | run by |", "|---:|---|---|"]
    for entry, gaps in reached.named:
        lines.append(f"| {_count(gaps):,} | {entry.reason} | `{entry.test}` |")
    if reached.not_named:
        lines.append(f"| {_count(reached.not_named):,} | not named yet | |")
    return "\n".join(lines) + "\n"


def listing(reached: Reached) -> str:
    """Return every line that no seed runs, with its reason."""
    lines = []
    for entry, gaps in reached.named:
        lines += ["", f"## {entry.reason}", "", f"Run by `{entry.test}`.", "", *_told(gaps)]
    if reached.not_named:
        lines += ["", "## Not named", "", *_told(reached.not_named)]
    if reached.idle_places:
        lines += ["", "## Places of the table that name nothing", ""]
        lines += [f"- {place}" for place in reached.idle_places]
    return "\n".join(lines) + "\n"


def _told(gaps: Sequence[Gap]) -> Iterator[str]:
    return (f"- {gap.place}: {ranges(gap.lines)}" for gap in gaps)


def _count(gaps: Sequence[Gap]) -> int:
    return sum(len(gap.lines) for gap in gaps)
