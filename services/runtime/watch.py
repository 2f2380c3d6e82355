"""Telemetry of a domain service: a span for each sampled command, and metrics.

The coordinator marks the sampled spans of each batch. A replay marks none, so it leaves no spans.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.telemetry import otlp
from viewstamp.telemetry.current import make_current
from viewstamp.telemetry.metrics import LatencyHistogram
from viewstamp.telemetry.sampling import (
    are_plain,
    format_trace_parent,
    new_id_base,
    sampled_parent,
    span_ids_in,
    trace_ids_in,
)
from viewstamp.telemetry.settings import Telemetry
from viewstamp.telemetry.spans import AttributeValue, SpanRole


class ApplyWatch:
    """Observes batches, between `begin` and `end`, on the event loop."""

    def __init__(self, stage: str, telemetry: Telemetry) -> None:
        """Watch the stage named, on behalf of `telemetry`."""
        self._stage = stage
        self._telemetry = telemetry
        self._recorder = telemetry.recorder
        self._latency = LatencyHistogram()
        self._batches = 0
        self._commands = 0
        self._trace_parents: Sequence[str] = ()  # of the batch that is being applied

    def opened(self, hello: pb.Hello) -> None:
        """Attribute later telemetry to the replica of the coordinator that has opened a stream."""
        self._telemetry.belongs_to(hello.cluster_id, hello.replica_id)

    def begin(self, batch: pb.Batch) -> int:
        """Note that a batch is about to be applied; return what `end` needs."""
        # Testing for emptiness costs a fraction of an empty copy.
        parents = batch.trace_parents
        self._trace_parents = tuple(parents) if parents else ()
        if self._trace_parents:
            make_current(sampled_parent(self._trace_parents[0]))
        return time.time_ns()

    def end(self, batch: pb.Batch, begun_ns: int) -> None:
        """Note that the batch was applied."""
        now_ns = time.time_ns()
        if self._telemetry.is_metered:
            self._batches += 1
            self._commands += sum(item.command.count for item in batch.items)
            self._latency.observe(now_ns - begun_ns, self._trace_id())
        if not (parents := self._trace_parents):
            return
        self._trace_parents = ()
        make_current(None)
        if self._recorder is not None:
            place = self._stage, batch.op, len(batch.items)
            self._recorder.record(_Applied(*place, parents, new_id_base(), begun_ns, now_ns))

    def _trace_id(self) -> str:
        """Return the trace of the first sampled command of the batch, empty for none."""
        parent = sampled_parent(self._trace_parents[0]) if self._trace_parents else None
        return "" if parent is None else parent.trace_id

    def families(self) -> Iterable[Metric]:
        """Yield the counters, for the page."""
        yield CounterMetricFamily(
            "viewstamp_batches", "Batches that were applied, reads included.", self._batches
        )
        yield CounterMetricFamily(
            "viewstamp_applied_commands",
            "Commands that were applied, replays included.",
            self._commands,
        )
        latency = HistogramMetricFamily("viewstamp_apply_seconds", "Time to apply a batch.")
        self._latency.add_to(latency)
        yield latency


class _Applied(NamedTuple):
    """Notes of a batch with sampled commands: a span for each traceparent that came with it."""

    stage: str
    op: int
    items: int
    trace_parents: Sequence[str]
    id_base: int
    begun_ns: int
    ended_ns: int

    @property
    def span_count(self) -> int:
        """As many as there are traceparents; one that is malformed has none in the end."""
        return len(self.trace_parents)

    def encoded(self) -> Iterable[str]:
        """Yield the spans as OTLP JSON."""
        parents = self._parents()
        if not parents:
            return ()
        trace_id, parent_id, span_id = otlp.COLUMNS[:3]
        attributes = otlp.attributes_of(self._attributes())
        head = otlp.shared(trace_id, parent_id, SpanRole.SERVER, attributes)
        pattern = otlp.pattern_of(f"apply {self.stage}")
        text = pattern % (head, span_id, self.begun_ns, self.ended_ns)
        first = self.id_base + 1
        ids = [f"{id_:016x}" for id_ in range(first, first + len(parents))]
        return otlp.rows_of(text, trace_ids_in(parents), span_ids_in(parents), ids)

    def _parents(self) -> Sequence[str]:
        """Return the traceparents without those that are malformed, or not sampled."""
        if are_plain(self.trace_parents):
            return self.trace_parents
        found = map(sampled_parent, self.trace_parents)
        return [format_trace_parent(parent) for parent in found if parent is not None]

    def _attributes(self) -> Mapping[str, AttributeValue]:
        return {
            "viewstamp.op": self.op,
            "viewstamp.stage": self.stage,
            "viewstamp.items": self.items,
        }
