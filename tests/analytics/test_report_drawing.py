"""Units, scales and layers: the parts of plots and numbers."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.report import drawing, plots_traces, service_graph, units
from analytics.report.columns import unit_of
from analytics.report.reading import column_names
from analytics.schema import TABLES
from tests.analytics.report_pages import FACTORS, shows


@pytest.mark.parametrize(
    ("value", "unit", "want"),
    [
        (0.0, "us", "0 µs"),
        (7, "us", "7 µs"),
        (999.6, "us", "1,000 µs"),
        (12_040, "us", "12.0 ms"),
        (1.5e6, "us", "1.50 s"),
        (0.5, "s", "500 ms"),
        (7_200, "s", "2.00 h"),
        (0, "bytes", "0 B"),
        (1536, "bytes", "1.50 KiB"),
        (1234567, "count", "1,234,567"),
        (12_345_678, "count", "12.3 million"),
        (0.6, "share", "60 %"),
        (0.031, "share", "3.1 %"),
        (0.00042, "share", "0.042 %"),
        (1.42, "times", "1.4 ×"),  # noqa: RUF001
        (0.5, "times", "0.50 ×"),  # noqa: RUF001
        (200, "days", "200 days"),
        (2.04, "days", "2.0 days"),
        (730, "days", "2.0 years"),
        (1e6, "days", "over 100 years"),
        (1_795_190_400_000_000, "moment", "2026-11-20 16:00:00"),
        (9e18, "moment", "–"),  # noqa: RUF001
        (math.nan, "us", "–"),  # noqa: RUF001
        (math.inf, "days", "–"),  # noqa: RUF001
        (None, "count", "–"),  # noqa: RUF001
        (12, "name", "12"),
    ],
)
def test_value_is_shown(value: float | None, unit: str, want: str) -> None:
    """A value is shown with three digits and its unit; a value that is not a number is a dash."""
    assert units.show(value, unit).replace(units.SPACE, " ") == want


@given(st.sampled_from(sorted(FACTORS)), st.floats(0, 30_000))
def test_shown_value_is_the_value(unit: str, value: float) -> None:
    """A shown value, read back with its unit, equals the value to the digits shown."""
    assert shows(units.show(value, unit), unit, value)


def test_every_column_has_a_unit() -> None:
    """Every column of every table is shown in a unit that exists, times as durations or moments."""
    every = {name: unit_of(name) for table in TABLES.values() for name in column_names(table)}
    assert set(every.values()) <= units.UNITS.keys()
    assert {every[name] for name in every if name.endswith("_us")} == {"us", "moment", "name"}
    assert unit_of("value", "orphan_rate") == "share"
    assert unit_of("after", "p99_us") == "us"


@given(st.lists(st.floats(1e-3, 1e12), min_size=1))
def test_decades_hold_all_values(values: list[float]) -> None:
    """A logarithmic scale has every value between its ends, and ticks within them."""
    low, high = drawing.decades(values)
    assert low <= min(values) * 1.0001
    assert max(values) <= high * 1.0001
    assert low < high
    assert all(low * 0.9 <= tick <= high * 1.1 for tick in drawing.log_ticks(low, high))
    assert len(drawing.log_ticks(low, high)) <= 6


@given(st.floats(1e-6, 1e15))
def test_ticks_reach_the_value(high: float) -> None:
    """Linear ticks begin at 0, reach the largest value, and are few."""
    for ticks in (drawing.round_ticks(high), drawing.byte_ticks(high)):
        assert ticks[0] == 0
        assert ticks[-1] >= high * 0.9999
        assert len(ticks) <= 6


def test_scale_stays_within_its_ends() -> None:
    """A scale maps its ends to the given places, and values beyond to the nearer end."""
    scale = drawing.Scale(1, 1000, 100, 400, logarithmic=True)
    assert [round(scale(value)) for value in (0.5, 1, 10, 1000, 9999)] == [100, 100, 200, 400, 400]
    assert drawing.Scale(5, 5, 0, 10)(5) == 5


def test_long_names_keep_both_ends() -> None:
    """A name that is too wide loses its middle."""
    room = 9 * drawing.CHARACTER_WIDTH + 1
    assert drawing.fit("CreateTopic", room) == "Crea…opic"
    assert drawing.fit("Create", room) == "Create"


@pytest.mark.parametrize(
    ("edges", "want"),
    [
        ([("a", "b"), ("b", "c")], [["a"], ["b"], ["c"]]),
        ([("a", "b"), ("a", "c"), ("b", "c")], [["a"], ["b"], ["c"]]),
        ([("z", "b"), ("z", "c")], [["z"], ["b", "c"]]),
        ([("a", "a")], [["a"]]),
        ([("a", "b"), ("b", "a")], [["a"], ["b"]]),
        ([("c", "a"), ("a", "b"), ("b", "a")], [["c"], ["a"], ["b"]]),
    ],
)
def test_services_are_layered(edges: list[tuple[str, str]], want: list[list[str]]) -> None:
    """A service stands behind all its callers, except where calls form a cycle."""
    assert service_graph.layered(edges) == want


@pytest.mark.parametrize(
    ("services", "want"),
    [
        (["viewstamp-users", "viewstamp-streams"], "viewstamp-"),
        (["shop.cart", "shop.card"], "shop."),
        (["cart", "card"], ""),
        (["one-service"], ""),
        (["a", "a-b"], ""),
    ],
)
def test_shared_prefix_is_left_out(services: list[str], want: str) -> None:
    """The shared prefix is the common beginning of all names, up to a dash or dot."""
    assert service_graph.shared_prefix(services) == want


def test_crowded_line_keeps_its_peaks() -> None:
    """From 10,000 windows few are drawn, and the worst one is among them."""
    windows = [{"window_start": float(n), "p99_us": float(n % 977)} for n in range(10_000)]
    windows[7_777]["p99_us"] = 5_000.0
    line = pd.DataFrame(windows)
    drawn = plots_traces.highest(line, (0.0, 9_999.0), 90)
    assert 80 < len(drawn) <= 90
    assert 5_000.0 in list(drawn["p99_us"])
    assert len(plots_traces.highest(line.head(90), (0.0, 89.0), 90)) == 90
