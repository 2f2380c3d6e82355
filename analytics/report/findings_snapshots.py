"""Findings from the tables of snapshots: size, growth, limits, latency around cuts, waste."""

from __future__ import annotations

import math
from typing import Any, Final

from analytics.evidence import P99_CALLS_MIN
from analytics.report.overview import Names, newest, records
from analytics.report.reading import Source, Tables
from analytics.report.statements import (
    CRITICAL,
    GOOD,
    NOTICE,
    WARNING,
    Part,
    ReportFinding,
    Rule,
    graded,
    named,
    only,
    same,
    total,
)

SECTIONS_TOLD_MAX: Final = 3
CUTS_TOLD_MAX: Final = 2
# Ratios of the p99 around a cut to the baseline's p99 from which a finding is this grave. None is
# critical, since the cause may have been another.
CUT_RATIO_NOTICE: Final = 1.2
CUT_RATIO_WARNING: Final = 1.5
DAYS_TO_LIMIT_CRITICAL: Final = 7
DAYS_TO_LIMIT_WARNING: Final = 30
# `growth.confidence` of a slope that is not chance.
CONFIDENT: Final = "significant"
GARBAGE_SHARE_NOTICE: Final = 0.05
GARBAGE_SHARE_WARNING: Final = 0.3
TENANT_SHARE_NOTICE: Final = 0.5
AMPLIFICATION_WARNING: Final = 5.0
RESTORE_WARNING_S: Final = 60
RESTORE_CRITICAL_S: Final = 600


def cuts(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the snapshots around whose cuts commands were slower, each with the slowest RPC.

    A command may have been slow for another reason, so a finding names no cause. What stands on few
    calls is no finding.
    """
    rows = tables["cut_latency"].dropna(subset=["ratio"])
    fewest = rows[["calls_around", "calls_baseline"]].min(axis="columns")
    rows = rows[fewest >= P99_CALLS_MIN]
    if rows.empty:
        return []
    rows = rows.sort_values("ratio", ascending=False, kind="stable").drop_duplicates("generation")
    slow = rows[rows["ratio"] >= CUT_RATIO_NOTICE]
    if slow.empty:
        where = {key: records(rows.head(1))[0][key] for key in ("generation", "rpc")}
        ratio = only(tables, "times", "cut_latency", "ratio", **where)
        return [
            ReportFinding(
                GOOD,
                (
                    f"No RPC with {P99_CALLS_MIN} calls on both sides was slower around cuts:"
                    " p99 is at most ",
                    ratio,
                ),
            )
        ]
    found = []
    for row in records(slow.head(CUTS_TOLD_MAX)):
        where = {"generation": row["generation"], "rpc": row["rpc"]}
        ratio = only(tables, "times", "cut_latency", "ratio", **where)
        words: tuple[Part, ...] = (
            f"Around the cut of snapshot {row['generation']:.0f}, p99 of ",
            named(names, row["rpc"]),
            " was ",
            ratio,
            " what it is else: ",
            only(tables, "us", "cut_latency", "p99_us_around", **where),
            " (",
            only(tables, "count", "cut_latency", "calls_around", **where),
            " calls), else ",
            only(tables, "us", "cut_latency", "p99_us_baseline", **where),
            " (",
            only(tables, "count", "cut_latency", "calls_baseline", **where),
            " calls)",
        )
        severity = graded(row["ratio"], CUT_RATIO_WARNING, math.inf)
        found.append(ReportFinding(severity, words))
    return found


def growth(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the sections that grow, those first that reach their limit first."""
    rows = tables["growth"]
    rows = rows.assign(days=rows["days_to_limit"].astype("float64").fillna(math.inf))
    rows = rows[(rows["per_hour"] > 0) | rows["days"].map(math.isfinite)]
    rows = rows.sort_values(["days", "per_hour", "section"], ascending=[True, False, True])
    return [_growing(tables, row) for row in records(rows.head(SECTIONS_TOLD_MAX))]


def _growing(tables: Tables, row: dict[str, Any]) -> ReportFinding:
    """Return the finding on a section's growth. Growth that may be chance is no warning."""
    where = {"section": row["section"]}
    is_sure = row["confidence"] == CONFIDENT
    words: list[Part] = ["Section ", same(row["section"]), " grows by "]
    words += [only(tables, "entities_per_hour", "growth", "per_hour", **where)]
    if not is_sure:
        words += [f" ({str(row['confidence']).replace('_', ' ')}: "]
        words += [only(tables, "count", "growth", "generations", **where), " snapshots)"]
    if not math.isfinite(row["days"]):
        return ReportFinding(NOTICE, tuple(words))
    limit = only(tables, "days", "growth", "days_to_limit", **where)
    words += [": limit ", same(row["limited_by"]), " in ", limit]
    if not is_sure or row["days"] >= DAYS_TO_LIMIT_WARNING:
        return ReportFinding(NOTICE, tuple(words))
    severity = CRITICAL if row["days"] < DAYS_TO_LIMIT_CRITICAL else WARNING
    return ReportFinding(severity, tuple(words))


def size(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the size of the newest snapshot, and its largest section."""
    generation = newest(tables, "snapshot_sections")
    if generation is None:
        return []
    rows = tables["snapshot_sections"]
    by_section = rows[rows["generation"] == generation].groupby("section")["bytes"].sum()
    section = by_section.idxmax()
    where = (("generation", generation),)
    part = Source("snapshot_sections", "bytes", (*where, ("section", section)), "sum")
    words: tuple[Part, ...] = (
        f"Snapshot {generation} has ",
        total(tables, "count", "snapshot_sections", "entities", generation=generation),
        " entities in ",
        total(tables, "bytes", "snapshot_sections", "bytes", generation=generation),
        "; ",
        tables.number("share", _over(part, "bytes", "snapshot_sections", where)),
        " of it is section ",
        same(section),
    )
    return [ReportFinding(NOTICE, words)]


def garbage(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return how much of the newest snapshot is waste, and the largest sort of waste."""
    generation = newest(tables, "garbage")
    if generation is None:
        return []
    rows = tables["garbage"]
    rows = rows[rows["generation"] == generation].dropna(subset=["bytes"])
    where = (("generation", generation),)
    waste = Source("garbage", "bytes", where, "sum")
    part = tables.number("share", _over(waste, "raw_bytes", "snapshot_sections", where))
    words: list[Part] = [f"Garbage in snapshot {generation}: ", tables.number("bytes", waste)]
    severity = NOTICE
    if math.isfinite(part.value):
        words += [", ", part, " of its entities' bytes"]
        severity = GOOD if part.value < GARBAGE_SHARE_NOTICE else NOTICE
        severity = WARNING if part.value >= GARBAGE_SHARE_WARNING else severity
    rows = rows[rows["bytes"] > 0].sort_values(["bytes", "what"], ascending=[False, True])
    for row in records(rows.head(1)):
        count = only(tables, "count", "garbage", "count", generation=generation, what=row["what"])
        words += ["; most of it is ", same(row["what"].replace("_", " ")), " (", count, ")"]
    return [ReportFinding(severity, tuple(words))]


def tenants(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the tenant that has most of the newest snapshot, if one has."""
    generation = newest(tables, "snapshot_tenants")
    if generation is None:
        return []
    rows = tables["snapshot_tenants"]
    by_tenant = rows[rows["generation"] == generation].groupby("tenant")["bytes"].sum()
    if len(by_tenant) < 2:
        return []
    tenant = by_tenant.idxmax()
    where = (("generation", generation),)
    source = Source("snapshot_tenants", "bytes", (*where, ("tenant", tenant)), "sum")
    part = tables.number("share", _over(source, "bytes", "snapshot_tenants", where))
    if not part.value >= TENANT_SHARE_NOTICE:
        return []
    words: tuple[Part, ...] = ("Tenant ", same(tenant), " has ", part, " of what tenants have")
    return [ReportFinding(NOTICE, words)]


def amplification(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the bytes of layers written for each byte of the log, else of the changes."""
    generation = newest(tables, "amplification")
    for column, what in (("ratio", " the bytes of its log"), ("changed_ratio", " what changed")):
        ratio = only(tables, "times", "amplification", column, generation=generation)
        if math.isfinite(ratio.value):
            severity = WARNING if ratio.value >= AMPLIFICATION_WARNING else GOOD
            return [ReportFinding(severity, (f"Snapshot {generation} wrote ", ratio, what))]
    return []


def restore(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return how long a restart from the newest snapshot takes, and its slowest section."""
    generation = newest(tables, "restore_estimate")
    if generation is None:
        return []
    rows = tables["restore_estimate"]
    rows = rows[rows["generation"] == generation].dropna(subset=["seconds"])
    if rows.empty:
        return []
    row = records(rows.sort_values(["seconds", "section"], ascending=[False, True]).head(1))[0]
    whole = total(tables, "s", "restore_estimate", "seconds", generation=generation)
    slowest = {"generation": generation, "section": row["section"]}
    words: tuple[Part, ...] = (
        f"A restart from snapshot {generation} takes about ",
        whole,
        ", of which section ",
        same(row["section"]),
        " takes ",
        only(tables, "s", "restore_estimate", "seconds", **slowest),
    )
    return [ReportFinding(graded(whole.value, RESTORE_WARNING_S, RESTORE_CRITICAL_S), words)]


RULES: Final = (
    Rule("cuts", ("cut_latency",), cuts),
    Rule("growth", ("growth",), growth),
    Rule("size", ("snapshot_sections",), size),
    Rule("garbage", ("garbage",), garbage),
    Rule("tenants", ("snapshot_tenants",), tenants),
    Rule("amplification", ("amplification",), amplification),
    Rule("restore", ("restore_estimate",), restore),
)


def _over(source: Source, column: str, table: str, where: tuple[tuple[str, object], ...]) -> Source:
    """Return the source, divided by the sum of a column over another selection of rows."""
    return Source(source.table, source.column, source.where, source.aggregate, column, table, where)
