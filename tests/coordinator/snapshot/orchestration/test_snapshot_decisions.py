"""The decision table: complete, and what its rows must never say."""

from __future__ import annotations

from itertools import product

from coordinator.snapshot.decisions import (
    DECISIONS,
    ENDED_BY_DEADLINE,
    Action,
    CatalogState,
    LocalState,
    Situation,
    decide,
)

ALL = {Situation(*each) for each in product(CatalogState, LocalState, (False, True))}


def test_every_situation_is_decided() -> None:
    """The table has a row for each situation there can be, and no other."""
    assert DECISIONS.keys() == ALL
    assert ENDED_BY_DEADLINE < ALL


def test_adoption_needs_both() -> None:
    """Adopted is what the log has completed and what is durable here, once."""
    adopting = [situation for situation in ALL if DECISIONS[situation] is Action.ADOPT]
    assert adopting == [Situation(CatalogState.COMPLETED, LocalState.DURABLE, False)]


def test_what_is_adopted_stays() -> None:
    """No row deletes, writes anew or fails what the replica restarts from, whatever the hour."""
    for situation in ALL:
        if situation.is_adopted:
            for is_overdue in (False, True):
                action = decide(situation, is_overdue)
                assert action in (Action.NONE, Action.REPORT, Action.IMPOSSIBLE), situation


def test_the_log_is_not_contradicted() -> None:
    """Nothing is proposed about a generation that is decided."""
    for situation in ALL:
        if situation.catalog not in (CatalogState.ASKED, CatalogState.CUT):
            for is_overdue in (False, True):
                action = decide(situation, is_overdue)
                assert action not in (Action.BEGIN, Action.COMPLETE, Action.FAIL), situation


def test_deadline_ends_what_would_wait_for_ever() -> None:
    """A generation that is undecided is failed at its deadline, unless this replica began with it.

    Nor if it is agreed upon: then it is completed, whatever is here.
    """
    for situation in ALL:
        is_open = situation.catalog in (CatalogState.ASKED, CatalogState.CUT)
        if is_open and DECISIONS[situation] is not Action.IMPOSSIBLE:
            wanted = Action.REPORT if situation.is_adopted else Action.FAIL
            assert decide(situation, is_overdue=True) is wanted, situation
        else:
            assert decide(situation, is_overdue=True) is DECISIONS[situation]


def test_agreement_completes_what_is_cut() -> None:
    """What a majority has is completed, also if it is late and not here; nothing else changes."""
    for situation in ALL:
        is_cut = situation.catalog is CatalogState.CUT
        is_open = is_cut and DECISIONS[situation] is not Action.IMPOSSIBLE
        for is_overdue in (False, True):
            action = decide(situation, is_overdue, is_agreed=True)
            wanted = Action.COMPLETE if is_open else decide(situation, is_overdue)
            assert action is wanted, situation
