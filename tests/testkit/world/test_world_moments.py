"""Rare moments of the world: each comes, and all promises of the product hold.

Method: short runs in which one moment is planned again and again, until it has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from testkit.world.moments import (
    ALONE,
    AMBUSH,
    CORNERED,
    FORGOTTEN,
    MOMENTS,
    PENDULUM,
    RETURNED,
    STRUCK_BOOTSTRAP,
)
from testkit.world.options import WorldOptions
from testkit.world.process import WorldProcess
from testkit.world.run import WorldRun
from testkit.world.seeds import good_until
from testkit.world.steps import after_effects

SMALL = WorldOptions(clients=2, callers=2, keys=2, seconds=3, every_ms=(50, 600))
CASES = (
    (("ambush", "step_down"), AMBUSH),
    (("alone_with_its_log", "rot", "step_down"), ALONE),
    (("cornered",), CORNERED),
    (("cornered", "rot"), CORNERED),
    (("forgotten_view", "step_down"), FORGOTTEN),
    (("pendulum",), PENDULUM),
    (("return", "rot"), RETURNED),
    (("struck_bootstrap",), STRUCK_BOOTSTRAP),
    (("kill_in_step",), "kill_in_step"),
    (("dozing",), "dozing"),
    (("crowd",), "crowd"),
)


@pytest.mark.long
@pytest.mark.parametrize(("kinds", "moment"), CASES)
def test_a_moment_comes(kinds: Sequence[str], moment: str) -> None:
    """The moment comes in one of few seeds, and the cluster stands it."""
    options = replace(SMALL, faults=kinds)
    if moment == "crowd":
        options = replace(options, every_ms=(600, 1_500))
    assert good_until(range(1, 61), options, moment)[moment] > 0


def test_every_moment_has_a_case() -> None:
    """No moment is counted that no test waits for."""
    assert set(MOMENTS) <= {moment for _, moment in CASES}


@pytest.mark.long
def test_a_lone_member_dies_while_it_is_bootstrapped() -> None:
    """One replica alone comes back and serves, wherever its first process died."""
    options = replace(SMALL, replicas=1, faults=("struck_bootstrap",), seconds=1)
    for seed in range(1, 6):
        outcome = WorldRun(seed, options).run()
        assert outcome.violations == []
        assert outcome.branches[STRUCK_BOOTSTRAP] == 1
        assert outcome.answered > 0


@pytest.mark.long
def test_a_first_entry_that_nobody_has_heard_of_is_made_again() -> None:
    """A member that died before its superblock existed is blank, and begins anew."""
    options = replace(SMALL, faults=("struck_bootstrap",), seconds=1, clients=1, callers=1)
    deaths = set()
    for seed in range(1, 9):
        run = WorldRun(seed, options)
        assert run.run().violations == []
        deaths.add(next(line for line in run.world.schedule.transcript if "is killed" in line))
    assert len(deaths) > 1


@pytest.mark.long
def test_nobody_strikes_the_bootstrap_of_two() -> None:
    """Two replicas cannot go on without one that may have forgotten what it said."""
    options = replace(SMALL, replicas=2, faults=("struck_bootstrap",), seconds=1)
    outcome = WorldRun(1, options).run()
    assert outcome.violations == []
    assert outcome.faults["struck_bootstrap"] == 0


def test_a_process_dies_between_two_effects() -> None:
    """The effect at which a process dies is not carried out, and those before it are."""
    fate = after_effects(2)
    assert [fate(number) for number in range(3)] == [False, False, True]


def test_death_in_a_step_is_death() -> None:
    """A process that died in a step takes no further step, and another one comes."""
    run = WorldRun(2, replace(SMALL, faults=("kill_in_step",), seconds=2))
    died: list[WorldProcess] = []
    run.world.died.append(died.append)
    assert run.run().violations == []
    assert [process for process in died if process.is_alive] == []
    assert len([process for process in died if process.name.startswith("r")]) > 0
