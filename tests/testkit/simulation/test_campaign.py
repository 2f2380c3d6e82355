"""Campaigns: their seeds, their records, and when they do not count."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from coordinator.vsr import log_selection
from testkit.simulation import campaign, document, outcome
from testkit.simulation.branches import counted
from testkit.simulation.figures import (
    EXCUSED,
    FAULTS_MIN,
    MARK_MIN,
    TRANSFERS_MIN,
    WHOLE_SEEDS,
    markdown,
    required,
    shortfalls,
)
from testkit.simulation.fingerprint import ENTRY, ROOT, closure
from testkit.simulation.marks import Marks
from testkit.simulation.options import FAULT_KINDS_MIN, FaultKind, Scale, draw
from testkit.simulation.outcome import NoEnd, Outcome, bounded_cpu, run_seed
from testkit.simulation.schedule import Schedule

QUIET = Console(quiet=True)
LONG_SEEDS = 120


def whole(counts: Counter[str]) -> list[Outcome]:
    """A campaign of the full size in which all that happened did so in its first seed."""
    commands = Scale.CAMPAIGN.value
    first = Outcome(1, commands=commands, counts=counts)
    return [first, *(Outcome(seed, commands=commands) for seed in range(2, WHOLE_SEEDS + 1))]


def test_campaign_seeds_have_work_and_trouble() -> None:
    """A campaign's seeds have at least 500 commands, and three kinds of faults where possible."""
    for seed in range(1, 200):
        options = draw(seed, Scale.CAMPAIGN)

        assert options.commands >= 500
        assert len(options.faults) >= FAULT_KINDS_MIN


def test_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    """Seeds of the state file are not run again, and count."""
    state = tmp_path / "state.jsonl"

    runner = campaign.runner(Scale.QUICK)
    first = runner.run(range(1, 3), 1, state, QUIET)
    state.write_text(state.read_text().replace('"ops": ', '"ops": 9'))
    again = runner.run(range(1, 4), 1, state, QUIET)

    assert len(first) == 2
    assert len(again) == 3
    assert [outcome.ops for outcome in again[:2]] == [int(f"9{o.ops}") for o in first]
    assert len([json.loads(line) for line in state.read_text().splitlines()]) == 3


def test_other_code_starts_its_campaign_anew(tmp_path: Path) -> None:
    """Results of other code do not count."""
    state, runner = tmp_path / "state.jsonl", campaign.runner(Scale.QUICK)
    runner.save(state, [Outcome(1)])

    assert len(runner.load(state)) == 1
    assert replace(runner, code=lambda: "other code").load(state) == []


def test_fingerprint_covers_what_a_run_imports() -> None:
    """The core, the disk and the models are part of it; reports, tests and transports are not."""
    names = {str(path.relative_to(ROOT)) for path in closure(ROOT, ENTRY)}

    assert {
        "coordinator/vsr/replica.py",
        "coordinator/journal/__init__.py",
        "services/streams/domain.py",
        "testkit/memory_storage.py",
        "testkit/composite/model.py",
        "testkit/simulation/nemesis.py",
        "viewstamp/limits.py",
    } <= names
    assert not [name for name in names if "/test_" in name]
    assert not names & {"testkit/simulation/campaign.py", "testkit/simulation/figures.py"}


def test_closure_follows_every_form_of_import(tmp_path: Path) -> None:
    """Packages, modules of packages, names in modules and imports within functions are followed."""
    for name, text in {
        "a/__init__.py": "",
        "a/first.py": "import a.second\nfrom a import third\nimport json\n",
        "a/second.py": "def late():\n    from a.fourth import thing\n",
        "a/third.py": "",
        "a/fourth.py": "thing = 1\n",
        "a/other.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    found = {path.name for path in closure(tmp_path, "a.first")}

    assert found == {"__init__.py", "first.py", "second.py", "third.py", "fourth.py"}


def test_campaign_that_ran_nothing_fails() -> None:
    """No seeds, idle seeds and failed seeds are problems, each named."""
    good = Outcome(1, commands=Scale.CAMPAIGN.value)
    idle, bad = Outcome(2, commands=3), Outcome(3, kind="Liveness", failure="Liveness at 1 ms")

    assert campaign.problems([], Scale.CAMPAIGN) == ["no seed was run"]
    assert campaign.problems([good], Scale.CAMPAIGN) == []
    assert len(campaign.problems([good, idle, bad], Scale.CAMPAIGN)) == 2
    assert campaign.report([good, bad], Scale.CAMPAIGN, QUIET) == 1


def test_whole_campaign_needs_every_fault_transfer_and_mark() -> None:
    """One fault of 999, 99 transfers or a mark of 9 fail a whole campaign, which names it."""
    enough = Counter(required())
    too_few = Counter(enough)
    too_few["fault rot"] = FAULTS_MIN - 1
    too_few["state transfer"] = TRANSFERS_MIN - 1
    too_few["dropped stale_pre_vote"] = MARK_MIN - 1

    assert campaign.report(whole(enough), Scale.CAMPAIGN, QUIET) == 0
    assert campaign.report(whole(too_few), Scale.CAMPAIGN, QUIET) == 1
    assert [line.partition(":")[0] for line in shortfalls(whole(too_few))] == [
        "dropped stale_pre_vote",
        "fault rot",
        "state transfer",
    ]


def test_short_campaign_is_judged_by_its_seeds_alone() -> None:
    """A part of a campaign reports what it would amount to, and does not fail for it."""
    part = whole(Counter({"fault rot": 1}))[:200]

    assert "fault rot: 1 in 200 seeds, 1,000 in 2,000 are wanted" in shortfalls(part)
    assert campaign.report(part, Scale.CAMPAIGN, QUIET) == 0


def test_required_counts_cover_every_fault_and_excuse_nothing_twice() -> None:
    """Each kind of fault is required a thousand times, and excused ones not at all."""
    counts = required()

    assert all(counts[f"fault {kind.value}"] == FAULTS_MIN for kind in FaultKind)
    assert not counts.keys() & EXCUSED.keys()
    assert all(reason for reason in EXCUSED.values())


def test_figures_are_written_as_tables(tmp_path: Path) -> None:
    """The markdown names the seeds, the violations, each fault and the rarest marks."""
    text = markdown(whole(Counter(required())))

    assert "| seeds | 2,000 |" in text
    assert "| violations | 0 |" in text
    assert "| rot | 1,000 | 1 |" in text


def test_figures_go_between_two_comments_of_a_page(tmp_path: Path) -> None:
    """The text around the comments stays, and a page with only one of them is refused."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n")

    document.write(page, "figures", "new\n")

    assert page.read_text() == "before\n<!-- figures -->\nnew\n<!-- end of figures -->\nafter\n"
    page.write_text("<!-- figures -->\n")
    with pytest.raises(ValueError, match="has not both"):
        document.write(page, "figures", "new\n")


def test_run_without_end_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that loops within one event ends as a failure, and the campaign goes on."""

    def spin(self: Schedule) -> bool:
        while True:
            pass

    monkeypatch.setattr(Schedule, "step", spin)
    monkeypatch.setattr(outcome, "SEED_CPU_S_MAX", 0.2)

    ended = run_seed(draw(1, Scale.QUICK))

    assert ended.kind == "NoEnd"
    assert "0.2 s of processor time" in ended.failure


def test_run_in_time_is_left_alone() -> None:
    """The bound ends with the run: later work may take any time."""
    with bounded_cpu(0.05):
        pass

    began = time.process_time()
    while time.process_time() - began < 0.1:
        pass
    with pytest.raises(NoEnd), bounded_cpu(0.05):
        while True:
            pass


def test_branches_are_counted_only_while_a_run_lasts() -> None:
    """The functions of the core are unwrapped once the run is over."""
    real, marks = log_selection.choose, Marks()

    with counted(marks):
        assert log_selection.choose is not real
    assert log_selection.choose is real


@pytest.mark.long
def test_campaign_of_long_seeds() -> None:
    """A short campaign: every seed good, and every kind of fault and view change met."""
    console = Console(width=100)

    outcomes = campaign.runner(Scale.CAMPAIGN).run(range(1, LONG_SEEDS + 1), 2, None, console)

    assert campaign.report(outcomes, Scale.CAMPAIGN, console) == 0
    total = sum((each.counts for each in outcomes), Counter())
    wanted = [f"fault {kind.value}" for kind in FaultKind]
    wanted += ["sent StartView", "job adopt", "state transfer"]
    assert [name for name in wanted if not total[name]] == []
