"""The comparison of two builds compares the right figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.builds import Round, compared, flat, in_order, measure, parse

HALF_AS_FAST = Round(before={"create": {"per_s": 200.0}}, after={"create": {"per_s": 100.0}})
AS_FAST = Round(before={"create": {"per_s": 40.0}}, after={"create": {"per_s": 40.0}})
TWICE_AS_FAST = Round(before={"create": {"per_s": 10.0}}, after={"create": {"per_s": 20.0}})


def test_ratios_are_taken_within_a_round() -> None:
    """A slow minute of the machine changes both figures of a round, and so no ratio."""
    (found,) = compared([HALF_AS_FAST, AS_FAST, TWICE_AS_FAST])
    assert found["ratio"] == 1.0, "the median of 0.5, 1 and 2"
    assert found["quartiles"] == [0.75, 1.5]
    assert (found["before"], found["after"]) == (40.0, 40.0)


def test_figures_that_only_one_build_has_are_left_out() -> None:
    """A workload that the older build does not know is left out of the comparison."""
    new = Round(
        before={"create": {"per_s": 1.0}}, after={"create": {"per_s": 1.0}, "watch": {"per_s": 1.0}}
    )
    assert [row["workload"] for row in compared([new])] == ["create"]


def test_a_figure_of_zero_has_no_ratio() -> None:
    """A figure that was zero before is shown, and is divided by nothing."""
    (found,) = compared([Round(before={"create": {"late": 0}}, after={"create": {"late": 2}})])
    assert (found["ratio"], found["after"]) == (None, 2)


def test_the_order_changes_from_round_to_round() -> None:
    """The build that runs first changes with each round, so neither always finds a warm machine."""
    assert [in_order(number)[0] for number in range(4)] == ["before", "after"] * 2


def test_workloads_in_parts_are_compared_part_by_part() -> None:
    """Some benchmarks measure a workload several times, in each of its parts."""
    parts = {"calls": {"ours": {"us": 1.0}, "theirs": {"us": 2.0}}, "create": {"per_s": 3.0}}
    assert flat(parts) == {
        "calls, ours": {"us": 1.0},
        "calls, theirs": {"us": 2.0},
        "create": {"per_s": 3.0},
    }


def test_a_benchmark_runs_in_the_tree_it_is_given(tmp_path: Path) -> None:
    """The modules of a build are its own, and a run that fails is an error."""
    told = 'import json; print(json.dumps({"medians": {"create": {"per_s": 7.0}}}))'
    (tmp_path / "told.py").write_text(told)
    assert measure(tmp_path, ["told"]) == {"create": {"per_s": 7.0}}
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="`fails` failed"):
        measure(tmp_path, ["fails"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--before", "HEAD"], "name the benchmark"),
        (["--before", "HEAD", "--rounds", "0", "benchmarks.commands"], "at least 1"),
    ],
)
def test_wrong_options_are_named(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing benchmark and a number of rounds below 1 are errors."""
    with pytest.raises(SystemExit):
        parse(arguments)
    assert complaint in capsys.readouterr().err


def test_options_of_the_benchmark_stay_its_own() -> None:
    """Options after the benchmark's name go to the benchmark."""
    options = parse(["--before", "HEAD", "benchmarks.commands", "--rounds", "1"])
    assert options.benchmark == ["benchmarks.commands", "--rounds", "1"]
    assert options.rounds == 5
