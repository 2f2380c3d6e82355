"""Checkers watch the shipped programs: a broken promise ends the run at once and is named.

Method: a bug takes the place of a function of the product while a small cluster works.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.vsr import commit, replica
from testkit.world import observer
from testkit.world.options import WorldOptions
from testkit.world.run import WorldOutcome
from testkit.world.seeds import kinds_of, run_seed

QUIET = WorldOptions(seconds=2, faults=())


def test_a_broken_promise_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A primary that commits alone is found before any client is there, by the checker's name."""
    monkeypatch.setattr(commit, "has_quorum", lambda state, op: True)
    monkeypatch.setattr(replica, "check_step", lambda before, state: None)

    outcome = run_seed(1, QUIET)

    assert outcome.checker == "CommittedOnQuorum"
    assert [violation.partition(":")[0] for violation in outcome.violations] == [outcome.checker]
    assert outcome.answered == 0
    assert any("fails: CommittedOnQuorum" in line for line in outcome.story)


def test_checkers_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that nobody watches is the same run."""
    options = replace(QUIET, seconds=1)
    watched = run_seed(2, options)
    monkeypatch.setattr(observer.Observer, "watch", lambda self, replica: None)
    monkeypatch.setattr(observer, "CHECKERS", ())

    assert run_seed(2, options).digest == watched.digest
    assert watched.answered > 0


def test_runs_in_which_one_checker_complains_fail_alike() -> None:
    """Shrinking goes by the checker, whatever it says of the run."""
    first = WorldOutcome(1, violations=["OneHistory: op 3 on replica 1"], checker="OneHistory")
    other = replace(first, violations=["OneHistory: op 3 continues another history"])
    assert kinds_of(first) == kinds_of(other) == {"OneHistory"}
    assert kinds_of(replace(first, checker="")) != kinds_of(replace(other, checker=""))
