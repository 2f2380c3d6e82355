"""Whole clusters under faults: short runs, and runs that once found something."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from testkit.simulation.options import APART, FaultKind, Options, Scale, draw
from testkit.simulation.outcome import Outcome, command, run_seed, shrink
from viewstamp.limits import FORFEIT_LAG_OPS

ROOT: Final = Path(__file__).parents[3]
QUICK_SEEDS: Final = range(1, 21)
# Runs that once showed a bug: the draws of a seed, with some options replaced.
FOUND_BUGS: Final[tuple[tuple[str, Options], ...]] = tuple(
    (
        name,
        replace(
            draw(seed, Scale.QUICK),
            faults=faults - set(APART),
            standby_count=0,
            leanings=frozenset(),
            poorly_carried="",
            retain_ms=0,
            forfeit_lag_ops=FORFEIT_LAG_OPS,
        ),
    )
    for name, seed, faults in (
        (
            "a damaged tail is repaired in any order",
            32,
            draw(32, Scale.QUICK).faults - {FaultKind.LOST_DISK},
        ),
        (
            "what once was committed stays so in the superblock; old damage is handed out again",
            86,
            draw(86, Scale.QUICK).faults - {FaultKind.LOST_DISK},
        ),
        ("nothing is appended behind a damaged head", 29, draw(29, Scale.QUICK).faults),
        ("an initial member that missed the bootstrap is a voter", 1, frozenset()),
        ("one more whose first entry came late", 4, frozenset()),
    )
)


def check(outcome: Outcome) -> None:
    """Fail with the events that led to it."""
    if not outcome.is_good:
        pytest.fail("\n".join([*outcome.transcript, outcome.failure]))


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_seed(seed: int) -> None:
    """Every promise holds whatever fails, and once nothing fails everyone is served."""
    options = draw(seed, Scale.QUICK)

    outcome = run_seed(options)

    check(outcome)
    assert outcome.commands >= options.commands


@pytest.mark.parametrize(("name", "options"), FOUND_BUGS, ids=[name for name, _ in FOUND_BUGS])
def test_seed_that_found_a_bug(name: str, options: Options) -> None:
    """A seed that once found a bug finds none."""
    check(run_seed(options))


def test_a_seed_is_the_same_run_every_time() -> None:
    """Neither the process nor its hash seed changes any event."""
    code = (
        "from testkit.simulation.options import draw\n"
        "from testkit.simulation.outcome import run_seed\n"
        "for seed in (3, 11):\n"
        "    outcome = run_seed(draw(seed))\n"
        "    print(outcome.simulated_ms, outcome.ops, sorted(outcome.counts.items()))\n"
    )

    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(printed) == 1


def test_a_view_that_changes_is_struck_only_by_what_the_seed_has() -> None:
    """A seed may have nothing but primaries that resign: no other trouble can come with that."""
    drawn = draw(3, Scale.QUICK)
    faults = frozenset({FaultKind.STEP_DOWN})

    outcome = run_seed(replace(drawn, faults=faults, is_ambushed=True, fault_interval_ms=100))

    assert outcome.failure == ""
    assert outcome.counts["fault step_down"] > 10


def test_failure_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults and commands that a failure does not need are taken away; the command says so."""
    drawn = draw(7, Scale.QUICK)

    def fails_with_loss(options: Options) -> Outcome:
        is_bad = FaultKind.LOSS in options.faults and options.commands > 8
        return Outcome(options.seed, kind="OneHistory" if is_bad else "", counts=Counter())

    monkeypatch.setattr("testkit.simulation.outcome.run_seed", fails_with_loss)
    options, _ = shrink(replace(drawn, faults=drawn.faults | {FaultKind.LOSS}), "OneHistory")

    assert options.faults == {FaultKind.LOSS}
    assert 8 < options.commands <= 16
    assert command(options, drawn) == (
        f"python -m testkit.simulation --seed 7 --commands {options.commands} --only loss"
    )
