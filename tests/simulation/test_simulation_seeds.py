"""Whole clusters under faults: short runs here, a campaign of longer ones in `make test-long`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from tests.simulation import campaign
from tests.simulation.options import FAULT_KINDS_MIN, FaultKind, Options, Scale, draw
from tests.simulation.outcome import Outcome, command, run_seed, shrink

ROOT: Final = Path(__file__).parents[2]
QUICK_SEEDS: Final = range(1, 21)
LONG_SEEDS: Final = 120
# Runs that once showed a bug, by what the seed draws and what was changed of it.
FOUND_BUGS: Final[tuple[tuple[str, Options], ...]] = tuple(
    (name, replace(draw(seed, Scale.QUICK), faults=faults, standby_count=0))
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
        ("a founder that missed the founding is a voter", 1, frozenset()),
        ("one more whose first entry came late", 4, frozenset()),
    )
)


def check(outcome: Outcome) -> None:
    """Fail with what led to it."""
    if not outcome.is_good:
        pytest.fail("\n".join([*outcome.transcript, outcome.failure]))


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_seed(seed: int) -> None:
    """Whatever goes wrong, every promise holds; and once nothing does, everyone is served."""
    options = draw(seed, Scale.QUICK)

    outcome = run_seed(options)

    check(outcome)
    assert outcome.commands >= options.commands


@pytest.mark.parametrize(("name", "options"), FOUND_BUGS, ids=[name for name, _ in FOUND_BUGS])
def test_seed_that_found_a_bug(name: str, options: Options) -> None:
    """What once went wrong goes well."""
    check(run_seed(options))


def test_a_seed_is_the_same_run_every_time() -> None:
    """Neither the process nor its hash seed changes anything that happens."""
    code = (
        "from tests.simulation.options import draw\n"
        "from tests.simulation.outcome import run_seed\n"
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


def test_campaign_seeds_have_work_and_trouble() -> None:
    """A campaign's seeds have at least 500 commands, and three kinds of faults where possible."""
    for seed in range(1, 200):
        options = draw(seed, Scale.CAMPAIGN)

        assert options.commands >= 500
        assert len(options.faults) >= FAULT_KINDS_MIN


def test_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    """Seeds of the state file are not run again, and count."""
    state, console = tmp_path / "state.jsonl", Console(quiet=True)

    first = campaign.run(range(1, 3), Scale.QUICK, 1, state, console)
    state.write_text(state.read_text().replace('"ops": ', '"ops": 9'))
    again = campaign.run(range(1, 4), Scale.QUICK, 1, state, console)

    assert len(first) == 2
    assert len(again) == 3
    assert [outcome.ops for outcome in again[:2]] == [int(f"9{o.ops}") for o in first]
    assert len([json.loads(line) for line in state.read_text().splitlines()]) == 3


def test_other_code_starts_its_campaign_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found with other code does not count."""
    state = tmp_path / "state.jsonl"
    campaign.save(state, [Outcome(1)])

    assert len(campaign.load(state)) == 1
    monkeypatch.setattr(campaign, "fingerprint", lambda: "other code")
    assert campaign.load(state) == []


def test_campaign_that_ran_nothing_fails() -> None:
    """No seeds, idle seeds and failed seeds are problems, each named."""
    good = Outcome(1, commands=Scale.CAMPAIGN.value)
    idle, bad = Outcome(2, commands=3), Outcome(3, kind="Liveness", failure="Liveness at 1 ms")

    assert campaign.problems([], Scale.CAMPAIGN) == ["no seed was run"]
    assert campaign.problems([good], Scale.CAMPAIGN) == []
    assert len(campaign.problems([good, idle, bad], Scale.CAMPAIGN)) == 2
    assert campaign.report([good, bad], Scale.CAMPAIGN, Console(quiet=True)) == 1


def test_failure_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults and commands that a failure does not need are taken away; the command says so."""
    drawn = draw(7, Scale.QUICK)

    def fails_with_loss(options: Options) -> Outcome:
        is_bad = FaultKind.LOSS in options.faults and options.commands > 8
        return Outcome(options.seed, kind="OneHistory" if is_bad else "", counts=Counter())

    monkeypatch.setattr("tests.simulation.outcome.run_seed", fails_with_loss)
    options, _ = shrink(replace(drawn, faults=drawn.faults | {FaultKind.LOSS}), "OneHistory")

    assert options.faults == {FaultKind.LOSS}
    assert 8 < options.commands <= 16
    assert command(options, drawn) == (
        f"python -m tests.simulation --seed 7 --commands {options.commands} --only loss"
    )


@pytest.mark.long
def test_campaign_of_long_seeds() -> None:
    """A short campaign: every seed good, and every kind of fault and view change met."""
    console = Console(width=100)

    outcomes = campaign.run(range(1, LONG_SEEDS + 1), Scale.CAMPAIGN, 2, None, console)

    assert campaign.report(outcomes, Scale.CAMPAIGN, console) == 0
    total = sum((outcome.counts for outcome in outcomes), Counter())
    wanted = [f"fault {kind.value}" for kind in FaultKind] + ["sent StartView", "job adopt"]
    assert [name for name in wanted if not total[name]] == []
