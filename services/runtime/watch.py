"""What a domain service tells about its work: a span for each sampled command, and its metrics.

The coordinator says with each batch which of its spans are sampled. A replay says nothing, so it
leaves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.telemetry.metrics import LatencyHistogram
from viewstamp.telemetry.sampling import (
    CURRENT_SPAN,
    TraceContext,
    TraceParent,
    new_span_id,
    parse_trace_parent,
)
from viewstamp.telemetry.settings import Telemetry
from viewstamp.telemetry.spans import AttributeValue, Kind, Recorder, Span


class ApplyWatch:
    """Notes what becomes of batches, between `begin` and `end`, on the event loop."""

    def __init__(self, stage: str, telemetry: Telemetry) -> None:
        """Watch the stage named, on behalf of `telemetry`."""
        self._stage = stage
        self._telemetry = telemetry
        self._recorder = telemetry.recorder
        self._latency = LatencyHistogram()
        self._batches = 0
        self._commands = 0

    def opened(self, hello: pb.Hello) -> None:
        """A coordinator has opened a stream: what is told from now on is told of its replica."""
        self._telemetry.belongs_to(hello.cluster_id, hello.replica_id)

    def begin(self, batch: pb.Batch) -> int:
        """A batch is about to be applied; return what `end` needs."""
        if batch.trace_parents:
            first = parse_trace_parent(batch.trace_parents[0])
            CURRENT_SPAN.set(None if first is None else first.context)
        return time.time_ns()

    def end(self, batch: pb.Batch, begun_ns: int) -> None:
        """It was applied."""
        now_ns = time.time_ns()
        if self._telemetry.is_metered:
            self._batches += 1
            self._commands += sum(item.command.count for item in batch.items)
            self._latency.observe(now_ns - begun_ns)
        if not batch.trace_parents:
            return
        CURRENT_SPAN.set(None)
        if self._recorder is not None:
            self._record(self._recorder, batch, begun_ns, now_ns)

    def _record(self, recorder: Recorder, batch: pb.Batch, begun_ns: int, now_ns: int) -> None:
        attributes: dict[str, AttributeValue] = {
            "viewstamp.op": batch.op,
            "viewstamp.stage": self._stage,
            "viewstamp.items": len(batch.items),
        }
        for parent in _sampled(batch.trace_parents):
            context = TraceContext(parent.context.trace_id, new_span_id())
            recorder.record(
                Span(
                    f"apply {self._stage}",
                    Kind.SERVER,
                    context,
                    parent.context.span_id,
                    begun_ns,
                    now_ns,
                    attributes,
                )
            )

    def families(self) -> Iterable[Metric]:
        """Yield what was counted, for the page."""
        yield CounterMetricFamily("viewstamp_batches", "Batches applied, reads too.", self._batches)
        yield CounterMetricFamily(
            "viewstamp_applied_commands", "Commands applied, replays too.", self._commands
        )
        latency = HistogramMetricFamily("viewstamp_apply_seconds", "Time to apply a batch.")
        self._latency.add_to(latency)
        yield latency


def _sampled(trace_parents: Iterable[str]) -> Iterable[TraceParent]:
    for text in trace_parents:
        parent = parse_trace_parent(text)
        if parent is not None and parent.is_sampled:
            yield parent
