"""Compares the tests of significance with ranks counted in plain Python."""

from __future__ import annotations

import math
import random
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import pytest

from analytics.traces import comparison
from analytics.traces.comparison import Period

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEFORE = Period(0, 1_000_000)
AFTER = Period(5_000_000, 9_000_000)
Side = list[tuple[float, bool]]


def side(durations: list[float], failures: int = 0) -> Side:
    """Return requests with these durations, of which the first ones failed."""
    return [(duration, place < failures) for place, duration in enumerate(durations)]


def drawn(seed: int, count: int, factor: float = 1.0, tail: float = 1.0) -> list[float]:
    """Return log-normal durations around 500 us; the last twentieth is `tail` times as long."""
    chance = random.Random(seed)
    body = [factor * chance.lognormvariate(math.log(500), 0.3) for _ in range(count)]
    return [us * tail if place >= count * 0.95 else us for place, us in enumerate(body)]


CASES: dict[str, tuple[Side, Side]] = {
    # Known from R: wilcox.test(1:20, 21:40, exact = FALSE) has p = 6.796e-08.
    "ranks": (side([*range(1, 21)]), side([*range(21, 41)])),
    "same": (side(drawn(1, 400)), side(drawn(2, 400))),
    "slower": (side(drawn(3, 400)), side(drawn(4, 600, factor=1.5))),
    "tail": (side(drawn(5, 1000)), side(drawn(6, 1000, tail=10.0))),
    "failing": (side(drawn(7, 400), 4), side(drawn(8, 400), 60)),
    "constant": (side([8.0] * 30), side([8.0] * 30)),
    "few": (side(drawn(9, 10)), side(drawn(10, 10, factor=9.0))),
    "gone": (side(drawn(11, 50)), []),
    "new": ([], side(drawn(12, 50))),
}


def binned(us: float) -> int:
    """Return the duration with its seven highest binary digits."""
    digits = max(len(f"{int(us):b}") - 7, 0)
    return int(us) >> digits << digits


def p_of_ranks(before: Side, after: Side) -> float | None:
    """Return the p-value of the Mann-Whitney test by sorting, with middle ranks for ties."""
    sides = [[binned(us) for us, _ in one] for one in (before, after)]
    if min(map(len, sides)) < 20:
        return None
    ordered = sorted(sides[0] + sides[1])
    n1, n2, n = len(sides[0]), len(sides[1]), len(ordered)
    middle = {us: ordered.index(us) + (ordered.count(us) + 1) / 2 for us in set(ordered)}
    u = sum(middle[us] for us in sides[1]) - n2 * (n2 + 1) / 2
    ties = sum(ordered.count(us) ** 3 - ordered.count(us) for us in set(ordered))
    variance = n1 * n2 / 12 * (n + 1 - ties / (n * (n - 1)))
    if variance == 0:
        return 1.0
    z = max(abs(u - n1 * n2 / 2) - 0.5, 0) / math.sqrt(variance)
    return 2 * NormalDist().cdf(-z)


def p_of_parts(hits: tuple[int, int], counts: tuple[int, int]) -> float | None:
    """Return the p-value of the chi-squared test on the four counts, which is z squared."""
    cells = [
        (hit if found else count - hit, count, sum(hits) if found else sum(counts) - sum(hits))
        for hit, count in zip(hits, counts, strict=True)
        for found in (True, False)
    ]
    expected = [count * total / sum(counts) for _, count, total in cells]
    if min(expected) < 5 or min(counts) < 20:
        return None
    square = sum((cell[0] - due) ** 2 / due for cell, due in zip(cells, expected, strict=True))
    return 2 * NormalDist().cdf(-math.sqrt(square))


def p_above(before: Side, after: Side, share: float) -> float | None:
    """Return the p-value of the test at a percentile of both sides together."""
    sides = [[binned(us) for us, _ in one] for one in (before, after)]
    if not all(sides):
        return None
    ordered = sorted(sides[0] + sides[1])
    limit = ordered[math.ceil(share * len(ordered)) - 1]
    hits = [sum(us > limit for us in one) for one in sides]
    return p_of_parts((hits[0], hits[1]), (len(sides[0]), len(sides[1])))


def expected(before: Side, after: Side) -> dict[str, float | None]:
    """Return the p-value of each metric."""
    failed = (sum(bad for _, bad in before), sum(bad for _, bad in after))
    return {
        "mean_us": p_of_ranks(before, after),
        "p50_us": p_above(before, after, 0.5),
        "p90_us": p_above(before, after, 0.9),
        "p99_us": p_above(before, after, 0.99),
        "error_rate": p_of_parts(failed, (len(before), len(after))) if before and after else None,
        "rate_per_s": None,
    }


@pytest.fixture(scope="module")
def compared(spark: SparkSession) -> dict[tuple[str, str], Any]:
    """Return the rows by RPC and metric."""
    # A request at the end of a period belongs to no period.
    rows = [("same", False, 1e9, at) for at in (BEFORE.end_us, AFTER.start_us - 1, AFTER.end_us)]
    for rpc, sides in CASES.items():
        for period, one in zip((BEFORE, AFTER), sides, strict=True):
            rows += [(rpc, bad, float(us), period.start_us) for us, bad in one]
    columns = "rpc STRING, error BOOLEAN, duration_us DOUBLE, start_us BIGINT"
    requests = spark.createDataFrame(rows, columns)
    # Compiling each query costs more than running it on so few rows.
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    table = comparison.comparison(requests, BEFORE, AFTER).collect()
    spark.conf.unset("spark.sql.codegen.wholeStage")
    return {(row["rpc"], row["metric"]): row for row in table}


def test_p_values_a_second_time(compared: dict[tuple[str, str], Any]) -> None:
    """Each p-value equals that of sorted ranks, or of a table of four counts."""
    for rpc, sides in CASES.items():
        for metric, p_value in expected(*sides).items():
            found = compared[rpc, metric]["p_value"]
            close = None if p_value is None else pytest.approx(p_value, rel=1e-6, abs=1e-12)
            assert found == close, (rpc, metric)
    assert len(compared) == len(CASES) * 6


def test_known_p_value(compared: dict[tuple[str, str], Any]) -> None:
    """The Mann-Whitney test has the p-value that R gives."""
    assert compared["ranks", "mean_us"]["p_value"] == pytest.approx(6.796e-08, rel=1e-3)


def test_values_and_ratios(compared: dict[tuple[str, str], Any]) -> None:
    """Values are those of each period by itself; a period without requests has none."""
    row = compared["ranks", "p50_us"]
    assert (row["before"], row["after"], row["ratio"]) == (10.0, 30.0, 3.0)
    assert compared["ranks", "mean_us"]["after"] == 30.5
    assert compared["ranks", "rate_per_s"]["after"] == 5.0
    assert compared["failing", "error_rate"]["ratio"] == pytest.approx(15.0)
    for rpc in ("gone", "new"):
        values = [compared[rpc, metric] for metric in ("mean_us", "p99_us", "error_rate")]
        assert all(row["ratio"] is None and not row["significant"] for row in values)
    assert compared["new", "p50_us"]["before"] is None
    assert compared["gone", "rate_per_s"]["after"] == 0.0


def test_what_is_significant(compared: dict[tuple[str, str], Any]) -> None:
    """Each planted change is significant in its metric, and chance is not."""
    found = {key for key, row in compared.items() if row["significant"]}
    assert found == {
        *(("ranks", metric) for metric in ("mean_us", "p50_us")),
        *(("slower", metric) for metric in ("mean_us", "p50_us", "p90_us")),
        ("tail", "p99_us"),
        ("failing", "error_rate"),
    }


def test_periods_that_make_no_sense_are_refused(spark: SparkSession) -> None:
    """An empty period, or two that overlap, are errors that say what would be right."""
    with pytest.raises(ValueError, match="end it later"):
        Period(5, 5)
    requests = spark.createDataFrame([], "start_us BIGINT")
    with pytest.raises(ValueError, match="compare periods that do not"):
        comparison.comparison(requests, Period(0, 10), Period(9, 20))
