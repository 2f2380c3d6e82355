"""The benchmark of the analysis judges seconds and memory, and compares the results of peers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import analytics


def run(total_s: float, peak_mb: float, cpu_s: float = 1.0) -> dict[str, Any]:
    """Return the figures of one size, the same for duckdb and Spark."""
    cost = {"total_s": total_s, "cpu_s": cpu_s, "peak_mb": {"all": peak_mb}}
    return {"spark": cost, "duckdb": cost}


def verdicts(runs: dict[str, Any]) -> list[str]:
    """Return the verdict of each target that these runs can show."""
    return [row["verdict"] for row in analytics.judged(runs)]


@pytest.mark.parametrize(
    ("total_s", "verdict"), [(180.0, "aim"), (180.1, "must"), (360.0, "must"), (360.1, "missed")]
)
def test_seconds_are_judged_at_the_size_of_the_target(total_s: float, verdict: str) -> None:
    """The target of ten million spans is judged at that size, and at no other."""
    assert verdicts({"10000000": run(total_s, 1.0)})[0] == verdict
    assert not any("all tables" in row["what"] for row in analytics.judged({"3": run(1.0, 1.0)}))


@pytest.mark.parametrize(
    ("peaks", "verdict"),
    [
        ((900.0, 1000.0, 1150.0), "aim"),
        ((900.0, 1000.0, 1151.0), "missed"),
        ((5000.0, 1000.0, 1000.0), "aim"),
    ],
)
def test_memory_is_flat_between_the_largest_sizes(peaks: tuple[float, ...], verdict: str) -> None:
    """The largest size is compared with the one before it, whatever smaller ones took."""
    runs = {str(10**place): run(1.0, peak) for place, peak in enumerate(peaks)}
    (row,) = (row for row in analytics.judged(runs) if "against the one before" in row["what"])
    assert row["verdict"] == verdict
    assert not any("before" in row["what"] for row in analytics.judged({"1": run(1.0, 1.0)}))


@pytest.mark.parametrize(("over_mb", "verdict"), [(0.0, "aim"), (0.1, "missed")])
def test_memory_is_held_against_what_is_promised(over_mb: float, verdict: str) -> None:
    """Each size must need no more memory than the manual states."""
    promised = analytics.MEMORY_MB
    runs = {"1": run(1.0, promised + over_mb), "2": run(1.0, promised - 1.0)}
    (row,) = (row for row in analytics.judged(runs) if "any size" in row["what"])
    assert (row["verdict"], row["must"]) == (verdict, promised)


def test_peers_that_disagree_fail_the_run(tmp_path: Path) -> None:
    """One call more on one side is an error that names the table and both sums."""
    for name, calls in (("ours", 3), ("theirs", 4)):
        for table, columns in analytics.AGREED.items():
            (tmp_path / name / table).mkdir(parents=True)
            values = {column: [calls if table == "service_graph" else 1] for column in columns}
            pq.write_table(pa.table(values), tmp_path / name / table / "a.parquet")
    analytics.check(tmp_path / "ours", tmp_path / "ours")
    with pytest.raises(RuntimeError, match=r"service_graph.calls: Spark says 3, duckdb 4"):
        analytics.check(tmp_path / "ours", tmp_path / "theirs")


def test_memory_of_a_program_is_watched_while_it_runs() -> None:
    """The peak holds what a program had at once, its children's included, and what it printed."""
    child = "x = bytearray(60 << 20); x[::4096] = x[::4096]; import time; time.sleep(2)"
    code = (
        "import subprocess, sys; print('{\"a\": 1}');"
        f"sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    )
    done = analytics.watched([sys.executable, "-c", code])
    assert done.told == {"a": 1}
    assert done.peak_mb["java"] == 0.0
    assert 60.0 < done.peak_mb["python"] == done.peak_mb["all"] < 200.0
    with pytest.raises(RuntimeError, match="failed with 3"):
        analytics.watched([sys.executable, "-c", "raise SystemExit(3)"])


def test_where_the_lines_cross() -> None:
    """Spark begins behind duckdb and gains on it: they meet where straight lines meet, or never."""
    slow = {"spark": {"total_s": 100.0, "cpu_s": 90.0}, "duckdb": {"total_s": 10.0, "cpu_s": 10.0}}
    fast = {
        "spark": {"total_s": 190.0, "cpu_s": 900.0},
        "duckdb": {"total_s": 280.0, "cpu_s": 100.0},
    }
    found = analytics.crossover({"1000000": slow, "10000000": fast})
    assert found["total_s"]["spans"] == 5_500_000
    assert found["cpu_s"]["spans"] is None
    assert found["total_s"]["spark_over_duckdb"] == {"1000000": 10.0, "10000000": 0.68}
