"""Intervals hold for few calls and for many."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.evidence import rate_interval


@pytest.mark.parametrize(
    ("failed", "calls", "low", "high"),
    # Of R: prop.test(failed, calls, correct = FALSE).
    [
        (1, 1, 0.2065, 1.0),
        (0, 10, 0.0, 0.2775),
        (3, 100, 0.0103, 0.0845),
        (50, 100, 0.4038, 0.5962),
    ],
)
def test_intervals_are_those_of_the_textbook(
    failed: int, calls: int, low: float, high: float
) -> None:
    """Known intervals come out to four digits."""
    assert rate_interval(failed, calls) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_contains_its_rate(counted: tuple[int, int]) -> None:
    """The rate that was counted lies in its interval, and more calls make that narrower."""
    failed, calls = counted
    low, high = rate_interval(failed, calls)
    assert 0 <= low <= failed / calls <= high <= 1
    closer = rate_interval(failed * 10, calls * 10)
    assert closer[1] - closer[0] < high - low


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
def test_an_interval_holds_the_true_rate_about_19_times_in_20(rate: float) -> None:
    """Over all outcomes of 50 calls, weighed by their chance, the true rate is mostly inside."""
    calls = 50
    chances = {n: comb(calls, n) * rate**n * (1 - rate) ** (calls - n) for n in range(calls + 1)}
    inside = [
        n for n in chances if rate_interval(n, calls)[0] <= rate <= rate_interval(n, calls)[1]
    ]
    assert 0.92 <= sum(chances[n] for n in inside) <= 0.99


def test_no_calls_say_nothing() -> None:
    """Without a call, any rate is possible."""
    assert rate_interval(0, 0) == (0.0, 1.0)
