"""The decision table of recovery: total, unambiguous, and as the design says."""

from __future__ import annotations

import itertools

import pytest

from viewstamp.format.recovery_table import (
    DECISIONS,
    Facts,
    RecoveryDecision,
    decide,
    is_above_commit,
)

ALL_FACTS = [Facts(*values) for values in itertools.product((True, False), repeat=6)]


@pytest.mark.parametrize("facts", ALL_FACTS)
def test_exactly_one_row_matches(facts: Facts) -> None:
    """Exactly one row decides for each combination of facts."""
    assert sum(row.matches(facts) for row in DECISIONS) == 1


@pytest.mark.parametrize("facts", ALL_FACTS)
def test_decisions_are_the_design(facts: Facts) -> None:
    """The table agrees with the prose rules, which stand here a second time as conditions."""
    unacknowledged = facts.above_durable and facts.above_commit
    if facts.intact:
        expected = RecoveryDecision.KEEP
    elif facts.superseded:
        expected = RecoveryDecision.REFUSE if facts.single else RecoveryDecision.IGNORE
    elif facts.single:
        expected = RecoveryDecision.CUT if unacknowledged else RecoveryDecision.REFUSE
    elif unacknowledged:
        expected = RecoveryDecision.CUT if facts.torn else RecoveryDecision.FAULTY_TORN
    else:
        expected = RecoveryDecision.FAULTY_CORRUPT
    assert decide(facts) is expected


def test_every_row_is_reachable() -> None:
    """No row is dead: each decides some combination of facts."""
    used = {row for row in DECISIONS for facts in ALL_FACTS if row.matches(facts)}
    assert used == set(DECISIONS)


def test_facts_that_no_row_matches_are_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that lost its rows decides nothing, and says for which facts."""
    monkeypatch.setattr("viewstamp.format.recovery_table.DECISIONS", ())
    with pytest.raises(AssertionError, match="no row of the recovery table matches Facts"):
        decide(ALL_FACTS[0])


@pytest.mark.parametrize(
    ("op", "inferred_op", "expected"),
    [(None, None, False), (None, 7, False), (None, 8, True), (7, 8, False), (8, 7, True)],
)
def test_an_op_of_its_own_tells_more_than_a_place(
    op: int | None, inferred_op: int | None, expected: bool
) -> None:
    """What is lost is above commit 7 by its own op, else by its place, and never without either."""
    assert is_above_commit(op, inferred_op, 7) is expected
