"""Traces as they come from Spark: over several batches, and beyond the limit of the walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from analytics.traces import walk

NAMES = (
    *("trace_id", "span_id", "parent_id", "start_us", "end_us", "host", "synchronous"),
    *("stage", "service", "error", "reason", "rpc", "duration_us", "call", "op"),
)


def row(trace_id: str, span_id: str, parent: str | None, start: int, end: int) -> tuple[Any, ...]:
    """Return a span as Python gets it."""
    names = (trace_id, span_id, parent)
    more = ("h", False, span_id, "a", False, None, "rpc", float(end - start), False, None)
    return (*names, start, end, *more)


def results(rows: list[tuple[Any, ...]], batch_rows: int) -> list[dict[str, Any]]:
    """Return the results for rows that come in batches of so many."""

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(rows), batch_rows):
            columns = zip(*rows[first : first + batch_rows], strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(one) for one in columns], NAMES)

    return [one for batch in walk.walk_batches(batches()) for one in batch.to_pylist()]


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_batches_may_cut_traces(batch_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace gives one row, wherever input and output batches begin."""
    monkeypatch.setattr(walk, "ROWS_PER_BATCH", 2)
    rows = [
        one
        for number in range(5)
        for one in (
            row(f"t{number}", "top", None, 0, 100),
            row(f"t{number}", "in", "top", 10, 20 + number),
        )
    ]
    found = {
        one["trace_id"]: {part["stage"]: part["on_path_us"] for part in one["path"]}
        for one in results(rows, batch_rows)
    }
    assert found == {f"t{n}": {"top": 90 - n, "in": 10 + n} for n in range(5)}


def test_no_batches_no_rows() -> None:
    """A task without spans yields nothing."""
    assert results([], 1) == []


def test_huge_traces_are_walked_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of spans beyond the limit counts for their parents, and the next trace is whole."""
    monkeypatch.setattr(walk, "TRACE_SPANS_MAX", 2)
    rows = [
        row("huge", "top", None, 0, 100),
        row("huge", "long", "top", 0, 50),
        row("huge", "short", "top", 50, 60),
        row("huge", "tiny", "short", 50, 51),
        row("next", "top", None, 0, 10),
    ]
    huge, following = results(rows, 3)
    assert [(part["stage"], part["on_path_us"]) for part in huge["path"]] == [
        ("top", 50),
        ("long", 50),
    ]
    assert (following["trace_id"], following["duration_us"]) == ("next", 10.0)
