"""Measures the quality of the data, writes it as a table, and refuses data that is too bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from analytics.otlp import canonical, flatten, foreign_files, lines
from analytics.schema import UNKNOWN_SERVICE
from analytics.session import AnalyticsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REASONS: Final = (
    flatten.CUT_LINE,
    flatten.NOT_JSON,
    flatten.NOT_OTLP,
    flatten.JOINED_LINES,
    flatten.INVALID_ID,
    flatten.INVALID_TIME,
    flatten.LATE,
    flatten.OUT_OF_RANGE,
    *canonical.REASONS,
    foreign_files.TOO_LARGE,
    foreign_files.CUT_MESSAGE,
    lines.TOO_LONG,
    lines.UNREADABLE,
)


class QualityError(AnalyticsError):
    """The data is too bad for conclusions. The message names every threshold that it misses."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The largest accepted rate, as a fraction, and what to do where a rate is larger."""

    most: float
    remedy: str


# The data of any producer has rates up to these; beyond them, conclusions would mislead.
THRESHOLDS: Final[dict[str, Threshold]] = {
    "quarantine_rate": Threshold(0.05, "look into the table `quarantine`"),
    "duplicate_rate": Threshold(0.5, "name every file once, and find out who exports twice"),
    "orphan_rate": Threshold(0.5, "name the directories of all services"),
    "starts_before_parent_rate": Threshold(0.25, "synchronize the clocks of the machines"),
    "negative_duration_rate": Threshold(0.01, "mend the clock of the producer"),
    "without_service_rate": Threshold(0.5, "set service.name at the producers"),
}


def measure(spans: DataFrame, quarantine: DataFrame, counts: Mapping[str, int]) -> dict[str, float]:
    """Return the rows of `data_quality`: `counts`, what the tables show, and the rates.

    `counts` has at least `spans_read`. Parents are found by 64-bit hashes of their ids: among 100
    million spans, the chance of missing an orphan is about 1 in 1,000.
    """
    values = {name: float(value) for name, value in counts.items()}
    values |= _of_spans(spans) | _of_parents(spans) | _of_quarantine(quarantine)
    values["duplicates"] = values["spans_read"] - values["spans"]
    rates = {
        "quarantine_rate": ("quarantined", values["quarantined"] + values["spans_read"]),
        "duplicate_rate": ("duplicates", values["spans_read"]),
        "orphan_rate": ("orphans", values["spans_with_parent"]),
        "starts_before_parent_rate": ("starts_before_parent", values["spans_with_parent"]),
        "child_outside_parent_rate": ("child_outside_parent", values["spans_with_parent"]),
        "negative_duration_rate": ("negative_durations", values["spans"]),
        "without_service_rate": ("without_service", values["spans"]),
    }
    return values | {
        name: values[part] / whole if whole > 0 else 0.0 for name, (part, whole) in rates.items()
    }


def enforce(values: Mapping[str, float], thresholds: Mapping[str, Threshold] = THRESHOLDS) -> None:
    """Raise QualityError if there are no spans, or a rate is above its threshold."""
    if values["spans"] == 0:
        raise QualityError(
            f"no span could be read from {values['lines']:.0f} lines: look into the table"
            " `quarantine`, and check that these are traces"
        )
    missed = [
        f"{name} is {values[name]:.3f}, at most {threshold.most} is accepted ({threshold.remedy})"
        for name, threshold in thresholds.items()
        if values[name] > threshold.most
    ]
    if missed:
        raise QualityError(f"the data is too bad to analyse: {'; '.join(missed)}")


def _of_spans(spans: DataFrame) -> dict[str, float]:
    """Return counts of single spans."""
    from pyspark.sql import functions as f

    ours = f.exists(f.map_keys("attributes"), lambda key: key.startswith("viewstamp."))
    row = spans.agg(
        f.count("*").alias("spans"),
        f.count("parent_span_id").alias("spans_with_parent"),
        f.count_if(f.col("end_us") < f.col("start_us")).alias("negative_durations"),
        f.count_if(f.col("service") == UNKNOWN_SERVICE).alias("without_service"),
        f.count_if(ours).alias("spans_of_viewstamp"),
    ).first()
    assert row is not None, "an aggregate of all rows is one row"
    return {name: float(value) for name, value in row.asDict().items()}


def _of_parents(spans: DataFrame) -> dict[str, float]:
    """Return counts of spans against their parents, and the largest visible difference of clocks.

    A span that ends after its parent may be asynchronous; one that starts before it cannot be.
    """
    from pyspark.sql import functions as f

    times = ("start_us", "end_us")
    child = spans.where("parent_span_id IS NOT NULL").select(
        f.xxhash64("trace_id", "parent_span_id").alias("key"), *times
    )
    parent = spans.select(
        f.xxhash64("trace_id", "span_id").alias("key"),
        *(f.col(name).alias(f"parent_{name}") for name in times),
    )
    early = f.col("parent_start_us") - f.col("start_us")
    late = f.col("end_us") - f.col("parent_end_us")
    row = (
        child.join(parent, "key", "left")
        .agg(
            f.count_if(f.col("parent_start_us").isNull()).alias("orphans"),
            f.count_if(early > 0).alias("starts_before_parent"),
            f.count_if(late > 0).alias("ends_after_parent"),
            f.count_if((early > 0) | (late > 0)).alias("child_outside_parent"),
            f.coalesce(f.max(early), f.lit(0)).alias("clock_skew_max_us"),
        )
        .first()
    )
    assert row is not None, "an aggregate of all rows is one row"
    return {name: max(0.0, float(value)) for name, value in row.asDict().items()}


def _of_quarantine(quarantine: DataFrame) -> dict[str, float]:
    """Return how many rows are in quarantine, in all and for each reason, and files skipped."""
    rows = quarantine.groupBy("reason").count().collect()
    found = {row["reason"]: float(row["count"]) for row in rows}
    # A file of something else is named there, but it is no bad data.
    skipped = found.pop(lines.SKIPPED_FILE, 0.0)
    named = {f"quarantined_{reason}": found.get(reason, 0.0) for reason in REASONS}
    return {"quarantined": sum(found.values(), 0.0), "files_skipped": skipped, **named}
