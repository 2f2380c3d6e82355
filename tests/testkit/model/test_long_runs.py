"""Results of TLC that are kept, and slices of random executions. TLC itself does not run here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testkit.model import long, results
from testkit.model.bounds import TlaBounds
from testkit.model.checker import TlcFailed, TlcVerdict
from testkit.model.long import HOLDS, SIMULATED, SimulatedSlice

TINY = TlaBounds()
FOUND = TlcVerdict("OneHistory", 10, 3, 1.0, ("ClientBatch",), "trace", 2.0)
FIRST = next(iter(SIMULATED))


def test_a_finished_result_is_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same specification within the same bounds has the same result; other bounds have none."""
    path = tmp_path / "results.jsonl"
    monkeypatch.setattr(results, "check", lambda bounds, **_: FOUND)

    checked = results.checked(path, TINY, workers=1, seconds_max=1)

    assert checked == FOUND
    assert results.finished(path, TINY) == FOUND
    assert results.finished(path, replace(TINY, view_max=2)) is None
    assert results.finished(None, TINY) is None


def test_slices_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice has the next seed, and the table has the sums of all."""
    path = tmp_path / "slices.jsonl"
    monkeypatch.setattr(long, "simulate", done_with(""))
    running = long.run_for(1_000, path, 1)

    seeds = [next(running)[1].seed for _ in range(2 * len(SIMULATED))]
    table = long.markdown(path)

    assert seeds == [1] * len(SIMULATED) + [2] * len(SIMULATED)
    assert f"| {FIRST} | 1,000 | 400 | 2 | {HOLDS} |" in table


def test_what_a_slice_breaks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A violation in any slice stands in the table."""
    path = tmp_path / "slices.jsonl"
    monkeypatch.setattr(long, "simulate", done_with("OneHistory"))

    next(long.run_for(1_000, path, 1))

    assert "OneHistory does not hold" in long.markdown(path)


def test_no_slice_begins_after_the_time_is_over(tmp_path: Path) -> None:
    """A run of no minutes does nothing, and its table says so."""
    path = tmp_path / "slices.jsonl"

    assert list(long.run_for(0, path, 1)) == []
    assert "not run" in long.markdown(path)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("Progress: 7 states checked.\nProgress: 2010 states checked.\nFinished\n", (2010, "")),
        ("Error: Invariant OneHistory is violated.\n", (0, "OneHistory")),
    ],
    ids=["everything_holds", "violated"],
)
def test_what_tlc_prints_of_random_steps_is_a_slice(
    monkeypatch: pytest.MonkeyPatch, output: str, expected: tuple[int, str]
) -> None:
    """A slice has the number of states, or what does not hold."""
    monkeypatch.setattr(long, "run_tlc", lambda *_, **__: output)

    found = long.simulate(TINY, 3, seconds_max=1)

    assert (found.states, found.violated, found.seed) == (*expected, 3)


def test_random_steps_that_ended_early_are_no_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the specification does not pass for executions in which everything holds."""
    monkeypatch.setattr(long, "run_tlc", lambda *_, **__: "Unknown operator: `Advnce'.")

    with pytest.raises(TlcFailed, match="Unknown operator"):
        long.simulate(TINY, 1, seconds_max=1)


def done_with(violated: str) -> object:
    """A simulation that takes no time."""

    def simulate(_: TlaBounds, seed: int, *, seconds_max: int) -> SimulatedSlice:
        return SimulatedSlice(seed, 500, 200, 60.0, violated)

    return simulate
