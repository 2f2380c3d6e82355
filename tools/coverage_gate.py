"""Require a share of tested branches from each pure package.

A total for all packages would let a well tested package hide a poor one, and would not show a
package that was never imported.
"""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BRANCHES_MIN_PERCENT = 95
ROOT = Path(__file__).resolve().parents[1]
# The gate judges the packages that coverage measures, so their list exists only once.
PURE_PACKAGES: tuple[str, ...] = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]["source"]
)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many lines and branches a package has, and how many of them tests ran."""

    lines: int = 0
    lines_covered: int = 0
    branches: int = 0
    branches_covered: int = 0

    def plus(self, summary: dict[str, Any]) -> Tally:
        """Return this tally with one file's summary, as coverage writes it, added."""
        return Tally(
            self.lines + summary["num_statements"],
            self.lines_covered + summary["covered_lines"],
            self.branches + summary["num_branches"],
            self.branches_covered + summary["covered_branches"],
        )


def tally_package(report: dict[str, Any], package: str) -> Tally:
    """Return the tally of all files of a coverage JSON report below the package's folder."""
    tally = Tally()
    for name, entry in report["files"].items():
        if name.startswith(f"{package}/"):
            tally = tally.plus(entry["summary"])
    return tally


def judge(package: str, tally: Tally) -> str | None:
    """Return what is wrong with a package's coverage, or None if it passes the gate."""
    if tally.lines == 0:
        return f"{package}: no line was measured; is it imported by any test?"
    for kind, covered, total in (
        ("branches", tally.branches_covered, tally.branches),
        ("lines", tally.lines_covered, tally.lines),
    ):
        if covered * 100 < total * BRANCHES_MIN_PERCENT:
            return f"{package}: {covered} of {total} {kind} tested, under {BRANCHES_MIN_PERCENT} %"
    return None


def main(arguments: list[str]) -> int:
    """Judge each pure package by the coverage JSON named; return 1 if any fails."""
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    if not report["meta"]["branch_coverage"]:
        print("coverage gate: no branch was measured; did any test run?", file=sys.stderr)
        return 1
    failures = []
    for package in PURE_PACKAGES:
        tally = tally_package(report, package)
        print(f"{package}: {tally.branches_covered}/{tally.branches} branches")
        failure = judge(package, tally)
        if failure is not None:
            failures.append(failure)
    for failure in failures:
        print(f"coverage gate: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
