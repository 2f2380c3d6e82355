"""All findings, the gravest first, and the few numbers that stand above them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from analytics.report import findings_snapshots, findings_traces
from analytics.report.overview import Names, by_error_rate, entries, newest, records
from analytics.report.reading import ROWS, Number, Source, Tables
from analytics.report.statements import (
    SEVERITIES,
    Name,
    ReportFinding,
    Rule,
    largest,
    named,
    only,
    same,
    total,
)

RULES: Final[tuple[Rule, ...]] = (*findings_traces.RULES, *findings_snapshots.RULES)


@dataclass(frozen=True, slots=True)
class Headline:
    """A number above all others: what it is, of what, and the number."""

    label: str
    of: Name | None
    number: Number


def findings(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return what the rules find; those of one severity in the order of the rules."""
    found = [
        replace(finding, rule=rule.name)
        for rule in RULES
        if all(not tables[table].empty for table in rule.needs)
        for finding in rule.find(tables, names)
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def headlines(tables: Tables, names: Names) -> list[Headline]:
    """Return the numbers above all others, as far as their tables are there."""
    found = [Headline("Spans", None, tables.number("count", Source("spans", "", aggregate=ROWS)))]
    found = [headline for headline in found if headline.number.value > 0]
    found += _of_rpcs(tables, names)
    generation = newest(tables, "snapshot_sections")
    if generation is not None:
        size = total(tables, "bytes", "snapshot_sections", "bytes", generation=generation)
        found.append(Headline("Newest snapshot", same(f"generation {generation}"), size))
    generation = newest(tables, "restore_estimate")
    if generation is not None:
        seconds = total(tables, "s", "restore_estimate", "seconds", generation=generation)
        found.append(Headline("Restart takes about", same(f"generation {generation}"), seconds))
    limit = tables["growth"].dropna(subset=["days_to_limit"])
    limit = limit[limit["confidence"] == findings_snapshots.CONFIDENT]
    if not limit.empty:
        row = records(limit.sort_values(["days_to_limit", "section"]).head(1))[0]
        days = only(tables, "days", "growth", "days_to_limit", section=row["section"])
        found.append(Headline("Nearest limit in", same(f"section {row['section']}"), days))
    return found


def _of_rpcs(tables: Tables, names: Names) -> list[Headline]:
    """Return the numbers of the RPC on which most time is spent, and of the one that fails most."""
    rows = entries(tables)
    if rows.empty:
        return []
    first = records(rows.head(1))[0]
    where = {"rpc": first["rpc"], "service": first["service"]}
    of = named(names, first["rpc"])
    worst = records(by_error_rate(rows).head(1))[0]
    of_worst = (("rpc", worst["rpc"]), ("service", worst["service"]))
    errors = Source("rpc_red", "errors", of_worst, "sum", over="count")
    return [
        Headline("Calls", of, total(tables, "count", "rpc_red", "count", **where)),
        Headline("Worst p99", of, largest(tables, "us", "rpc_red", "p99_us", **where)),
        Headline("Highest error rate", named(names, worst["rpc"]), tables.number("share", errors)),
    ]
