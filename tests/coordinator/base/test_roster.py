"""Who belongs to the cluster, as one replica sees it, from epoch to epoch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from coordinator.base.roster import Roster


@dataclass(frozen=True)
class RosterView:
    """What a roster says."""

    others: tuple[int, ...]
    is_standby: bool
    is_alone: bool
    majority: int


def seen(roster: Roster) -> RosterView:
    """Return what a roster says now."""
    return RosterView(roster.others, roster.is_standby, roster.is_alone, roster.majority)


@pytest.mark.parametrize(
    ("founding", "members", "expected"),
    [
        ((0, 1), None, RosterView((), is_standby=False, is_alone=True, majority=1)),
        ((1, 3), None, RosterView((0, 2), is_standby=False, is_alone=False, majority=2)),
        ((3, 3, 2), None, RosterView((0, 1, 2, 4), is_standby=True, is_alone=False, majority=2)),
        ((0, 1), ((0,), (1,)), RosterView((1,), is_standby=False, is_alone=True, majority=1)),
        ((0, 1), ((0, 1), ()), RosterView((1,), is_standby=False, is_alone=False, majority=2)),
        ((1, 2), ((1,), ()), RosterView((), is_standby=False, is_alone=True, majority=1)),
        ((1, 2), ((0,), (1,)), RosterView((0,), is_standby=True, is_alone=False, majority=1)),
        # Replica 1 was removed.
        (
            (1, 3),
            ((0, 2), (3,)),
            RosterView((0, 2, 3), is_standby=True, is_alone=False, majority=2),
        ),
        # Who leads when says nothing about ids.
        ((7, 1), ((9, 7, 8, 2), ()), RosterView((2, 8, 9), False, False, majority=3)),
        ((0, 3), ((4, 0, 3, 2, 1), ()), RosterView((1, 2, 3, 4), False, False, majority=3)),
    ],
)
def test_a_roster_says_who_belongs_and_who_votes(
    founding: tuple[int, ...],
    members: tuple[tuple[int, ...], tuple[int, ...]] | None,
    expected: RosterView,
) -> None:
    """The ids of a new cluster count from 0; later ones are those of the epoch."""
    roster = Roster.founding(*founding)
    if members is not None:
        roster.enter(*members)
    assert seen(roster) == expected


def test_who_follows_sees_the_new_members() -> None:
    """Everybody who follows is called once for each epoch, and finds its members."""
    roster = Roster.founding(0, 3)
    found: list[tuple[str, tuple[int, ...]]] = []
    for name in ("one", "two"):
        roster.follow(lambda name=name: found.append((name, roster.others)))  # type: ignore[misc]
    assert found == []
    roster.enter((0, 1), (5,))
    roster.enter((0, 1, 5), ())
    assert found == [("one", (1, 5)), ("two", (1, 5))] * 2
