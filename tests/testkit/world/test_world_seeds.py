"""Seeds of the world: what they draw, how they shrink, what is told of them, and campaigns.

Method: the search for a smaller run gets a run that fails by a rule; then one with a real defect.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from testkit.campaigns import ledger
from testkit.campaigns.campaign import SeedRunner
from testkit.checkers.disk_checkers import DurableIsDurable
from testkit.plants.core_bugs import disks_lie
from testkit.world import campaign, observer
from testkit.world.__main__ import main
from testkit.world.branches import NAMES
from testkit.world.campaign import TIMES_MIN, WHOLE_SEEDS
from testkit.world.fault_plan import ALL_KINDS
from testkit.world.options import WorldOptions, draw
from testkit.world.run import WorldOutcome
from testkit.world.seeds import SHRINK_RUNS_MAX, command, kinds_of, run_seed, shrink

QUIET = Console(quiet=True)
FAILED = "r0 ended: AssertionError('at op 17')"


class Rule:
    """A run that fails if certain faults are left, and counts how often it was asked."""

    def __init__(self, *needed: int, seconds: int = 1) -> None:
        self.runs = 0
        self._needed = set(needed)
        self._seconds = seconds

    def __call__(self, seed: int, options: WorldOptions) -> WorldOutcome:
        """Run the rule."""
        self.runs += 1
        fails = not self._needed & options.dropped and options.seconds >= self._seconds
        return WorldOutcome(seed, violations=[FAILED.replace("17", str(self.runs))] * fails)


def test_seeds_draw_different_sizes_and_faults() -> None:
    """Seeds have 1 to 5 voters, up to two standbys, and every kind of fault is drawn."""
    drawn = [draw(seed) for seed in range(1, 200)]
    assert {each.replicas for each in drawn} == {1, 2, 3, 4, 5}
    assert {each.standbys for each in drawn} == {0, 1, 2}
    assert {each.standbys for each in drawn if each.replicas == 1} == {0}
    assert {kind for each in drawn for kind in each.faults} == set(ALL_KINDS)


def test_shrinking_leaves_what_a_failure_needs() -> None:
    """Of all planned faults only the two are left without which the run does not fail."""
    options = WorldOptions(seconds=10)
    planned = options.planned(1)
    assert len(planned) > 5
    rule = Rule(2, 5)
    smallest, outcome = shrink(options, rule(1, options), rule)
    assert {fault.number for fault in planned} - smallest.dropped == {2, 5}
    assert smallest.seconds == planned[5].at_ms // 1_000 + 1
    assert (smallest.clients, smallest.callers) == (1, 1)
    assert kinds_of(outcome) == {"r# ended: AssertionError('at op #')"}
    assert rule.runs <= SHRINK_RUNS_MAX


def test_shrinking_keeps_the_failure() -> None:
    """A run that fails in another way is no smaller form of the failure."""
    options = WorldOptions(seconds=10)

    def run(seed: int, tried: WorldOptions) -> WorldOutcome:
        return WorldOutcome(seed, violations=["another one"] if tried.dropped else [FAILED])

    smallest, outcome = shrink(options, run(1, options), run)
    assert smallest.dropped == frozenset()
    assert outcome.violations == [FAILED]


def test_the_command_of_a_run_names_what_differs() -> None:
    """What is printed runs exactly these options again."""
    drawn = draw(4)
    options = replace(drawn, dropped=frozenset({3, 1}), seconds=drawn.seconds + 1)
    assert command(4, drawn, drawn) == "python -m testkit.world --seed 4"
    assert command(4, options, drawn) == (
        f"python -m testkit.world --seed 4 --seconds {options.seconds} --drop 1,3"
    )


@pytest.mark.exhaustive
def test_a_planted_defect_shrinks_to_a_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A seed that fails since its disks lie is told with the few losses of power that it takes."""
    # This checker would see the lie at once, and no loss of power would be needed.
    others = tuple(each for each in observer.CHECKERS if each is not DurableIsDurable)
    monkeypatch.setattr(observer, "CHECKERS", others)
    disks_lie(monkeypatch)
    asked = ["--seed=1", "--replicas=3", "--standbys=0", "--clients=2", "--callers=1"]
    asked += ["--seconds=3", "--faults=blackout,kill,pause_client", "--shrink"]
    assert main(asked) == 1
    told = capsys.readouterr().out
    assert "loses power" in told
    again = next(line for line in told.splitlines() if line.startswith("again: "))
    drawn = replace(draw(1), seconds=3, faults=("blackout", "kill", "pause_client"))
    assert told.index("loses power") < told.index("FAILED", told.index("loses power"))
    left = {fault.number: fault.kind for fault in drawn.planned(1)}
    for dropped in again.partition("--drop ")[2].split(","):
        del left[int(dropped)]
    assert set(left.values()) == {"blackout"}


def test_a_world_that_breaks_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the world itself fails the seed, and not the campaign."""
    monkeypatch.setattr("testkit.world.world.STEPS_MAX", 1_000)
    outcome = run_seed(1, draw(1))
    assert "TooManySteps" in outcome.violations[0]
    assert outcome.story != []


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    """Outcomes come back from the state file as they were, and their seeds are not run again."""
    state, asked = tmp_path / "state.jsonl", []

    def run(seed: int) -> WorldOutcome:
        asked.append(seed)
        counts = Counter({"kill": seed})
        return WorldOutcome(
            seed, "d", 5, 6, 7, 8, counts, counts, counts, ["bad"], "", 0.5, ["line"]
        )

    runner = SeedRunner(run, WorldOutcome, lambda: "code")
    first = runner.run(range(1, 3), 1, state, QUIET)
    again = runner.run(range(1, 4), 1, state, QUIET)
    assert asked == [1, 2, 3]
    assert again[:2] == first
    assert SeedRunner(run, WorldOutcome, lambda: "other").load(state) == []


def test_a_whole_campaign_needs_every_fault_and_branch() -> None:
    """A kind of fault that never happened fails a campaign of many seeds, which names it."""
    faults, branches = (Counter(dict.fromkeys(names, TIMES_MIN)) for names in (ALL_KINDS, NAMES))
    whole = [WorldOutcome(1, answered=5, faults=faults, branches=branches)]
    whole += [WorldOutcome(seed, answered=5) for seed in range(2, WHOLE_SEEDS + 1)]
    assert campaign.problems(whole) == []
    faults["rot"] -= 1
    assert campaign.problems(whole) == [
        f"fault rot: 9 times in 1,000 seeds, {TIMES_MIN} are wanted"
    ]
    assert campaign.problems(whole[:-1]) == []


def test_a_campaign_names_its_problems() -> None:
    """A campaign counts if seeds were run, each had an answer, and none failed."""
    good, idle = WorldOutcome(1, answered=5), WorldOutcome(2)
    bad = WorldOutcome(3, answered=5, violations=["first", "second"])
    assert campaign.problems([]) == ["no seed was run"]
    assert campaign.problems([good]) == []
    assert campaign.problems([good, idle, bad]) == [
        "seed 3: first",
        "seeds without an answered call: [2]",
    ]
    assert campaign.report([good], QUIET) == 0
    assert campaign.report([good, bad], QUIET) == 1


def test_figures_have_faults_and_branches() -> None:
    """The figures count a fault and a branch by times and by seeds."""
    counts = Counter({"kill": 3, "state transfer begun": 2})
    outcomes = [WorldOutcome(1, faults=counts, branches=counts), WorldOutcome(2)]
    text = campaign.markdown(outcomes)
    assert "| seeds | 2 |" in text
    assert "| kill | 3 | 1 |" in text
    assert "| state transfer begun | 2 | 1 |" in text


def test_campaigns_add_up(tmp_path: Path) -> None:
    """A campaign that goes on keeps its place in the ledger; other seeds and other code stay."""
    kept, counts = tmp_path / "ledger.jsonl", Counter({"kill": 3})
    outcomes = [WorldOutcome(seed, virtual_ms=60_000, answered=7, faults=counts) for seed in (1, 2)]
    ledger.record(kept, campaign.entry_of(outcomes[:1], "a" * 64))
    ledger.record(kept, campaign.entry_of(outcomes[1:], "b" * 64))
    ledger.record(kept, campaign.entry_of(outcomes, "a" * 64))
    assert [(each.code, each.first, each.count) for each in ledger.load(kept)] == [
        ("b" * 12, 2, 1),
        ("a" * 12, 1, 2),
    ]
    text = campaign.figures(outcomes, kept)
    assert "| aaaaaaaaaaaa | 1 to 2 | 0 | 2 min | 0 min | 14 | 6 |" in text
    assert "| all |  | 3 | 0 | 3 min | 0 min | 21 | 9 |" in text
