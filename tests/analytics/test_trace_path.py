"""The critical path, the savings and the root cause of single traces, without Spark."""

from __future__ import annotations

import pytest
from hypothesis import given

from analytics.traces import path
from analytics.traces.cause import Cause, root_cause
from analytics.traces.tree import Trace, parents_of, root_of, tree_of
from tests.analytics import trace_oracle
from tests.analytics.trace_spans import EPOCH_US, Span, small_traces, span


def trace_of(spans: list[Span]) -> Trace:
    """Return the spans as the walk sees them."""
    return Trace(
        span_ids=[one["span_id"] for one in spans],
        parent_ids=[one["parent_span_id"] for one in spans],
        starts_us=[one["start_us"] for one in spans],
        ends_us=[one["end_us"] for one in spans],
        hosts=[f"{one['service']}|{one.get('instance')}" for one in spans],
        synchronous=[one["kind"] == "SERVER" for one in spans],
        stages=[trace_oracle.stage(one) for one in spans],
        services=[one["service"] for one in spans],
        errors=[one["status"] == "ERROR" for one in spans],
        reasons=[one["span_id"] for one in spans],
    )


def walk(spans: list[Span]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the time on the path and the saving per stage."""
    trace = trace_of(spans)
    parents = parents_of(trace)
    tree = tree_of(trace, parents, root_of(trace, parents))
    on_path, parallel = path.critical_path(tree, trace.stages, trace.span_ids)
    return on_path, path.savings(tree, trace.stages, on_path, parallel)


ROOT = span("t", "root", None, 0, 100)


@pytest.mark.parametrize(
    ("below", "on_path", "saving"),
    [
        ([], {"a": 100}, {"a": 100}),
        # Children one after the other: the saving of a stage is its time on the path.
        (
            [span("t", "x", "root", 10, 40), span("t", "y", "root", 50, 90)],
            {"a": 30, "x": 30, "y": 40},
            {"a": 30, "x": 30, "y": 40},
        ),
        # Children beside each other: the one that returns last is on the path. Without it, the
        # other returns last, which limits the saving.
        (
            [span("t", "x", "root", 10, 60), span("t", "y", "root", 10, 90)],
            {"a": 20, "y": 80},
            {"a": 20, "y": 30},
        ),
        # Nested children, and a stage that occurs twice.
        (
            [span("t", "x", "root", 10, 90), span("t", "y", "x", 20, 50, name="root")],
            {"a": 20, "x": 50, "root": 30},
            {"a": 20, "x": 50, "root": 30},
        ),
        # Returns after its parent: cut. Begins after its parent's end: left out, with its child.
        (
            [
                span("t", "x", "root", 60, 150),
                span("t", "late", "root", 101, 120),
                span("t", "later", "late", 80, 90),
            ],
            {"a": 60, "x": 40},
            {"a": 60, "x": 40},
        ),
        # Another host's clock is ahead by 200: the call is centred, and its child moves along.
        (
            [
                span("t", "call", "root", 20, 80, kind="CLIENT"),
                span("t", "answer", "call", 230, 270, kind="SERVER", service="b"),
                span("t", "inner", "answer", 240, 250, service="b"),
            ],
            {"a": 40, "call": 20, "b": 30, "inner": 10},
            {"a": 40, "call": 20, "b": 30, "inner": 10},
        ),
        # A call that outlasts its caller is moved to its caller's start, and cut.
        (
            [
                span("t", "call", "root", 20, 40, kind="CLIENT"),
                span("t", "answer", "call", 10, 70, kind="SERVER", service="b"),
            ],
            {"a": 80, "call": 0, "b": 20},
            {"a": 80, "call": 0, "b": 20},
        ),
        # Nobody waits for a consumer, so its times stay as they are: it ended with the root.
        (
            [span("t", "answer", "root", 90, 140, kind="CONSUMER", service="b")],
            {"a": 90, "b": 10},
            {"a": 90, "b": 10},
        ),
        # A span whose parent is missing takes part in the root's time; cycles and a second root
        # outside of the first are left out.
        (
            [
                span("t", "orphan", "lost", 30, 50),
                span("t", "egg", "hen", 60, 70),
                span("t", "hen", "egg", 60, 70),
                span("t", "self", "self", 60, 70),
                span("t", "second", None, 200, 210),
            ],
            {"a": 80, "orphan": 20},
            {"a": 80, "orphan": 20},
        ),
        # A span of no length is on the path.
        (
            [span("t", "quorum", "root", 40, 40)],
            {"a": 100, "quorum": 0},
            {"a": 100, "quorum": 0},
        ),
        # A span of no length is not on the path where another span returned at that time, nor is it
        # parallel work.
        (
            [
                span("t", "x", "root", 10, 40),
                span("t", "quorum", "root", 40, 40),
                span("t", "y", "root", 40, 90),
            ],
            {"a": 20, "x": 30, "y": 50},
            {"a": 20, "x": 30, "y": 50},
        ),
    ],
)
def test_small_traces(below: list[Span], on_path: dict[str, int], saving: dict[str, int]) -> None:
    """Paths and savings are those found by hand."""
    assert walk([ROOT, *below]) == (on_path, saving)


def test_root_is_chosen_by_what_is_known_of_parents() -> None:
    """A span without parent is the root, even if an orphan began earlier."""
    spans = [span("t", "orphan", "lost", -50, 500), span("t", "top", None, 0, 10)]
    trace = trace_of(spans)
    assert root_of(trace, parents_of(trace)) == 1
    assert root_of(trace, [0, 1]) == 1, "in circles too"


def test_deep_trace_needs_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of 20,000 spans is walked, its savings and its root cause too."""
    depth = 20_000
    monkeypatch.setattr(path, "SAVING_STEPS_MAX", 10 * depth)
    spans = [
        span("t", f"s{at}", f"s{at - 1}" if at else None, at, 2 * depth - at + 5, status="ERROR")
        for at in range(depth)
    ]
    spans += [span("t", "beside", "s0", 0, depth, name="beside")]
    on_path, saving = walk(spans)
    assert on_path["s7"] == 2
    # Only some of so many stages are replayed, the longest among them.
    assert saving[f"s{depth - 1}"] == on_path[f"s{depth - 1}"] == 7
    cause = root_cause(trace_of(spans), parents_of(trace_of(spans)))
    assert cause is not None
    assert cause.reason == f"s{depth - 1}"


def test_wide_traces_are_replayed_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the budget is one replay, the stage with most time on the path gets it."""
    spans = [
        ROOT,
        span("t", "x", "root", 0, 40),
        span("t", "y", "root", 40, 100),
        span("t", "beside", "root", 50, 90),
    ]
    assert walk(spans)[1] == {"a": 0, "x": 40, "y": 10}
    monkeypatch.setattr(path, "SAVING_STEPS_MAX", len(spans))
    assert walk(spans)[1] == {"a": 0, "x": 0, "y": 10}


@given(small_traces())
def test_paths_are_longest_paths_of_events(spans: list[Span]) -> None:
    """Path and savings equal those of the graph of events, and never exceed the root."""
    on_path, saving = walk(spans)
    events = trace_oracle.Events(spans)
    duration = spans[0]["end_us"] - EPOCH_US
    assert sum(on_path.values()) == duration == events.length(None)
    expected = {name: us for name, us in events.on_path().items() if us}
    assert {name: us for name, us in on_path.items() if us} == expected
    assert {name: us for name, us in saving.items() if us or name in expected} == {
        name: duration - events.length(name) for name in expected
    }
    assert all(0 <= saving[name] <= on_path[name] for name in on_path)


@pytest.mark.parametrize(
    ("spans", "cause"),
    [
        ([ROOT], None),
        # The deepest failed span counts, not the failed sibling higher up, nor its failed parents.
        (
            [
                span("t", "web", None, 0, 100, service="web", status="ERROR"),
                span("t", "early", "web", 1, 2, service="log", status="ERROR"),
                span("t", "call", "web", 10, 90, service="web", status="ERROR"),
                span("t", "cart", "call", 20, 80, service="cart", status="ERROR"),
                span("t", "stock", "cart", 30, 70, service="stock", status="ERROR"),
                span("t", "fine", "stock", 40, 50, service="db"),
            ],
            Cause("stock", "stock", "cart > web"),
        ),
        # The caller did not fail, so the spans above it failed for another reason.
        (
            [
                span("t", "web", None, 0, 100, service="web", status="ERROR"),
                span("t", "call", "web", 10, 90, service="cart"),
                span("t", "stock", "call", 30, 70, service="stock", status="ERROR"),
            ],
            Cause("stock", "stock", ""),
        ),
        # Of two equally deep spans, the first to fail counts.
        (
            [
                span("t", "web", None, 0, 100, service="web", status="ERROR"),
                span("t", "second", "web", 10, 90, service="b", status="ERROR"),
                span("t", "first", "web", 10, 80, service="c", status="ERROR"),
            ],
            Cause("c", "first", "web"),
        ),
        # A cycle of parents ends the way up.
        (
            [
                span("t", "hen", "egg", 0, 100, service="b", status="ERROR"),
                span("t", "egg", "hen", 0, 90, service="c", status="ERROR"),
            ],
            Cause("c", "egg", "b"),
        ),
    ],
)
def test_root_causes(spans: list[Span], cause: Cause | None) -> None:
    """The root cause is the deepest failed span without a failed child, the way up its parents."""
    trace = trace_of(spans)
    assert root_cause(trace, parents_of(trace)) == cause
