"""Worlds whose members change: their operator, what bounds it, and bugs of the shell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testkit.world.member_book import MemberBook
from testkit.world.options import WorldOptions, draw, flags
from testkit.world.planted_epoch_bugs import EPOCH_PLANTS, EpochPlant
from testkit.world.run import WorldRun
from testkit.world.seeds import good_until
from testkit.world.steward import (
    ADDED,
    PROMOTED,
    REMOVED,
    REMOVED_DEAD,
    REMOVED_PRIMARY,
    REVIVED,
)
from testkit.world.stories import WorldStory

STORIES = Path(__file__).parent / "stories"
OPTIONS = WorldOptions(is_changing=True, replicas=1, seconds=6, faults=(), flags=flags(20, 0))
# Those of which a world shows at once that the guard is there.
QUICK = {"let_all_go"}
# They take half a minute each.
SLOW = {"believe_hearsay", "promote_without_disk"}


def marks(plant: EpochPlant) -> tuple[pytest.MarkDecorator, ...]:
    """Return what says which target runs a plant."""
    name = plant.bug.__name__
    if name in QUICK:
        return ()
    return (pytest.mark.exhaustive if name in SLOW else pytest.mark.long,)


def book_of(voters: int, victims: tuple[int, ...]) -> MemberBook:
    """Return the book of a cluster just founded."""
    book = MemberBook(voters, 0)
    book.victims = victims
    return book


@pytest.mark.parametrize(
    ("voters", "victims", "dead", "bears"),
    [
        (1, (), 0, True),
        (2, (), 0, True),
        (2, (1,), 0, False),
        (2, (), 1, False),
        (3, (0,), 0, True),
        (3, (0, 1), 0, False),
        (3, (), 1, True),
        (3, (0,), 1, False),
        (4, (0, 1), 0, False),
        (5, (0, 1), 0, True),
        (5, (0,), 1, True),
        (5, (0, 1), 1, False),
    ],
)
def test_members_bear_what_the_run_does_to_victims(
    voters: int, victims: tuple[int, ...], dead: int, bears: bool
) -> None:
    """An intact copy of each committed entry and a quorum are left, whatever victims lose."""
    book = book_of(voters, victims)
    assert book.bears(book.voters, dead) is bears


def test_a_book_keeps_one_list_of_members() -> None:
    """Whoever looks again later sees the members of that moment."""
    book = book_of(2, ())
    members = book.members_now
    book.added(2)
    book.promoted(2)
    book.removed(0)
    assert members == [1, 2] == book.voters
    assert str(book) == "voters [1, 2], standbys []"


def test_a_lone_replica_gets_company_in_a_world() -> None:
    """Members come, get votes and go in a calm world, and every promise is kept."""
    good_until(range(1, 9), OPTIONS, ADDED, PROMOTED, REMOVED)


@pytest.mark.exhaustive
def test_members_change_while_everything_fails() -> None:
    """Seeds with all faults see every kind of change."""
    options = replace(draw(2), is_changing=True, is_on_files=False, rude_peers=0)
    wanted = (REMOVED_DEAD, REMOVED_PRIMARY, REVIVED)
    good_until(range(1, 41), options, ADDED, PROMOTED, REMOVED, *wanted)


@pytest.mark.long
def test_a_run_with_changes_is_one_run() -> None:
    """The same seed gives the same digest."""
    first, second = (WorldRun(3, OPTIONS).run() for _ in range(2))
    assert first.digest == second.digest
    assert first.violations == []


def test_a_share_of_seeds_changes_members() -> None:
    """Some seeds have an operator of members, some of these with one founder, and none with real
    files or callers of peers' ports, which know the founders alone."""
    drawn = [options for options in map(draw, range(1, 201)) if options.is_changing]
    assert 20 < len(drawn) < 100
    assert {1, 3} <= {options.replicas for options in drawn}
    assert not any(options.is_on_files or options.rude_peers for options in drawn)


@pytest.mark.parametrize(
    "plant",
    [pytest.param(each, marks=marks(each)) for each in EPOCH_PLANTS],
    ids=lambda plant: plant.bug.__name__,
)
def test_a_story_finds_a_bug_of_membership(plant: EpochPlant) -> None:
    """Each story of the table ends badly with its bug."""
    with pytest.MonkeyPatch.context() as planting:
        plant.bug(planting)
        outcome = WorldStory((STORIES / f"{plant.story}.txt").read_text()).play()
    assert not outcome.is_good
