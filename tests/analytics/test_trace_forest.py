"""Traces walked many at a time give the same rows as traces walked one by one."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.traces import walk
from tests.analytics import trace_oracle
from tests.analytics.trace_spans import Span, random_traces, small_traces, span


def rows_of(spans: list[Span]) -> list[pa.RecordBatch]:
    """Return the spans as Spark sends them to Python, ordered by trace and span."""
    rows = [
        {
            "trace_id": one["trace_id"],
            "span_id": one["span_id"],
            "parent_id": one["parent_span_id"] or None,
            "start_us": one["start_us"],
            "end_us": one["end_us"],
            "host": f"{one['service']}|{one.get('instance')}",
            "synchronous": one["kind"] == "SERVER",
            "stage": trace_oracle.stage(one),
            "service": one["service"],
            "error": one["status"] == "ERROR",
            "reason": one["span_id"],
            "rpc": one["rpc"],
            "duration_us": one["duration_us"],
            "call": one["kind"] != "INTERNAL",
            "op": one.get("op"),
        }
        for one in sorted(spans, key=lambda one: (one["trace_id"], one["span_id"]))
    ]
    batches: list[pa.RecordBatch] = pa.Table.from_pylist(rows, walk.SENT_SCHEMA).to_batches(1000)
    return batches


def walked(spans: list[Span], together: bool) -> list[dict[str, Any]]:
    """Return the rows of the traces, walked together or one by one."""
    with pytest.MonkeyPatch.context() as patch:
        if not together:
            patch.setattr(walk, "FOREST_TRACE_SPANS_MAX", 0)
        batches = list(walk.walk_batches(rows_of(spans)))
    found = [row for batch in batches for row in batch.to_pylist()]
    for row in found:
        row["path"] = {step.pop("stage"): step for step in row["path"]}
    return found


@settings(max_examples=200)
@given(st.lists(small_traces(), min_size=1, max_size=8))
def test_together_is_one_by_one(traces: list[list[Span]]) -> None:
    """For any times, hosts, parents and stages, both ways give the same rows."""
    spans = [one | {"trace_id": f"t{n}"} for n, trace in enumerate(traces) for one in trace]
    assert walked(spans, together=True) == walked(spans, together=False)


@pytest.mark.parametrize("seed", [1, 2])
def test_many_traces_are_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways agree on thousands of spans in portions, with cycles, large and wide traces."""
    monkeypatch.setattr(walk, "ROWS_PER_BATCH", 1500)
    chance = random.Random(seed)
    spans = random_traces(seed, 400)
    for number, size in enumerate((2, 40, 255, 256, 257, 700)):
        times = [sorted(chance.sample(range(10_000), 2)) for _ in range(size)]
        spans += [
            span(
                f"wide-{number}",
                f"w{at}",
                f"w{max(0, at - chance.choice((1, 1, 5, size)))}" if at else None,
                *(times[at] if at else (0, 10_000)),
                name=f"stage {chance.randrange(9)}",
                service=chance.choice("ab"),
            )
            for at in range(size)
        ]
        # Two spans that are each other's parents, so no root is above them.
        spans += [span(f"circle-{number}", f"c{at}", f"c{1 - at}", at, 10 - at) for at in range(2)]
    assert walked(spans, together=True) == walked(spans, together=False)


def test_fan_outs_a_second_time() -> None:
    """The slowest and the median call of each fan-out are what a loop over spans finds."""
    spans = random_traces(5, 300)
    chance = random.Random(5)
    for one in spans:
        one |= {"op": chance.choice((None, 3, 7)), "duration_us": float(chance.randrange(4))}
    calls: dict[tuple[str, str], list[Span]] = {}
    for one in spans:
        if one["kind"] != "INTERNAL" and one["parent_span_id"]:
            calls.setdefault((one["trace_id"], one["parent_span_id"]), []).append(one)
    expected = {}
    for key, some in calls.items():
        if len(some) > 1:
            ranked = sorted((one["duration_us"], trace_oracle.stage(one)) for one in some)
            op = max((one["op"] for one in some if one["op"] is not None), default=None)
            median_us = ranked[(len(ranked) - 1) // 2][0]
            expected[key] = (op, ranked[-1][1], ranked[-1][0], median_us)
    found = {
        (row["trace_id"], one["parent_id"]): tuple(one.values())[1:]
        for row in walked(spans, together=True)
        for one in row["fan_outs"]
    }
    assert found == expected
    assert len(found) > 100
