"""The failover benchmark derives its figures from the times of answers."""

from __future__ import annotations

import pytest

from benchmarks.failover import longest_gap_s, report, summary, usual_gap_s
from benchmarks.targets import Figures

CASES = {
    "the gap that the kill falls into": ([0.0, 1.0, 3.0, 3.5], 1.5, 2.0, 1.0),
    "an answer on its way is no end of it": ([0.0, 1.0, 2.0, 5.0, 5.5], 1.5, 3.0, 1.0),
    "a later disturbance counts, too": ([0.0, 1.0, 1.5, 2.0, 7.0], 1.2, 5.0, 1.0),
    "what was before does not": ([0.0, 9.0, 9.5, 10.0], 9.4, 0.5, 9.0),
}


@pytest.mark.parametrize(("answered_at", "killed_at", "gap", "usual"), CASES.values(), ids=CASES)
def test_windows(answered_at: list[float], killed_at: float, gap: float, usual: float) -> None:
    """The window is the longest time between two answers of which the second follows the kill."""
    assert longest_gap_s(answered_at, killed_at) == gap
    assert usual_gap_s(answered_at, killed_at) == usual


def test_the_worst_is_judged_as_well_as_the_median() -> None:
    """One bad kill among good ones misses the target of the worst, and meets that of the median."""
    kills: list[Figures] = [{"window_s": window} for window in (0.2, 0.1, 1.5)]
    assert summary(kills) == {"kills": 3, "median_window_s": 0.2, "worst_window_s": 1.5}
    worst, middle = report({"failover": kills})["targets"]
    assert (worst["verdict"], middle["verdict"]) == ("missed", "aim")
