"""The specification of the protocol: what TLC checks, and what it must find."""

from __future__ import annotations

import re

import pytest

from testkit.model import __main__ as models
from testkit.model import guards
from testkit.model.__main__ import LONG_MODELS, MODELS
from testkit.model.bounds import INVARIANTS, PROPERTY, TlaBounds
from testkit.model.checker import SPECIFICATION, TlcFailed, TlcVerdict, check, verdict_of
from testkit.model.removals import REMOVALS
from testkit.model.scripts import script

TINY = TlaBounds()
FOUND = TlcVerdict("OneHistory", 10, 3, 1.0, ("ClientBatch", "EnterView", "Crash"))
NOTHING = TlcVerdict("", 10, 3, 1.0)


def text_of_specification() -> str:
    return "\n".join(path.read_text() for path in sorted(SPECIFICATION.glob("*.tla")))


def test_a_tiny_cluster_keeps_its_promises() -> None:
    """TLC visits every state of one batch and one view change, and finds nothing."""
    verdict = check(TINY)

    assert verdict.violated == ""
    assert verdict.states > 100
    assert verdict.depth > 5


def test_tlc_finds_a_removed_guard() -> None:
    """Without the guard that waits for the disk, TLC shows an entry that too few disks have."""
    (removal,) = (each for each in REMOVALS if each.name == "AckDurable")

    verdict = check(removal.planted)

    assert verdict.violated == "CommittedOnQuorum"
    assert verdict.path[-1] == "CommitAdvance"


def test_a_script_leads_to_a_moment_that_a_guard_prevents() -> None:
    """Along its script TLC finds that an old vote loses an entry, and not with the guard."""
    (removal,) = (each for each in REMOVALS if each.name == "ViewsForgotten")

    assert check(removal.planted).violated == "AcknowledgedIsKept"
    assert check(removal.bounds).violated == ""


def test_a_script_names_actions_that_the_specification_goes_through() -> None:
    """A misspelt action would end a script before its moment."""
    text = (SPECIFICATION / "Directed.tla").read_text()
    steps = [step for removal in REMOVALS for step in removal.bounds.steps]

    assert len(steps) > 50
    assert all(f'step = "{name}"' in text for name, _, _ in steps)


def test_a_line_of_a_script_is_an_action_with_its_replica_and_view() -> None:
    """Only EnterView has a view; the others have 0 in its place."""
    assert script("EnterView 3 1\n  ChooseLog 2\n") == (("EnterView", 3, 1), ("ChooseLog", 2, 0))


def test_each_guard_of_the_specification_is_removed_once() -> None:
    """The table of removals has exactly the guards and assumptions that the modules name."""
    named = re.findall(r'"(\w+)" \\notin Removed', text_of_specification())

    assert sorted(named) == sorted(removal.name for removal in REMOVALS)


def test_each_promise_is_defined() -> None:
    """The names that TLC is given are definitions of the specification."""
    text = text_of_specification()

    assert all(re.search(rf"^{name} ==", text, re.MULTILINE) for name in (*INVARIANTS, PROPERTY))


def test_each_constant_has_a_value() -> None:
    """A configuration gives a value to each constant that the modules declare."""
    blocks = re.findall(r"^CONSTANTS\n((?: .*\n)+)", text_of_specification(), re.MULTILINE)
    declared = re.findall(r"^    (\w+)", "".join(blocks), re.MULTILINE)
    given = re.findall(r"^    (\w+) = ", TINY.configuration(), re.MULTILINE)

    assert sorted(declared) == sorted(given)


def test_models_that_are_checked_have_all_guards() -> None:
    """No configuration of `make model` leaves a guard out."""
    assert not [name for name, model in {**MODELS, **LONG_MODELS}.items() if model.removed]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "Model checking completed. No error has been found.\n"
            "3546 states generated, 683 distinct states found, 0 states left on queue.\n"
            "The depth of the complete state graph search is 13.\n",
            ("", 683, 13),
        ),
        (
            "Error: Invariant OneHistory is violated.\n"
            "348 states generated, 105 distinct states found, 68 states left on queue.\n",
            ("OneHistory", 105, 0),
        ),
        (
            "Error: Action property line 4, col 5 to line 8, col 9 of module M is violated.\n"
            "348 states generated, 105 distinct states found, 68 states left on queue.\n",
            (PROPERTY, 105, 0),
        ),
    ],
    ids=["everything_holds", "invariant", "action_property"],
)
def test_what_tlc_prints_is_a_verdict(output: str, expected: tuple[str, int, int]) -> None:
    """The verdict names what does not hold, the distinct states and the depth."""
    verdict = verdict_of(output, 1.0)

    assert (verdict.violated, verdict.states, verdict.depth) == expected


def test_a_run_that_ended_early_is_no_verdict() -> None:
    """An error in the specification does not pass for a specification that holds."""
    with pytest.raises(TlcFailed, match="Unknown operator"):
        verdict_of("Unknown operator: `Advnce'.\nFinished in 00s", 1.0)


def test_the_table_of_models_tells_what_came_of_each() -> None:
    """A cluster whose states were all visited has figures, and one without a result has why."""
    table = models.markdown({"whole": NOTHING, "ended": "not done after 5 s"})

    assert "| whole | 10 | 3 | 1 | 0 | everything holds |" in table
    assert "not done after 5 s |" in table


def test_a_removal_that_breaks_nothing_is_a_problem() -> None:
    """A guard that can be removed fails the run, unless its row says why."""
    assert guards.problem(REMOVALS[0], NOTHING) is not None
    assert guards.problem(REMOVALS[0], FOUND) is None


def test_the_table_names_what_broke() -> None:
    """Each row has the guard, the promise that it broke, and the steps that lead there."""
    table = guards.markdown({REMOVALS[0].name: FOUND})

    assert f"| {REMOVALS[0].name} |" in table
    assert "| OneHistory | 10 | 3 |" in table
    assert table.count("| not run |") == len(REMOVALS) - 1
