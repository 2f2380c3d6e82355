"""What came of a planted bug, and the tables that say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pytest

PITFALLS: Final = tuple(f"P{number}" for number in range(1, 22))
# How the tables call who found a bug.
WORDS: Final = {"InvariantViolation": "the core's own invariants"}


class PlantedBug(Protocol):
    """A bug. `name` is the pitfall whose guard it takes out, or the checker that has to find it."""

    @property
    def name(self) -> str: ...
    @property
    def bug(self) -> Callable[[pytest.MonkeyPatch], None]: ...
    @property
    def redundant(self) -> str:
        """Why nobody finds it; empty if somebody does."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many seeds a plant took; `found_by` is empty if none of them found it."""

    name: str
    bug: str
    seeds: int
    seed: int
    found_by: str
    failure: str
    took_s: float


def about(plant: PlantedBug) -> str:
    """Return the bug in words."""
    return (plant.bug.__doc__ or "").partition("\n")[0].rstrip(".")


def key(plant: PlantedBug) -> str:
    """Return what tells a plant from all others."""
    return f"{plant.name} {plant.bug.__name__}"


def problem(plant: PlantedBug, verdict: Verdict) -> str | None:
    """Return why a verdict is not what the table says; None if it is."""
    if plant.redundant and verdict.found_by:
        return f"{key(plant)} is not redundant: seed {verdict.seed} found {verdict.failure}"
    if not plant.redundant and not verdict.found_by:
        return f"{key(plant)} was not found in {verdict.seeds} seeds"
    return None


def markdown(plants: Sequence[PlantedBug], found: dict[str, Verdict]) -> str:
    """Return the two tables of `docs/simulation.md`: pitfalls, then checkers."""
    lines = ["| pitfall | planted bug | seeds | found by |", "|---|---|---|---|"]
    known = [(plant, found[key(plant)]) for plant in plants if key(plant) in found]
    for plant, verdict in known:
        if plant.name in PITFALLS:
            nobody = f"nobody: {plant.redundant}" if plant.redundant else "nobody yet"
            by = WORDS.get(verdict.found_by, verdict.found_by) or nobody
            lines.append(f"| {plant.name} | {about(plant)} | {_seeds(verdict)} | {by} |")
    lines += ["", "| checker | planted bug | seeds |", "|---|---|---|"]
    for plant, verdict in known:
        if plant.name not in PITFALLS:
            lines.append(f"| {plant.name} | {about(plant)} | {_seeds(verdict)} |")
    return "\n".join(lines) + "\n"


def _seeds(verdict: Verdict) -> str:
    return f"{verdict.seeds}" if verdict.found_by else f"none of {verdict.seeds}"
