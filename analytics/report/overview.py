"""What several parts of the page need: short names, and which rows stand for an RPC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import pandas as pd

from analytics.evidence import RATE_CALLS_MIN, rate_interval
from analytics.report.reading import Tables

# The order in which a command meets the stages; other stages follow by name.
STAGE_ORDER: Final = (
    "queue",
    "journal",
    "replicate",
    "commit",
    "sessions",
    "users",
    "streams",
    "consumer_groups",
    "catalog",
    "apply",
)
BANDS: Final = ("p99", "p90", "p50", "all")


class Names:
    """Short names of RPCs: `CreateTopic` for `StreamsService/CreateTopic`, if no other has it."""

    def __init__(self, full_names: Iterable[str]) -> None:
        self._counts = Counter(_last(name) for name in set(full_names))

    def short(self, name: str) -> str:
        """Return the last part of the name, or the whole name if others end in the same way."""
        last = _last(name)
        return name if self._counts[last] > 1 else last


def names_of(tables: Tables) -> Names:
    """Return the short names of all RPCs in the tables."""
    known = ("rpc_red", "stage_latency", "critical_path", "errors", "cut_latency", "comparison")
    return Names(str(rpc) for table in known for rpc in tables[table]["rpc"].dropna().unique())


def entries(tables: Tables) -> pd.DataFrame:
    """Return a row per RPC, ordered by calls * p50_us descending, with the index 0, 1, ….

    For an RPC that several services saw, the row is of the service that saw most calls of it; ties
    go to the service that waited longest: the caller. Columns: rpc, service, calls, errors,
    windows, the medians over windows p50_us, p90_us, p99_us, and the maxima worst_p99_us and
    max_us.
    """
    grouped = tables["rpc_red"].groupby(["rpc", "service"], as_index=False, observed=True)
    found = grouped.agg(
        calls=("count", "sum"),
        errors=("errors", "sum"),
        windows=("count", "size"),
        p50_us=("p50_us", "median"),
        p90_us=("p90_us", "median"),
        p99_us=("p99_us", "median"),
        worst_p99_us=("p99_us", "max"),
        max_us=("max_us", "max"),
    )
    found = found.sort_values(
        ["rpc", "calls", "p50_us", "service"], ascending=[True, False, False, True]
    ).drop_duplicates("rpc")
    found["impact"] = found["calls"] * found["p50_us"]
    return found.sort_values(["impact", "rpc"], ascending=[False, True], ignore_index=True)


def by_error_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `entries`, those first that surely fail most.

    Adds the ends of the rate's interval, `low` and `high`, and `is_known`: whether there are enough
    calls. Rows of few calls come behind all others, so that no single call pushes these off a page.
    """
    intervals = [rate_interval(row["errors"], row["calls"]) for row in records(rows)]
    judged = rows.assign(
        low=[low for low, _ in intervals],
        high=[high for _, high in intervals],
        is_known=rows["calls"] >= RATE_CALLS_MIN,
    )
    return judged.sort_values(["is_known", "low"], ascending=False, kind="stable")


def newest(tables: Tables, name: str) -> int | None:
    """Return the newest generation of a table, None if it has no row."""
    generations = tables[name]["generation"].dropna()
    return None if generations.empty else int(generations.max())


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries."""
    found: list[dict[str, Any]] = rows.to_dict("records")
    return found


def stage_order(stages: Iterable[str]) -> list[str]:
    """Return the stages in the order in which a command meets them."""
    places = {stage: place for place, stage in enumerate(STAGE_ORDER)}
    return sorted(set(stages), key=lambda stage: (places.get(stage, len(places)), stage))


def _last(name: str) -> str:
    """Return the text after the last slash."""
    return name.rsplit("/", 1)[-1] or name
