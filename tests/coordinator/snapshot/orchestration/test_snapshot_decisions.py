"""The decision table is complete, and its rows keep some rules."""

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
    """The table has exactly one row for each possible situation."""
    assert DECISIONS.keys() == ALL
    assert ENDED_BY_DEADLINE < ALL


def test_adoption_needs_both() -> None:
    """A generation is adopted once, when the log has completed it and it is durable here."""
    adopting = [situation for situation in ALL if DECISIONS[situation] is Action.ADOPT]
    assert adopting == [Situation(CatalogState.COMPLETED, LocalState.DURABLE, False)]


def test_what_is_adopted_stays() -> None:
    """No row deletes, rewrites or fails the generation that the replica restarts from."""
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
    """An undecided generation is failed at its deadline, unless this replica began with it.

    A generation that is agreed upon is completed instead, whatever is here.
    """
    for situation in ALL:
        is_open = situation.catalog in (CatalogState.ASKED, CatalogState.CUT)
        if is_open and DECISIONS[situation] is not Action.IMPOSSIBLE:
            wanted = Action.REPORT if situation.is_adopted else Action.FAIL
            assert decide(situation, is_overdue=True) is wanted, situation
        else:
            assert decide(situation, is_overdue=True) is DECISIONS[situation]


def test_agreement_completes_what_is_cut() -> None:
    """A majority's generation is completed, even late and absent here; nothing else changes."""
    for situation in ALL:
        is_cut = situation.catalog is CatalogState.CUT
        is_open = is_cut and DECISIONS[situation] is not Action.IMPOSSIBLE
        for is_overdue in (False, True):
            action = decide(situation, is_overdue, is_agreed=True)
            wanted = Action.COMPLETE if is_open else decide(situation, is_overdue)
            assert action is wanted, situation
