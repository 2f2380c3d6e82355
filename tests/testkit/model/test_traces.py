"""Runs of the simulator, checked against the specification."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from testkit.model.recorder import RunRecorder
from testkit.model.traces import record, validate

# TLC takes a second for each few changes.
pytestmark = pytest.mark.long

SEED = 5
CHANGES = 60
FEW = 10


@cache
def recorded(changes: int) -> RunRecorder:
    return record(SEED, changes)


def with_last_change(**fields: object) -> RunRecorder:
    """The recorded run, with another last change."""
    real = recorded(FEW)
    changes = [*real.changes[:-1], replace(real.changes[-1], **fields)]  # type: ignore[arg-type]
    return replace(real, changes=changes)


def test_a_run_of_the_simulator_is_an_execution_of_the_specification() -> None:
    """TLC explains each change of a run with crashes and view changes by actions."""
    verdict = validate(recorded(CHANGES))

    assert verdict.rejected is None
    assert verdict.changes == CHANGES
    assert max(change.view for change in recorded(CHANGES).changes) > 0


@pytest.mark.parametrize("field", ["log", "log_view", "durable_op"])
def test_a_wrong_transition_is_rejected(field: str) -> None:
    """A change that no action explains is named: an entry that no primary made, a log view without
    votes, a record that was never written."""
    last = recorded(FEW).changes[-1]
    fields = {
        "log": (*last.log, 1_999_000),
        "log_view": last.log_view + 1,
        "durable_op": last.durable_op + 1,
    }
    wrong = with_last_change(**{field: fields[field]})

    verdict = validate(wrong)

    assert verdict.rejected == wrong.changes[-1]
    assert verdict.accepted == FEW - 1
