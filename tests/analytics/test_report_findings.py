"""Each rule gives the right sentence and severity for a table of a few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analytics import report
from analytics.report import reading
from analytics.report.findings import RULES, headlines
from analytics.report.overview import names_of
from analytics.report.statements import Name
from analytics.schema import TABLES
from tests.analytics import report_pages, report_tables

Tables = dict[str, list[report_tables.Row]]


def red(rpc: str, count: int, errors: int, **more: Any) -> report_tables.Row:
    """Return a window of an RPC."""
    row = {"rpc": rpc, "service": "c", "window_start": 0, "count": count, "errors": errors}
    return row | {"p50_us": 1_000.0, "p90_us": 2_000.0, "p99_us": 12_000.0} | more


def path(stage: str, share: float, band: str = "p99") -> report_tables.Row:
    """Return a stage of the critical path of `S/Create`, whose calls take 10 ms."""
    times = {"on_path_us": share * 10_000, "saving_us": share * 10_000, "traces": 5}
    return {"rpc": "S/Create", "band": band, "stage": stage, "share": share} | times


def grows(days: float | None, confidence: str = "significant") -> report_tables.Row:
    """Return the growth of streams."""
    known = {"section": "streams", "per_hour": 120.0, "limited_by": "STREAMS_MAX"}
    return known | {"days_to_limit": days, "confidence": confidence, "generations": 3}


def cut(
    generation: int, ratio: float, rpc: str = "S/Create", around: int = 292, baseline: int = 850
) -> report_tables.Row:
    """Return a row of a cut around which p99 was not 10 ms."""
    known = {"generation": generation, "rpc": rpc, "ratio": ratio}
    known |= {"calls_around": around, "calls_baseline": baseline}
    return known | {"p99_us_baseline": 10_000.0, "p99_us_around": 10_000 * ratio}


def metric(name: str, value: float) -> report_tables.Row:
    """Return a row of data_quality."""
    return {"metric": name, "value": value}


def compared(ratio: float, *, significant: bool, metric: str = "p99_us") -> report_tables.Row:
    """Return a comparison with 10 ms before."""
    known = {"rpc": "S/Create", "metric": metric, "before": 10_000.0, "after": 10_000 * ratio}
    return known | {"ratio": ratio, "p_value": 0.001, "significant": significant}


def slow(stage: str, ratio: float) -> report_tables.Row:
    """Return a fan-out with a slowest call of 100 us times the ratio."""
    return {"rpc": "r", "slowest_stage": stage, "max_us": 100 * ratio, "ratio": ratio}


def section(name: str, size: int, generation: int = 7) -> report_tables.Row:
    """Return a section of a snapshot with a tenth as many entities as bytes."""
    row = {"generation": generation, "section": name, "kind": name, "entities": size // 10}
    return row | {"bytes": size, "raw_bytes": 2 * size}


def waste(size: int, what: str = "empty_groups") -> report_tables.Row:
    """Return garbage of snapshot 7."""
    return {"generation": 7, "what": what, "count": 3, "bytes": size}


def wait(us: float) -> report_tables.Row:
    """Return a view change."""
    return {"view": 4, "replica": 0, "unavailable_us": us}


P99 = "Create p99 is 12.0 ms"
NO_ERRORS = ("good", "Calls that failed: 0.")
# Rows, and the findings that follow: severity and sentence.
CASES: dict[str, tuple[Tables, list[tuple[str, str]]]] = {
    "p99": (
        {"rpc_red": [red("S/Create", 5, 0)]},
        [("notice", f"{P99} (5 calls)."), NO_ERRORS],
    ),
    "p99 of several windows": (
        {"rpc_red": [red("Create", 5, 0), red("Create", 6, 0, window_start=1, p99_us=9.0)]},
        [("notice", "Create p99 is at worst 12.0 ms (11 calls)."), NO_ERRORS],
    ),
    "p99 and its stage": (
        {"rpc_red": [red("S/Create", 5, 0)], "critical_path": [path("a", 0.4), path("b", 0.6)]},
        [
            ("notice", f"{P99}; 60 % of the time of the slowest calls is in stage b (5 calls)."),
            NO_ERRORS,
        ],
    ),
    "names that end alike": (
        {"rpc_red": [red("A/Get", 9, 0), red("B/Get", 5, 0)]},
        [
            ("notice", "A/Get p99 is 12.0 ms (9 calls)."),
            ("notice", "B/Get p99 is 12.0 ms (5 calls)."),
            NO_ERRORS,
        ],
    ),
    "an RPC that two services saw": (
        {"rpc_red": [red("Create", 5, 0), red("Create", 5, 0, service="a", p50_us=9_000.0)]},
        [("notice", "Create p99 is 12.0 ms (5 calls)."), NO_ERRORS],
    ),
    "errors that callers made up for": (
        {"rpc_red": [red("Create", 5, 0), red("Create", 4, 2, service="a")]},
        [
            ("notice", "Create p99 is 12.0 ms (5 calls)."),
            ("notice", "Calls that failed, and that their callers made up for: 2."),
        ],
    ),
    "few errors": (
        {"rpc_red": [red("Create", 1000, 1)]},
        [
            ("notice", "Create p99 is 12.0 ms (1,000 calls)."),
            (
                "notice",
                "Error rate of Create is 0.1 % (1 of 1,000 failed; 95 % certain: 0.0 to 0.6 %).",
            ),
        ],
    ),
    "errors with their reason": (
        {
            "rpc_red": [red("Join", 100, 3)],
            "errors": [
                {"rpc": "Join", "reason": "RARE", "traces": 1, "root_cause_service": "x"},
                {"rpc": "Join", "reason": "GONE", "traces": 2, "root_cause_service": "groups"},
            ],
        },
        [
            (
                "warning",
                "Error rate of Join is 3.0 % (3 of 100 failed; 95 % certain: 1.0 to 8.5 %),"
                " mostly GONE from groups.",
            ),
            ("notice", "Join p99 is 12.0 ms (100 calls)."),
        ],
    ),
    "many errors": (
        {"rpc_red": [red("Join", 100, 50)]},
        [
            (
                "critical",
                "Error rate of Join is 50 % (50 of 100 failed; 95 % certain: 40.4 to 59.6 %).",
            ),
            ("notice", "Join p99 is 12.0 ms (100 calls)."),
        ],
    ),
    "single calls that failed push nothing off the page": (
        {"rpc_red": [red(name, 1, 1) for name in "abc"] + [red("Join", 1000, 50)]},
        [
            (
                "warning",
                "Error rate of Join is 5.0 % (50 of 1,000 failed; 95 % certain: 3.8 to 6.5 %).",
            ),
            ("notice", "Join p99 is 12.0 ms (1,000 calls)."),
            ("notice", "a p99 is 12.0 ms (1 calls)."),
            ("notice", "b p99 is 12.0 ms (1 calls)."),
            ("notice", "Error rate of a is 100 % (1 of 1 failed; 95 % certain: 20.7 to 100.0 %)."),
            ("notice", "Error rate of b is 100 % (1 of 1 failed; 95 % certain: 20.7 to 100.0 %)."),
        ],
    ),
    "one call that failed": (
        {"rpc_red": [red("Join", 10, 1)]},
        [
            ("notice", "Join p99 is 12.0 ms (10 calls)."),
            (
                "notice",
                "Error rate of Join is 10 % (1 of 10 failed; 95 % certain: 1.8 to 40.4 %).",
            ),
        ],
    ),
    "saving": (
        {"critical_path": [path("a", 0.4, "all"), path("b", 0.6, "all"), path("a", 1.0)]},
        [
            (
                "notice",
                "Most to gain: without stage b, the mean Create would be 6.00 ms shorter;"
                " it has 60 % of the critical path.",
            )
        ],
    ),
    "no stage worth a word": ({"critical_path": [path("a", 0.05, "all")]}, []),
    "stragglers": (
        {"stragglers": [slow("a", 4.0), slow("a", 8.0), slow("b", 9.0), slow("b", 1.1)]},
        [
            (
                "notice",
                "a is what fan-outs wait for: slowest in 2 of the worst, up to 8.0 x the median"
                " of its siblings, 800 µs at most.",
            )
        ],
    ),
    "nobody waits": ({"stragglers": [slow("a", 1.4)]}, []),
    "worse than before": (
        {
            "comparison": [
                compared(1.5, significant=True),
                compared(9.0, significant=False, metric="p50_us"),
            ]
        },
        [("warning", "p99 of Create is 1.5 x what it was: 15.0 ms, before 10.0 ms (p = 0.001).")],
    ),
    "better than before": (
        {"comparison": [compared(0.5, significant=True)]},
        [("good", "p99 of Create is 0.50 x what it was: 5.00 ms, before 10.0 ms (p = 0.001).")],
    ),
    "view change": (
        {"view_changes": [wait(310_000.0), wait(200_000.0)]},
        [("notice", "A view change (view 4) kept commands waiting for 310 ms.")],
    ),
    "long view change": (
        {"view_changes": [wait(2_000_000.0)]},
        [("warning", "A view change (view 4) kept commands waiting for 2.00 s.")],
    ),
    "orphans": (
        {"data_quality": [metric("orphan_rate", 0.25), metric("trace_incomplete_rate", 0.0)]},
        [("critical", "25 % of child spans are orphans: their parent is absent.")],
    ),
    "trust": (
        {"data_quality": [metric("trace_incomplete_rate", 0.001), metric("spans", 7.0)]},
        [("good", "The traces can be trusted: 0.1 % of traces miss a span.")],
    ),
    "unknown metrics": ({"data_quality": [metric("spans", 7.0)]}, []),
    "cuts": (
        {"cut_latency": [cut(7, 1.4), cut(7, 1.3, "S/Join"), cut(8, 3.5), cut(9, 1.25)]},
        [
            (
                "warning",
                "Around the cut of snapshot 8, p99 of Create was 3.5 x what it is else: 35.0 ms"
                " (292 calls), else 10.0 ms (850 calls).",
            ),
            (
                "notice",
                "Around the cut of snapshot 7, p99 of Create was 1.4 x what it is else: 14.0 ms"
                " (292 calls), else 10.0 ms (850 calls).",
            ),
        ],
    ),
    "cuts with few calls": (
        {"cut_latency": [cut(7, 11.7, baseline=1), cut(8, 5.0, around=99), cut(9, 1.1)]},
        [
            (
                "good",
                "No RPC with 100 calls on both sides was slower around cuts: p99 is at most 1.1 x.",
            )
        ],
    ),
    "cuts with few calls alone": ({"cut_latency": [cut(7, 11.7, baseline=1)]}, []),
    "quiet cuts": (
        {"cut_latency": [cut(7, 1.1), cut(8, 0.9)]},
        [
            (
                "good",
                "No RPC with 100 calls on both sides was slower around cuts: p99 is at most 1.1 x.",
            )
        ],
    ),
    "growth": (
        {"growth": [grows(200.0)]},
        [("notice", "Section streams grows by 120 entities/h: limit STREAMS_MAX in 200 days.")],
    ),
    "growth to a near limit": (
        {"growth": [grows(20.0)]},
        [("warning", "Section streams grows by 120 entities/h: limit STREAMS_MAX in 20 days.")],
    ),
    "growth to the limit": (
        {"growth": [grows(2.0)]},
        [("critical", "Section streams grows by 120 entities/h: limit STREAMS_MAX in 2.0 days.")],
    ),
    "growth that may be chance": (
        {"growth": [grows(2.0, "too_few")]},
        [
            (
                "notice",
                "Section streams grows by 120 entities/h (too few: 3 snapshots):"
                " limit STREAMS_MAX in 2.0 days.",
            )
        ],
    ),
    "growth without a limit": (
        {"growth": [grows(None)]},
        [("notice", "Section streams grows by 120 entities/h.")],
    ),
    "size": (
        {"snapshot_sections": [section("a", 3072), section("b", 1024), section("a", 9, 6)]},
        [("notice", "Snapshot 7 has 409 entities in 4.00 KiB; 75 % of it is section a.")],
    ),
    "garbage": (
        {"garbage": [waste(512), waste(0, "idle_users")]},
        [("notice", "Garbage in snapshot 7: 512 B; most of it is empty groups (3).")],
    ),
    "garbage and its share": (
        {"garbage": [waste(1024)], "snapshot_sections": [section("a", 1024)]},
        [
            (
                "warning",
                "Garbage in snapshot 7: 1.00 KiB, 50 % of its entities' bytes;"
                " most of it is empty groups (3).",
            ),
            ("notice", "Snapshot 7 has 102 entities in 1.00 KiB; 100 % of it is section a."),
        ],
    ),
    "no garbage": (
        {"garbage": [waste(0)], "snapshot_sections": [section("a", 1024)]},
        [
            ("notice", "Snapshot 7 has 102 entities in 1.00 KiB; 100 % of it is section a."),
            ("good", "Garbage in snapshot 7: 0 B, 0 % of its entities' bytes."),
        ],
    ),
    "tenants": (
        {
            "snapshot_tenants": [
                {"generation": 7, "tenant": "a", "bytes": 3},
                {"generation": 7, "tenant": "b", "bytes": 1},
            ]
        },
        [("notice", "Tenant a has 75 % of what tenants have.")],
    ),
    "tenants alike": (
        {"snapshot_tenants": [{"generation": 7, "tenant": t, "bytes": 3} for t in "abc"]},
        [],
    ),
    "amplification": (
        {"amplification": [{"generation": 7, "ratio": 6.0}, {"generation": 6, "ratio": 1.0}]},
        [("warning", "Snapshot 7 wrote 6.0 x the bytes of its log.")],
    ),
    "amplification without a log": (
        {"amplification": [{"generation": 7, "changed_ratio": 1.5}]},
        [("good", "Snapshot 7 wrote 1.5 x what changed.")],
    ),
    "restart": (
        {
            "restore_estimate": [
                {"generation": 7, "section": "a", "seconds": 80.0},
                {"generation": 7, "section": "b", "seconds": 10.0},
            ]
        },
        [
            (
                "warning",
                "A restart from snapshot 7 takes about 1.50 min,"
                " of which section a takes 1.33 min.",
            )
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_says(tmp_path: Path, name: str) -> None:
    """The rule gives these findings for these rows, and its numbers are those of the tables."""
    rows, want = CASES[name]
    for table, of_table in rows.items():
        report_tables.write(tmp_path / "tables", table, of_table)
    written = report.write(tmp_path / "tables", tmp_path / "report.html")
    page = report_pages.parse(written.read_text(encoding="utf-8"))
    assert page.findings() == want
    assert list(report_pages.wrong_numbers(page, tmp_path / "tables")) == []
    assert page.faults == []


def test_headlines_stand_on_evidence(tmp_path: Path) -> None:
    """A single call that failed is not the highest rate of errors, and a limit that may be reached
    by chance is not the nearest one."""
    windows = [red("Rare", 1, 1), red("Join", 1000, 50)]
    report_tables.write(tmp_path, "rpc_red", windows)
    limits = [grows(2.0, "uncertain"), {**grows(9.0), "section": "users"}]
    report_tables.write(tmp_path, "growth", limits)
    tables = reading.load(tmp_path)
    shown = {each.label: each for each in headlines(tables, names_of(tables))}
    highest = shown["Highest error rate"]
    assert (highest.of, highest.number.value) == (Name("Join", "Join"), 0.05)
    assert shown["Nearest limit in"].number.value == 9.0


def test_every_rule_has_a_case() -> None:
    """Every rule has a case above, and needs only tables that exist."""
    covered = {table for rows, _ in CASES.values() for table in rows}
    assert {table for rule in RULES for table in rule.needs} <= covered & TABLES.keys()
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_truncated_table_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning on the page names a table with more rows than are read."""
    monkeypatch.setattr("analytics.report.reading.ROWS_READ_MAX", 2)
    tables = tmp_path / "tables"
    report_tables.write(tables, "data_quality", [metric(f"m{n}", 0.0) for n in range(3)])
    page = report_pages.parse(report.write(tables, tmp_path / "p.html").read_text())
    ((severity, words),) = page.findings()
    assert severity == "warning"
    assert words.startswith("Table data_quality has 3 rows, of which the first")
