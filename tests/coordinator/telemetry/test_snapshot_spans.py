"""The spans of generations, with a tracer that keeps them here."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from coordinator.mux.catalog_types import Snapshot, SnapshotState
from coordinator.telemetry.snapshots import GENERATIONS_MAX, SnapshotWatch
from tests.viewstamp.telemetry.spans_for_tests import SdkSpans
from viewstamp.telemetry.current import make_current
from viewstamp.telemetry.sampling import TraceContext

GENERATION, OP = 3, 40


class WatchedSnapshots:
    """A watch that serves, and its finished spans."""

    def __init__(self) -> None:
        """Serve."""
        self.kept = SdkSpans()
        self.watch = SnapshotWatch(self.kept.tracer, None)
        self.watch.serving = True

    def cut(self, generation: int) -> None:
        """Take a cut."""
        taken: Any = SimpleNamespace(generation=generation, op=OP)
        self.watch.cut_taken(taken, admitted_ns=1_000, handed_over_ns=2_000)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """Return the finished spans by name."""
        return {span.name: span for span in self.kept.spans}


@pytest.fixture
def within_a_call() -> Iterator[None]:
    """Run within the span of a sampled call, as the work that a unary call starts does."""
    make_current(TraceContext(32 * "a", 16 * "b"))
    yield
    make_current(None)


def test_a_failed_snapshot_is_told(within_a_call: None) -> None:
    """A failed snapshot has its own trace, whichever call was served, from the admission of its
    cut."""
    watched = WatchedSnapshots()
    watched.cut(GENERATION)
    watched.watch.decided([Snapshot(GENERATION, SnapshotState.FAILED)])
    cut, decide, root = (watched.spans[name] for name in ("cut", "decide", "snapshot"))
    assert root.parent is None and root.context is not None
    assert root.context.trace_id != int(32 * "a", 16)
    assert cut.parent == decide.parent == root.context
    assert (root.start_time, cut.start_time) == (1_000, 2_000)
    assert root.status.status_code is StatusCode.ERROR
    assert dict(root.attributes or {}) == {
        "viewstamp.generation": GENERATION,
        "viewstamp.bytes": 0,
        "viewstamp.entities": 0,
        "viewstamp.outcome": "FAILED",
    }
    assert dict(cut.attributes or {}) == {"viewstamp.generation": GENERATION, "viewstamp.op": OP}


def test_few_generations_are_open() -> None:
    """Of generations that are never decided only the last few are kept."""
    watched = WatchedSnapshots()
    for generation in range(1, 2 * GENERATIONS_MAX + 1):
        watched.cut(generation)
    for generation in range(1, 2 * GENERATIONS_MAX + 1):
        watched.watch.decided([Snapshot(generation, SnapshotState.FAILED)])
    ended = [span for span in watched.kept.spans if span.name == "snapshot"]
    found = [(span.attributes or {})["viewstamp.generation"] for span in ended]
    assert found == list(range(GENERATIONS_MAX + 1, 2 * GENERATIONS_MAX + 1))
