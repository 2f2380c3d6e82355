"""Spans written by hand and at random, and the DataFrame that they make up."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis import strategies as st

from analytics import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Span: TypeAlias = dict[str, Any]

# A full minute of 2027; times of cases count from here.
EPOCH_US = 1_800_000_000_000_000 // 60_000_000 * 60_000_000
MINUTE_US = 60_000_000


def span(
    trace_id: str, span_id: str, parent: str | None, start: int, end: int, **columns: Any
) -> Span:
    """Return a span from `start` to `end` in microseconds since EPOCH_US.

    By default, it is a successful INTERNAL span of service `a`, named after its id.
    """
    plain: Span = {
        "service": "a",
        "kind": "INTERNAL",
        "name": span_id,
        "status": "UNSET",
        "attributes": {},
        "events": [],
        "links": [],
    }
    times = {
        "start_us": EPOCH_US + start,
        "end_us": EPOCH_US + end,
        "duration_us": float(max(end - start, 0)),
    }
    ids = {"trace_id": trace_id, "span_id": span_id, "parent_span_id": parent}
    made = plain | ids | times | columns
    made.setdefault("rpc", made["name"])
    return made


def link(trace_id: str, span_id: str) -> dict[str, Any]:
    """Return a link to a span."""
    return {"trace_id": trace_id, "span_id": span_id, "attributes": {}}


def frame(spark: SparkSession, spans: list[Span]) -> DataFrame:
    """Return the spans as the `spans` table; columns that are not set are null."""
    names = schema.SPANS.column_names()
    rows = [tuple(one.get(name) for name in names) for one in spans]
    return spark.createDataFrame(rows, schema.SPANS.struct())


def random_traces(seed: int, count: int) -> list[Span]:
    """Return traces of 1 to 14 spans: calls, skewed clocks, orphans, links, peers and errors."""
    chance = random.Random(seed)
    spans: list[Span] = []
    for number in range(count):
        spans += _random_trace(chance, f"random-{number}")
    for one in spans:
        if chance.random() < 0.1:
            other = chance.choice(spans)
            one["links"] = [link(other["trace_id"], other["span_id"])]
    chance.shuffle(spans)
    return spans


def _random_trace(chance: random.Random, trace_id: str) -> list[Span]:
    """Return one trace, its root first."""
    # All ends of spans differ, so that it is always clear which child returned last.
    times = iter(chance.sample(range(1_000_000), 64))
    spans: list[Span] = []
    for place in range(chance.randint(1, 14)):
        parent = None if place == 0 else f"s{chance.randrange(place)}"
        if place and chance.random() < 0.05:
            parent = "lost"
        start, end = sorted((next(times), next(times)))
        if place == 0:
            start, end = start // 10, end + 100_000
        spans.append(_random_span(chance, trace_id, place, parent, start, end))
    return spans


def _random_span(
    chance: random.Random, trace_id: str, place: int, parent: str | None, start: int, end: int
) -> Span:
    """Return one span of a random trace."""
    kind = "SERVER" if place == 0 else chance.choice(("INTERNAL", "CLIENT", "SERVER", "CONSUMER"))
    named = kind == "CLIENT" and chance.random() < 0.5
    return span(
        trace_id,
        f"s{place}",
        parent,
        start,
        end,
        kind=kind,
        service=chance.choice(("web", "cart", "pay")),
        instance=chance.choice(("0", "1")),
        name=chance.choice(("read", "write", "render")),
        rpc=f"random/{chance.randrange(3)}",
        stage=chance.choice((None, None, "journal")),
        status=chance.choice(("UNSET", "OK", "ERROR")),
        attributes={"peer.service": chance.choice(("db", "mail"))} if named else {},
    )


@st.composite
def small_traces(draw: st.DrawFn) -> list[Span]:
    """Draw a trace of few spans in a short time, so that ends meet and zero lengths occur."""
    count = draw(st.integers(1, 9))
    spans = [span("t", "s0", None, 0, draw(st.integers(0, 15)), kind="SERVER")]
    for place in range(1, count):
        start = draw(st.integers(-2, 16))
        spans.append(
            span(
                "t",
                f"s{place}",
                draw(st.sampled_from([f"s{at}" for at in range(place)] + ["lost", f"s{place}"])),
                start,
                start + draw(st.integers(-1, 9)),
                name=draw(st.sampled_from(("x", "y", "z"))),
                kind=draw(st.sampled_from(("INTERNAL", "SERVER", "CLIENT", "CONSUMER"))),
                service=draw(st.sampled_from(("a", "b"))),
            )
        )
    return spans
