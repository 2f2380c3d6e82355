"""Findings from the tables of traces: latency, errors, critical path, stragglers, trust."""

from __future__ import annotations

from typing import Final, NamedTuple

from analytics.report.overview import BANDS, Names, by_error_rate, entries, records
from analytics.report.reading import ROWS, ROWS_READ_MAX, Source, Tables
from analytics.report.statements import (
    GOOD,
    NOTICE,
    WARNING,
    Part,
    ReportFinding,
    Rule,
    graded,
    largest,
    named,
    only,
    same,
    total,
)

# The largest number of RPCs in a finding: a reader with one minute reads no more.
RPCS_TOLD_MAX: Final = 3
# Of the lower end of the rate's interval.
ERROR_RATE_WARNING: Final = 0.01
ERROR_RATE_CRITICAL: Final = 0.1
# A stage with less of the critical path is not worth a sentence of its own.
SAVING_SHARE_MIN: Final = 0.1
STRAGGLER_RATIO_NOTICE: Final = 3.0
STRAGGLER_RATIO_WARNING: Final = 20.0
UNAVAILABLE_WARNING_US: Final = 1_000_000
UNAVAILABLE_CRITICAL_US: Final = 10_000_000
# The calls in each band of `critical_path`, in words.
CALLS_OF_BAND: Final = {
    "p50": "usual calls",
    "p90": "slow calls",
    "p99": "the slowest calls",
    "all": "all calls",
}


class Trust(NamedTuple):
    """A metric of `data_quality` above which a sentence is due, and the words around it."""

    metric: str
    unit: str
    warning: float
    critical: float
    words: str


# A metric below `warning` is as it should be, and gives no sentence.
TRUST: Final = (
    Trust("trace_incomplete_rate", "share", 0.01, 0.2, " of traces miss a span"),
    Trust("orphan_rate", "share", 0.01, 0.2, " of child spans are orphans: their parent is absent"),
    Trust("quarantine_rate", "share", 0.001, 0.05, " of lines and spans could not be read"),
    Trust("duplicate_rate", "share", 0.05, 0.5, " of spans were duplicates and were left out"),
    Trust(
        "trace_skewed_rate",
        "share",
        0.01,
        0.25,
        " of spans lie outside of their callers: clocks disagree",
    ),
    Trust("negative_duration_rate", "share", 0.0001, 0.01, " of spans end before they start"),
    Trust("without_service_rate", "share", 0.01, 0.5, " of spans name no service"),
    Trust("trace_oversized_traces", "count", 1, 1_000, " traces are so large that a part was left"),
)


def latency(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the p99 of the RPCs on which most time is spent, and where it goes."""
    found = []
    for row in records(entries(tables).head(RPCS_TOLD_MAX)):
        where = {"rpc": row["rpc"], "service": row["service"]}
        p99 = largest(tables, "us", "rpc_red", "p99_us", **where)
        calls = total(tables, "count", "rpc_red", "count", **where)
        verb = " p99 is " if row["windows"] == 1 else " p99 is at worst "
        words: list[Part] = [named(names, row["rpc"]), verb, p99]
        words += _heaviest_stage(tables, str(row["rpc"]))
        found.append(ReportFinding(NOTICE, (*words, " (", calls, " calls)")))
    return found


def errors(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the RPCs that fail most often, and why; or that none does."""
    rows = entries(tables)
    if rows.empty:
        return []
    failing = rows[rows["errors"] > 0]
    if failing.empty:
        failures = total(tables, "count", "rpc_red", "errors")
        if failures.value > 0:
            return [
                ReportFinding(
                    NOTICE, ("Calls that failed, and that their callers made up for: ", failures)
                )
            ]
        return [ReportFinding(GOOD, ("Calls that failed: ", failures))]
    found = []
    for row in records(by_error_rate(failing).head(RPCS_TOLD_MAX)):
        where = (("rpc", row["rpc"]), ("service", row["service"]))
        rate = tables.number("share", Source("rpc_red", "errors", where, "sum", over="count"))
        failures = total(tables, "count", "rpc_red", "errors", **dict(where))
        calls = total(tables, "count", "rpc_red", "count", **dict(where))
        # A rate of few calls is as grave as it is for certain, and one of very few is no alarm.
        severity = graded(row["low"], ERROR_RATE_WARNING, ERROR_RATE_CRITICAL)
        severity = severity if row["is_known"] else NOTICE
        words: list[Part] = ["Error rate of ", named(names, row["rpc"]), " is ", rate]
        certain = f" failed; 95 % certain: {100 * row['low']:.1f} to {100 * row['high']:.1f} %)"
        words += [" (", failures, " of ", calls, certain]
        words += _reason(tables, str(row["rpc"]))
        found.append(ReportFinding(severity, tuple(words)))
    return found


def saving(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return which stage of which RPC is most worth work: the mean saving times its calls."""
    rows = tables["critical_path"]
    rows = rows[(rows["band"] == "all") & (rows["share"] >= SAVING_SHARE_MIN)]
    if rows.empty:
        return []
    weight = (rows["saving_us"] * rows["traces"]).fillna(0)
    row = records(rows.loc[[weight.idxmax()]])[0]
    where = {"rpc": row["rpc"], "band": "all", "stage": row["stage"]}
    saved = only(tables, "us", "critical_path", "saving_us", **where)
    part = only(tables, "share", "critical_path", "share", **where)
    words: tuple[Part, ...] = (
        "Most to gain: without stage ",
        same(row["stage"]),
        ", the mean ",
        named(names, row["rpc"]),
        " would be ",
        saved,
        " shorter; it has ",
        part,
        " of the critical path",
    )
    return [ReportFinding(NOTICE, words)]


def stragglers(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the stage that fan-outs most often wait for, if it is far slower than its siblings."""
    rows = tables["stragglers"].dropna(subset=["slowest_stage", "ratio"])
    rows = rows[rows["ratio"] >= STRAGGLER_RATIO_NOTICE]
    if rows.empty:
        return []
    # Ties go to the first stage by name, because idxmax keeps the first that it meets.
    stage = rows["slowest_stage"].value_counts().sort_index().idxmax()
    where = (("slowest_stage", stage),)
    ratio = largest(tables, "times", "stragglers", "ratio", slowest_stage=stage)
    count = tables.number("count", Source("stragglers", "slowest_stage", where, ROWS))
    longest = largest(tables, "us", "stragglers", "max_us", slowest_stage=stage)
    severity = WARNING if ratio.value >= STRAGGLER_RATIO_WARNING else NOTICE
    words: tuple[Part, ...] = (
        same(stage),
        " is what fan-outs wait for: slowest in ",
        count,
        " of the worst, up to ",
        ratio,
        " the median of its siblings, ",
        longest,
        " at most",
    )
    return [ReportFinding(severity, words)]


def comparison(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return what changed most between the two periods, beyond chance."""
    rows = tables["comparison"]
    rows = rows[rows["significant"].eq(True)].dropna(subset=["ratio"])
    rows = rows[(rows["ratio"] > 0) & (rows["metric"] != "mean_us")]
    distance = rows["ratio"].map(lambda ratio: max(ratio, 1 / ratio))
    rows = rows.assign(distance=distance).sort_values("distance", ascending=False)
    found = []
    for row in records(rows.head(RPCS_TOLD_MAX)):
        where = {"rpc": row["rpc"], "metric": row["metric"]}
        unit = "share" if row["metric"] == "error_rate" else "us"
        words: tuple[Part, ...] = (
            str(row["metric"]).removesuffix("_us").replace("_", " ") + " of ",
            named(names, row["rpc"]),
            " is ",
            only(tables, "times", "comparison", "ratio", **where),
            " what it was: ",
            only(tables, unit, "comparison", "after", **where),
            ", before ",
            only(tables, unit, "comparison", "before", **where),
            " (p = ",
            only(tables, "plain", "comparison", "p_value", **where),
            ")",
        )
        found.append(ReportFinding(WARNING if row["ratio"] > 1 else GOOD, words))
    return found


def view_changes(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the longest time that a view change kept commands waiting."""
    longest = largest(tables, "us", "view_changes", "unavailable_us")
    rows = tables["view_changes"]
    places = rows["unavailable_us"].dropna()
    if places.empty:
        return []
    view = rows.loc[places.idxmax(), "view"]
    severity = graded(longest.value, UNAVAILABLE_WARNING_US, UNAVAILABLE_CRITICAL_US)
    return [
        ReportFinding(
            severity, (f"A view change (view {view:.0f}) kept commands waiting for ", longest)
        )
    ]


def trust(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the faults of the traces themselves, or a finding that there are none."""
    known = set(tables["data_quality"]["metric"])
    values = [
        (row, only(tables, row.unit, "data_quality", "value", metric=row.metric))
        for row in TRUST
        if row.metric in known
    ]
    found = [
        ReportFinding(graded(value.value, row.warning, row.critical), (value, row.words))
        for row, value in values
        if value.value >= row.warning
    ]
    if found or not values:
        return found
    row, value = values[0]
    return [ReportFinding(GOOD, ("The traces can be trusted: ", value, row.words))]


def truncated(tables: Tables, names: Names) -> list[ReportFinding]:
    """Return the tables that were read only in part, so that their numbers are too small."""
    return [
        ReportFinding(
            WARNING,
            (
                f"Table {table} has ",
                tables.number("count", Source(table, "", aggregate=ROWS)),
                f" rows, of which the first {ROWS_READ_MAX:,} were read:"
                " its findings cover only these",
            ),
        )
        for table, row_count in tables.row_counts.items()
        if len(tables[table]) < row_count and len(tables[table]) > 0
    ]


RULES: Final = (
    Rule("latency", ("rpc_red",), latency),
    Rule("errors", ("rpc_red",), errors),
    Rule("saving", ("critical_path",), saving),
    Rule("stragglers", ("stragglers",), stragglers),
    Rule("comparison", ("comparison",), comparison),
    Rule("view changes", ("view_changes",), view_changes),
    Rule("trust", ("data_quality",), trust),
    Rule("truncated", (), truncated),
)


def _heaviest_stage(tables: Tables, rpc: str) -> list[Part]:
    """Return `; 60 % of it in stage streams` from the slowest band that the RPC has."""
    rows = tables["critical_path"]
    rows = rows[(rows["rpc"] == rpc) & rows["share"].notna()]
    band = next((band for band in BANDS if band in set(rows["band"])), None)
    if band is None:
        return []
    rows = rows[rows["band"] == band]
    stage = rows.sort_values(["share", "stage"], ascending=[False, True])["stage"].iloc[0]
    part = only(tables, "share", "critical_path", "share", rpc=rpc, band=band, stage=stage)
    return ["; ", part, f" of the time of {CALLS_OF_BAND[band]} is in stage ", same(stage)]


def _reason(tables: Tables, rpc: str) -> list[Part]:
    """Return `, mostly UNAVAILABLE from viewstamp-users`, if the errors of the RPC are known."""
    rows = tables["errors"]
    rows = rows[rows["rpc"] == rpc]
    if rows.empty:
        return []
    order = ["traces", "reason", "root_cause_service"]
    row = records(rows.sort_values(order, ascending=[False, True, True]).head(1))[0]
    return [", mostly ", same(row["reason"]), " from ", same(row["root_cause_service"])]
