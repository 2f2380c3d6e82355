"""Which lines of the product no seed runs, and which of them a table explains.

The measurement is what coverage.py writes as JSON. Lines are told by file and function. A place
of the table is a folder (`coordinator/telemetry/`), a file (`coordinator/app/main.py`), a function
of a file (`coordinator/app/main.py parse`), or a class (`coordinator/storage.py FileStorage.*`).

Kinds of statements can be named instead, wherever they stand: a block of lines between two that
are run belongs to the kind of its last statement.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from testkit.campaigns.fingerprint import ROOT

# What stands in no function.
MODULE: Final = "(module)"
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class Unreached:
    """Why no seed runs some places, and the test that runs them; a path, or a folder of tests.

    With `ends` it names the blocks whose last statement matches this pattern, of these places or
    of all. What `is_rare` may be run by some seeds: no campaign has to leave it out.
    """

    reason: str
    test: str
    places: tuple[str, ...] = ()
    ends: str = ""
    is_rare: bool = False

    def explains(self, block: Gap, root: Path) -> bool:
        """Whether this is why no seed runs a block of a file below `root`."""
        if self.places and not any(map(block.is_in, self.places)):
            return False
        return not self.ends or re.match(self.ends, _last_statement(root, block)) is not None


@dataclass(frozen=True, slots=True)
class Gap:
    """Lines of one function that no seed runs, or a block of them."""

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
    """Of each package, in the end of all together, and without those that are named as a whole."""
    named: tuple[tuple[Unreached, tuple[Gap, ...]], ...]
    not_named: tuple[Gap, ...]
    idle_places: tuple[str, ...]
    """Places of the table that name no line that is not run."""


def judge(measured: Mapping[str, Any], table: Sequence[Unreached], root: Path = ROOT) -> Reached:
    """Return what a measurement says of the files below `root`, given what no seed runs.

    A block belongs to the first entry that explains it. Kinds of statements come after all places.
    """
    order = sorted(table, key=lambda entry: bool(entry.ends))
    found: dict[Unreached | None, list[Gap]] = defaultdict(list)
    demanded = [entry for entry in table if not entry.is_rare]
    blocks = list(blocks_of(measured))
    for block in blocks:
        found[next((each for each in order if each.explains(block, root)), None)].append(block)
    return Reached(
        shares_of(measured, _folders(table)),
        tuple((entry, together(found[entry])) for entry in table if found[entry]),
        together(found[None]),
        (*_idle_places(demanded, blocks), *(e.ends for e in demanded if e.ends and not found[e])),
    )


def _folders(table: Sequence[Unreached]) -> list[str]:
    return [place for entry in table for place in entry.places if place.endswith("/")]


def _idle_places(table: Sequence[Unreached], blocks: Sequence[Gap]) -> Iterator[str]:
    places = (place for entry in table for place in entry.places)
    return (place for place in places if not any(block.is_in(place) for block in blocks))


def _last_statement(root: Path, block: Gap) -> str:
    return _lines_of(root / block.file)[block.lines[-1] - 1].strip()


@cache
def _lines_of(path: Path) -> Sequence[str]:
    return path.read_text().splitlines()


def together(blocks: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return the blocks of each function as one gap, in their order."""
    found: dict[str, Gap] = {}
    for block in blocks:
        before = found.get(block.place)
        lines = block.lines if before is None else (*before.lines, *block.lines)
        found[block.place] = Gap(block.file, block.function, lines)
    return tuple(found.values())


def blocks_of(measured: Mapping[str, Any]) -> Iterator[Gap]:
    """Yield the blocks of lines that are not run, by file, function and line."""
    for file, entry in sorted(measured["files"].items()):
        functions = sorted(
            entry["functions"].items(), key=lambda item: item[1]["missing_lines"][:1]
        )
        for function, part in functions:
            yield from _blocks(file, function or MODULE, part)


def _blocks(file: str, function: str, part: Mapping[str, Any]) -> Iterator[Gap]:
    missing = set(part["missing_lines"])
    statements = sorted((*missing, *part["executed_lines"]))
    for is_missing, lines in groupby(statements, key=missing.__contains__):
        if is_missing:
            yield Gap(file, function, tuple(lines))


def shares_of(measured: Mapping[str, Any], apart: Sequence[str] = ()) -> tuple[Share, ...]:
    """Return what is run of each package, of all, and of all without the folders of `apart`."""
    statements: dict[str, int] = defaultdict(int)
    run: dict[str, int] = defaultdict(int)
    without = f"all without {' and '.join(apart)}"
    for file, entry in measured["files"].items():
        groups = [file.rpartition("/")[0], "all"]
        if apart and not file.startswith(tuple(apart)):
            groups.append(without)
        for group in groups:
            statements[group] += entry["summary"]["num_statements"]
            run[group] += entry["summary"]["covered_lines"]
    order = sorted(statements, key=lambda group: (group.startswith("all"), group))
    return tuple(Share(group, statements[group], run[group]) for group in order)


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
