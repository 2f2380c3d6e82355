"""Every checker can fail, and every guard of the protocol is needed: planted bugs are found.

`make simulate-guards` runs all of them, each from the first seed on. These tests run those that a
single seed finds within seconds; where the core has changed since, the search starts from the first
seed.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from testkit.plants.verdict import PITFALLS, Verdict, key, problem
from testkit.simulation.checkers import CHECKERS
from testkit.simulation.guards import ALL
from testkit.simulation.plant import Plant, look
from testkit.simulation.planted_bugs import PLANTS
from testkit.simulation.planted_guards import GUARDS
from testkit.simulation.scenario import Scenario
from testkit.simulation.simulation import SeedFailure

SEEDS_MAX = 40
STORIES = Path(__file__).parent / "scenarios"
QUICK = [plant for plant in ALL if plant.seed]


@pytest.mark.parametrize("plant", QUICK, ids=key)
def test_planted_bug_is_found(plant: Plant) -> None:
    """The campaign finds the bug; one of a checker is left to that checker alone."""
    verdict = look(plant, chain([plant.seed], range(1, SEEDS_MAX)))

    assert verdict.found_by, f"{key(plant)} was not found in {verdict.seeds} seeds"


@pytest.mark.parametrize("plant", [plant for plant in ALL if plant.redundant], ids=key)
def test_a_story_ends_badly_with_a_bug_that_no_seed_finds(plant: Plant) -> None:
    """A story shows the use of a guard that no seed needs."""
    story = Scenario((STORIES / f"{plant.story}.txt").read_text())

    with pytest.MonkeyPatch.context() as planting, pytest.raises(SeedFailure):
        plant.bug(planting)
        story.play()


def test_every_checker_and_every_pitfall_has_a_bug() -> None:
    """No checker and no pitfall is left out or listed twice."""
    beside = {"Liveness", "AnswersAgree", "SnapshotsAgree"}
    checkers = {checker.__name__ for checker in CHECKERS} | beside

    assert {plant.name for plant in PLANTS} == checkers
    assert {guard.name for guard in GUARDS} == set(PITFALLS)
    assert len({key(plant) for plant in ALL}) == len(ALL)


def test_verdict_against_the_table_is_a_problem() -> None:
    """An unfound bug fails the run, and so does a redundant guard that some seed needs."""
    plant, redundant = GUARDS[0], GUARDS[0]._replace(redundant="it saves time")
    found = Verdict("P1", "", 3, 3, "OneHistory", "OneHistory: two", 1.0)
    missed = Verdict("P1", "", 200, 200, "", "", 1.0)

    assert problem(plant, found) is None
    assert problem(redundant, missed) is None
    assert problem(plant, missed) == f"{key(plant)} was not found in 200 seeds"
    assert "is not redundant" in str(problem(redundant, found))
