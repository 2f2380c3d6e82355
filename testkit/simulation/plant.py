"""A planted bug, and how a campaign finds it: seeds as they are drawn, until one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from unittest.mock import patch

import pytest

from testkit.checkers.log_checkers import OneHistory
from testkit.plants.verdict import PITFALLS, Verdict, about
from testkit.simulation import checkers
from testkit.simulation.checkers import CHECKERS
from testkit.simulation.options import Options, Scale, draw
from testkit.simulation.outcome import run_seed


class Plant(NamedTuple):
    """A bug. `name` is the pitfall whose guard it takes out, or the checker that has to find it."""

    name: str
    bug: Callable[[pytest.MonkeyPatch], None]
    seed: int = 0
    """A seed that finds it within seconds, for `make test`; 0 if it takes longer."""
    seeds_max: int = 200
    """So many seeds of a campaign find it."""
    where: Callable[[Options], bool] = lambda options: True
    """The seeds that can meet the bug. The others are counted, too: there it is never reached."""
    redundant: str = ""
    """Why nobody finds it: another guard does what this one does, or it only saves time."""
    story: str = ""
    """The scenario that ends badly with the bug, where no seed does."""

    @property
    def is_of_pitfall(self) -> bool:
        """Whether anybody may find it; if not, it is for one checker to find."""
        return self.name in PITFALLS


def look(plant: Plant, seeds: Iterable[int]) -> Verdict:
    """Run seeds of a campaign with the bug, up to the first that fails.

    If the plant is for one checker, all others are off but the one that writes the history.
    """
    looking = tuple(
        checker
        for checker in CHECKERS
        if plant.is_of_pitfall or checker is OneHistory or checker.__name__ == plant.name
    )
    count, seed, took_s = 0, 0, 0.0
    with pytest.MonkeyPatch.context() as planting, patch.object(checkers, "CHECKERS", looking):
        plant.bug(planting)
        for seed in seeds:
            count += 1
            options = draw(seed, Scale.CAMPAIGN)
            if not plant.where(options):
                continue
            outcome = run_seed(options)
            took_s += outcome.took_s
            kind, failure = outcome.kind, outcome.failure.partition("\n")[0]
            if kind == plant.name or (kind and plant.is_of_pitfall):
                return Verdict(plant.name, about(plant), count, seed, kind, failure, took_s)
    return Verdict(plant.name, about(plant), count, seed, "", "", took_s)
