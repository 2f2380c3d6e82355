"""The judge of growth finds a leak in noise, and calls nothing else one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from testkit.soak.slopes import PIECES_MIN, Growth, Point, slope_of

LIMIT = 1.0  # percent per hour
LEVEL = 100e6  # bytes
STEP_S = 5
WARM_UP_S = 600.0
PIECE_S = 60.0
HOUR_S = 3600


def series(
    hours: float, value: Callable[[float], float], noise: float = 0.002, seed: int = 1
) -> list[Point]:
    """Return a figure over time, in bytes; `value` and `noise` are in parts of LEVEL."""
    chosen = random.Random(seed)
    return [
        (float(at_s), LEVEL * (value(at_s / HOUR_S) + chosen.gauss(0, noise)))
        for at_s in range(0, int(hours * HOUR_S), STEP_S)
    ]


def grown(percent: float) -> Callable[[float], float]:
    """Return a figure that grows evenly by so many percent per hour."""
    return lambda hours: 1 + percent / 100 * hours


def warming_up(hours: float) -> float:
    """Return a process that takes a third more within its first minutes, and then no more."""
    return 1 + 0.33 * (1 - math.exp(-hours * 60 / 2))


def settling(hours: float) -> float:
    """Return a young process: what it still takes is halved every five minutes."""
    return 1 + 0.05 * (1 - math.exp2(-12 * hours))


def saw(hours: float) -> float:
    """Return a data directory: it grows by a tenth, and is cleared every two minutes."""
    return 1 + 0.1 * (hours * 30 % 1)


def peaks(hours: float) -> float:
    """Return a process that takes half as much again for a minute of each quarter of an hour."""
    return 1.5 if hours * 4 % 1 > 14 / 15 else 1.0


@pytest.mark.parametrize(
    ("hours", "value", "expected"),
    [
        (4.0, grown(0.0), Growth.BELOW),
        (4.0, grown(0.5), Growth.BELOW),
        (4.0, grown(1.5), Growth.ABOVE),
        (1.0, grown(10.0), Growth.ABOVE),
        (4.0, grown(-3.0), Growth.BELOW),
        (4.0, warming_up, Growth.BELOW),
        (0.75, settling, Growth.UNDECIDED),
        (4.0, saw, Growth.BELOW),
        (4.0, peaks, Growth.BELOW),
        (0.35, grown(0.0), Growth.UNDECIDED),
    ],
    ids="flat little leak fast shrinks warms-up settles saw peaks short".split(),
)
def test_growth_is_judged(hours: float, value: Callable[[float], float], expected: Growth) -> None:
    """A leak is told from a warm-up, saw teeth and peaks; a short life is not judged for sure."""
    noise = 0.02 if hours < 0.5 else 0.002
    slope = slope_of(series(hours, value, noise), WARM_UP_S, PIECE_S)
    assert slope is not None
    assert slope.judged(LIMIT) is expected, slope


@pytest.mark.parametrize("percent", [-2.0, 0.0, 3.0])
def test_the_interval_holds_the_truth(percent: float) -> None:
    """Of forty noisy lives hardly any has an interval beside the true growth."""
    slopes = [slope_of(series(2.0, grown(percent), 0.01, seed), 0.0, PIECE_S) for seed in range(40)]
    missed = [
        one
        for one in slopes
        # The percentage is of the median, which is half way.
        if one is None or not one.low <= percent / (1 + percent / 100) <= one.high
    ]
    assert len(missed) <= 5


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(0.0, LEVEL)],
        series((WARM_UP_S + (PIECES_MIN - 1) * PIECE_S) / HOUR_S, grown(0.0)),
        [(at_s, 0.0) for at_s, _ in series(1.0, grown(0.0))],
    ],
    ids=["nothing", "a point", "too short", "all zero"],
)
def test_what_is_too_short_has_no_slope(points: list[Point]) -> None:
    """A life that ends soon after its warm-up, and a figure that is always 0, are not judged."""
    assert slope_of(points, WARM_UP_S, PIECE_S) is None


def test_a_life_of_days_costs_no_more() -> None:
    """However many points there are, no more pieces are compared than a minute takes."""
    slope = slope_of(series(48.0, grown(2.0)), WARM_UP_S, PIECE_S)
    assert slope is not None
    assert slope.pieces <= 61
    assert slope.judged(LIMIT) is Growth.ABOVE
