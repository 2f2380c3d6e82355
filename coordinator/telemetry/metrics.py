"""The coordinator's Prometheus page: what it counts, and what it looks up when asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from coordinator.mux import types as mux_types
from coordinator.replica.batcher import PrepareBatch
from coordinator.telemetry.calls import CallMetrics
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import reason_name
from viewstamp.limits import MIB
from viewstamp.telemetry.metrics import LatencyHistogram
from viewstamp.telemetry.rpc import OK

# So many prepares are counted at a time, which takes a third of what it takes one by one; or fewer,
# since their bodies are kept so long.
COUNTED_TOGETHER: Final = 32
UNCOUNTED_BYTES_MAX: Final = MIB


class Gauge(NamedTuple):
    """A number that is looked up when the page is asked for.

    `values` yields the value of `label` (empty where there is no label) and the number. One that
    counts since the start of the process `is_counter`; its name on the page ends in `_total`.
    """

    name: str
    help: str
    label: str
    values: Callable[[], Iterable[tuple[str, float]]]
    is_counter: bool = False


class Answered(Protocol):
    """A batch that was answered by its stage (`prepares.Visit`); times in nanoseconds."""

    @property
    def stage(self) -> mux_types.Stage:
        """The stage."""

    @property
    def sent_ns(self) -> int:
        """When it was sent."""

    @property
    def answered_ns(self) -> int:
        """When the answer came."""


# Batch, what became of it, its time from admission until it is applied, until it was durable, its
# visits.
_Uncounted: TypeAlias = tuple[PrepareBatch, mux_types.Applied, int, int, Sequence[Answered]]


def gauge_families(gauges: Sequence[Gauge]) -> Iterable[Metric]:
    """Yield what is so now, for the page."""
    for gauge in gauges:
        labels = [gauge.label] if gauge.label else []
        kind = CounterMetricFamily if gauge.is_counter else GaugeMetricFamily
        family = kind(gauge.name, gauge.help, labels=labels)
        for label, value in gauge.values():
            family.add_metric([label] if gauge.label else [], value)
        yield family


class ReplicaMetrics:
    """What one replica counts. Written on its event loop, read by the page's thread."""

    def __init__(self, name_of: Callable[[int], str]) -> None:
        """Count from zero; `name_of` returns the name of a method's code."""
        self.unary_requests = 0
        self.packed_requests = 0
        self.file_requests = 0
        self.calls = CallMetrics()
        self.journal_sync = LatencyHistogram()
        self.stages = {stage: LatencyHistogram() for stage in mux_types.SERVICE_STAGES}
        self.snapshots: dict[str, int] = {"completed": 0, "failed": 0}
        self._prepare_latency = LatencyHistogram()
        self._prepares = 0
        self._prepare_bytes = 0
        self._commands: dict[tuple[int, str], int] = {}
        self._refusals: dict[str, int] = {}
        self._uncounted: deque[_Uncounted] = deque()
        self._uncounted_bytes = 0
        self._counting = threading.Lock()
        self._name_of = name_of

    def refused(self, reason: Reason.ValueType) -> None:
        """Count a refusal that came before the log."""
        name = reason_name(reason)
        self._refusals[name] = self._refusals.get(name, 0) + 1

    def applied(
        self,
        batch: PrepareBatch,
        applied: mux_types.Applied,
        duration_ns: int,
        sync_ns: int = 0,
        visits: Sequence[Answered] = (),
    ) -> None:
        """Count a prepare together with others; `sync_ns` is 0 where it is not yet durable here."""
        self._uncounted.append((batch, applied, duration_ns, sync_ns, visits))
        self._uncounted_bytes += len(batch.body)
        if len(self._uncounted) >= COUNTED_TOGETHER or self._uncounted_bytes >= UNCOUNTED_BYTES_MAX:
            self._uncounted_bytes = 0
            self._count()

    def _count(self) -> None:
        """Count the prepares that were not counted yet."""
        with self._counting:  # the loop, or the page's thread
            while self._uncounted:
                batch, applied, duration_ns, sync_ns, visits = self._uncounted.popleft()
                self._prepares += 1
                self._prepare_bytes += len(batch.body)
                # The first sampled call stands for the prepare.
                trace_id = batch.traces[0].trace_ids[0] if batch.traces else ""
                self._prepare_latency.observe(duration_ns, trace_id)
                if sync_ns:
                    self.journal_sync.observe(sync_ns, trace_id)
                for visit in visits:
                    self.stages[visit.stage].observe(visit.answered_ns - visit.sent_ns, trace_id)
                self._count_commands_of(batch, applied)

    def _count_commands_of(self, batch: PrepareBatch, applied: mux_types.Applied) -> None:
        for request, reply in zip(batch.requests, applied.replies, strict=True):
            whole = "" if reply.error is None else _reason_in(reply.error)
            for position, span in enumerate(request.spans):
                if whole:
                    self._add(span.code, whole, span.count)
                    continue
                # What was kept without a fingerprint may be of a request with fewer spans.
                is_known = position < len(reply.spans)
                errors = reply.spans[position].errors if is_known else ()
                for error in errors:
                    self._add(span.code, _reason_in(error.error), 1)
                if len(errors) < span.count:
                    self._add(span.code, OK, span.count - len(errors))

    def _add(self, code: int, outcome: str, count: int) -> None:
        self._commands[code, outcome] = self._commands.get((code, outcome), 0) + count

    def families(self) -> Iterable[Metric]:
        """Yield everything that is counted, for the page."""
        self._count()
        yield from self._counters()
        yield from self.calls.families()
        yield from self._histograms()

    def _counters(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "viewstamp_requests", "Requests that came in, reads included.", labels=["face"]
        )
        requests.add_metric(["unary"], self.unary_requests)
        requests.add_metric(["submit"], self.packed_requests)
        requests.add_metric(["files"], self.file_requests)
        yield requests
        commands = CounterMetricFamily(
            "viewstamp_commands", "Commands that were applied here.", labels=["rpc", "outcome"]
        )
        for (code, outcome), count in list(self._commands.items()):
            commands.add_metric([self._name_of(code), outcome], count)
        yield commands
        refusals = CounterMetricFamily(
            "viewstamp_refusals", "Requests refused before the log.", labels=["reason"]
        )
        for reason, count in list(self._refusals.items()):
            refusals.add_metric([reason], count)
        yield refusals
        yield CounterMetricFamily(
            "viewstamp_prepares", "Prepares that were applied.", self._prepares
        )
        yield CounterMetricFamily(
            "viewstamp_prepare_bytes",
            "Bytes of the bodies of applied prepares.",
            self._prepare_bytes,
        )
        snapshots = CounterMetricFamily(
            "viewstamp_snapshots", "Snapshots decided while serving.", labels=["outcome"]
        )
        for outcome, count in self.snapshots.items():
            snapshots.add_metric([outcome], count)
        yield snapshots

    def _histograms(self) -> Iterable[Metric]:
        for name, text, histogram in (
            (
                "viewstamp_prepare_seconds",
                "From the admission of a prepare until it is applied.",
                self._prepare_latency,
            ),
            (
                "viewstamp_journal_sync_seconds",
                "From the admission of a prepare until it is durable here.",
                self.journal_sync,
            ),
        ):
            family = HistogramMetricFamily(name, text)
            histogram.add_to(family)
            yield family
        stages = HistogramMetricFamily(
            "viewstamp_stage_seconds",
            "From sending a batch to a stage until its answer.",
            labels=["stage"],
        )
        for stage, histogram in self.stages.items():
            histogram.add_to(stages, [stage.name.lower()])
        yield stages


def _reason_in(error: bytes) -> str:
    return reason_name(errors_pb2.Error.FromString(error).reason)
