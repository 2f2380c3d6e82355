"""Histories of topics as registers: what the judge is spared, with the same verdict."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.oracles import wing_gong
from testkit.oracles.history import Operation
from testkit.world.workload import (
    ABSENT,
    CREATE,
    DELETE,
    DONE,
    EXISTS,
    GET,
    REGISTER,
    unseen_alike,
)

OUTPUTS = {CREATE: (DONE, EXISTS), DELETE: (DONE, ABSENT), GET: (ABSENT, 1, 2, 3, 4, 5, 6)}
STEPS_MAX = 200_000


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Up to 8 operations at random times with random answers, many with none."""
    history = []
    for number in range(1, draw(st.integers(1, 9))):
        kind = draw(st.sampled_from([CREATE, CREATE, DELETE, GET]))
        argument = number if kind == CREATE else 0
        called = draw(st.integers(0, 8))
        if kind != GET and draw(st.booleans()):
            history.append(Operation(number, kind, argument, called))
            continue
        returned = called + draw(st.integers(1, 5))
        output = draw(st.sampled_from(OUTPUTS[kind]))
        history.append(Operation(number, kind, argument, called, returned, output))
    return history


def is_linearizable(history: Sequence[Operation]) -> bool:
    """Return the judge's verdict. Raises Undecided."""
    return wing_gong.linearization(history, REGISTER, steps_max=STEPS_MAX) is not None


@settings(max_examples=500)
@given(histories())
def test_the_verdict_does_not_depend_on_what_nobody_saw(history: list[Operation]) -> None:
    """With creations that nobody saw made alike, random histories are judged as before."""
    assert is_linearizable(unseen_alike(history)) == is_linearizable(history)


def with_many_unknown(*, ends_well: bool) -> list[Operation]:
    """Twenty creations and twenty deletions without an answer; then a topic comes and goes again
    and again, as if some of them had taken effect. The last read may see what nobody created."""
    lost = [Operation(number, CREATE, number, number) for number in range(1, 21)]
    lost += [Operation(number, DELETE, 0, number) for number in range(21, 41)]
    seen = []
    for at in range(100, 300, 20):
        seen.append(Operation(41, CREATE, at, at, at + 1, EXISTS if at % 40 else DONE))
        seen.append(Operation(41, DELETE, 0, at + 2, at + 3, DONE))
        seen.append(Operation(41, GET, 0, at + 4, at + 5, ABSENT))
    return [*lost, *seen, Operation(41, GET, 0, 400, 401, ABSENT if ends_well else 999)]


@pytest.mark.parametrize("ends_well", [True, False])
def test_many_creations_that_nobody_saw_are_judged(*, ends_well: bool) -> None:
    """A history whose search would not end otherwise is decided (seed 1678 of a campaign)."""
    history = with_many_unknown(ends_well=ends_well)
    assert is_linearizable(unseen_alike(history)) is ends_well


def test_without_that_it_could_not_be_judged() -> None:
    """The same history, as it is, is given up."""
    with pytest.raises(wing_gong.Undecided):
        is_linearizable(with_many_unknown(ends_well=False))
