"""A planted bug in the shipped programs, and how seeds of the world find it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from unittest.mock import patch

import pytest

from testkit.checkers.log_checkers import OneHistory
from testkit.plants.verdict import PITFALLS, Verdict, about
from testkit.world import observer
from testkit.world.options import WorldOptions
from testkit.world.run import WorldOutcome
from testkit.world.seeds import run_seed

SEEDS_MAX: Final = 60
CORE: Final = "InvariantViolation"
JUDGES: Final = "the judges of histories"
LIVENESS: Final = "Liveness"
BROKE: Final = "the world broke"
ANSWERS: Final = "AnswersAgree"
WATCHES: Final = "WatchesAgree"
MEMBERS: Final = "MembersReadApart"
OFFSETS: Final = "OffsetsAreKept"
LED_ONCE: Final = "LedOnce"
STALE_LEADERS: Final = "StaleLeadersAreRefused"
RECORDS: Final = "RecordsAreKept"
LIFE: Final = "SilentBrokersAreFenced"
PLACED_APART: Final = "PlacedApart"
SCRUBBED: Final = "DamageIsMendedOrTold"
# What a violation says, and who says so; the first that fits counts.
_SAID: Final = (
    (CORE, CORE),
    ("DivergedError", ANSWERS),
    ("one log led replicas to different ends", ANSWERS),
    (" ended: ", "the end of a process"),
    (" led partition", LED_ONCE),
    (" said at revision ", LED_ONCE),
    ("a stale ", STALE_LEADERS),
    (" was acknowledged in epoch ", RECORDS),
    (" fenced", LIFE),
    (" are misplaced", PLACED_APART),
    ("nobody mends or tells it", SCRUBBED),
    ("do not agree", LIVENESS),
    ("did not answer", LIVENESS),
    (" within ", LIVENESS),
    ("watcher", WATCHES),
    (" read partition ", MEMBERS),
    (" had been committed", OFFSETS),
    ("not linearizable", JUDGES),
    ("key-", JUDGES),
    ("log time", "LogTimeIsNotAhead"),
)


class WorldPlant(NamedTuple):
    """A bug. `name` is the pitfall whose guard it takes out, or the checker that has to find it.

    `options` make the moment likely in which the bug shows; what a seed draws would take longer.
    """

    name: str
    bug: Callable[[pytest.MonkeyPatch], None]
    options: WorldOptions
    seed: int = 0
    """A seed that finds it within seconds, for `make test`; 0 if it takes longer."""
    seeds_max: int = SEEDS_MAX
    redundant: str = ""
    """Why no seed finds it."""
    story: str = ""
    """The story that ends badly with it, if no seed finds it."""

    @property
    def is_of_pitfall(self) -> bool:
        """Whether anybody may find it; if not, it is for one checker to find."""
        return self.name in PITFALLS


def finders(outcome: WorldOutcome) -> list[str]:
    """Return who found each violation of a run: a checker, the core, a judge, or its end."""
    if outcome.checker:
        return [outcome.checker]
    return [
        next((who for said, who in _SAID if said in what), what.partition(":")[0])
        for what in outcome.violations
    ]


def look(plant: WorldPlant, seeds: Iterable[int]) -> Verdict:
    """Run seeds with the bug, up to the first that fails.

    If the plant is for one checker, all others are off but the one that writes the history.
    """
    looking = tuple(
        checker
        for checker in observer.CHECKERS
        if plant.is_of_pitfall or checker is OneHistory or checker.__name__ == plant.name
    )
    count, seed, took_s = 0, 0, 0.0
    with pytest.MonkeyPatch.context() as planting, patch.object(observer, "CHECKERS", looking):
        plant.bug(planting)
        for seed in seeds:
            count += 1
            outcome = run_seed(seed, plant.options, ends_at_defects=plant.is_of_pitfall)
            took_s += outcome.took_s
            found = dict(zip(finders(outcome), outcome.violations, strict=False))
            # A judge that came to no verdict, or a defect of the world, has found no bug.
            found.pop(BROKE, None)
            for who, failure in found.items():
                if plant.is_of_pitfall or who == plant.name:
                    return Verdict(plant.name, about(plant), count, seed, who, failure, took_s)
    return Verdict(plant.name, about(plant), count, seed, "", "", took_s)
