"""Every checker can fail in the world, and every guard of the protocol is needed there.

`make simulate-guards` runs all planted bugs. These tests run those that a single seed finds within
seconds; where the product has changed since, the search starts from the first seed.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from testkit.plants.verdict import PITFALLS, Verdict, key, markdown
from testkit.world.guards import ALL
from testkit.world.observer import CHECKERS
from testkit.world.plant import (
    ANSWERS,
    CORE,
    JUDGES,
    LED_ONCE,
    LIFE,
    LIVENESS,
    MEMBERS,
    OFFSETS,
    PLACED_APART,
    RECORDS,
    SCRUBBED,
    STALE_LEADERS,
    WATCHES,
    WorldPlant,
    finders,
    look,
)
from testkit.world.planted_bugs import PLANTS
from testkit.world.planted_guards import GUARDS
from testkit.world.run import WorldOutcome
from testkit.world.stories import WorldStory

SEEDS_MAX = 6
STORIES = Path(__file__).parent / "stories"
# Their seeds have many watchers and members. The slowest one is for `make simulate-guards`, too.
SLOW = {WATCHES, MEMBERS}
SLOWEST = {"leave_out_of_parts"}


def marks(plant: WorldPlant) -> tuple[pytest.MarkDecorator, ...]:
    """Return what says which target runs a plant."""
    if plant.bug.__name__ in SLOWEST:
        return (pytest.mark.exhaustive,)
    return (pytest.mark.long,) if plant.name in SLOW else ()


QUICK = [pytest.param(plant, id=key(plant), marks=marks(plant)) for plant in ALL if plant.seed]


@pytest.mark.parametrize("plant", QUICK)
def test_a_bug_planted_in_the_shipped_programs_is_found(plant: WorldPlant) -> None:
    """A run finds the bug; one of a checker is left to that checker alone."""
    verdict = look(plant, chain([plant.seed], range(1, SEEDS_MAX)))

    assert verdict.found_by, f"{key(plant)} was not found in {verdict.seeds} seeds"


# In about half of them the next primary by number is the first one to be asked.
STORY_SEEDS = range(1, 13)


@pytest.mark.parametrize("plant", [plant for plant in ALL if plant.redundant], ids=key)
def test_a_story_ends_badly_with_a_bug_that_no_seed_finds(plant: WorldPlant) -> None:
    """A story shows the use of a guard that no seed needs, whoever happens to be first in it."""
    story = (STORIES / f"{plant.story}.txt").read_text()

    with pytest.MonkeyPatch.context() as planting:
        plant.bug(planting)
        played = (WorldStory(f"seed {seed}\n{story}").play() for seed in STORY_SEEDS)
        ends_badly = any(not outcome.is_good for outcome in played)

    assert ends_badly


def test_every_checker_of_the_world_and_every_pitfall_has_a_bug() -> None:
    """No checker and no pitfall is left out or listed twice."""
    names = {checker.__name__ for checker in CHECKERS}

    assert {plant.name for plant in PLANTS} == names | {
        ANSWERS,
        JUDGES,
        LED_ONCE,
        LIFE,
        LIVENESS,
        MEMBERS,
        OFFSETS,
        PLACED_APART,
        RECORDS,
        SCRUBBED,
        STALE_LEADERS,
        WATCHES,
    }
    assert {guard.name for guard in GUARDS} == set(PITFALLS)
    assert len({key(plant) for plant in ALL}) == len(ALL)


FOUND = {
    "r1 ended: InvariantViolation('the view goes back')": CORE,
    "r1 ended: DivergedError('two others differ')": ANSWERS,
    "r1 ended: AssertionError('op 3 after op 1')": "the end of a process",
    "key-1: its history is not linearizable": JUDGES,
    "watcher 1 was shown other changes of 7 than another one": WATCHES,
    "two watchers were shown different changes of 7": WATCHES,
    "member m1 read partition 2 at 7 ns, and m2 until 8 ns": MEMBERS,
    "member m1 was told offset 4 of partition 2, and 5 had been committed": OFFSETS,
    "broker b0 led partitions at 7 ns, 2 of them, and its epoch 3 was over at 5 ns": LED_ONCE,
    "broker b0 said at revision 7 that it leads {}, and by the feed it leads {}": LED_ONCE,
    "a stale report of broker b0, fenced, was accepted at 7": STALE_LEADERS,
    "broker b0 has None at offset 2 of (1, 2, 3), where 4 was acknowledged in epoch 5": RECORDS,
    "broker 1 was fenced at 7 ns, and had shown life at 6 ns": LIFE,
    "broker b0 was silent for 7 ns, and not fenced": LIFE,
    "replica 1: journal is damaged, and nobody mends or tells it": SCRUBBED,
    "the replicas of (1, 2, 3) are misplaced: [1, 2] are in racks {'a'}": PLACED_APART,
    "not every call came to an end within 180 s": LIVENESS,
    "the replicas do not agree: {}": LIVENESS,
}


def test_the_table_names_who_found_a_bug() -> None:
    """Every kind of violation has somebody who says it, and a checker is named before all."""
    outcome = WorldOutcome(1, violations=list(FOUND))
    assert finders(outcome) == list(FOUND.values())
    outcome.checker = "OneHistory"
    assert finders(outcome) == ["OneHistory"]


def test_the_tables_have_a_row_for_each_verdict() -> None:
    """Pitfalls say who found them; what nobody found says so."""
    first, last = GUARDS[0], PLANTS[-1]
    found = Verdict(first.name, "", 2, 2, CORE, "", 1.0)
    missed = Verdict(last.name, "", 60, 60, "", "", 1.0)

    tables = markdown(ALL, {key(first): found, key(last): missed})

    rows = [line for line in tables.splitlines() if line.startswith(("| P1 ", f"| {last.name} "))]
    assert [row.rpartition(" | ")[2] for row in rows] == [
        "the core's own invariants |",
        "none of 60 |",
    ]
