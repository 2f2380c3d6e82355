"""The hooks in the replica: what becomes of a prepare, stage by stage.

`ReplicaWatch` is told of each step and notes the time. Spans are made when a prepare retires, and
only for its sampled commands and for itself. What is replayed was never admitted here, so it is not
known here, and leaves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from coordinator.mux import types as mux_types
from coordinator.replica.batcher import Batch
from coordinator.telemetry.commands import CommandTrace
from coordinator.telemetry.metrics import ReplicaMetrics
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.format.prepare import Prepare
from viewstamp.telemetry.metrics import NANOSECONDS_PER_SECOND
from viewstamp.telemetry.sampling import (
    Sampler,
    TraceContext,
    format_trace_parent,
    new_root,
    new_span_id,
)
from viewstamp.telemetry.spans import AttributeValue, Kind, Recorder, Span

# Spans of prepares without a sampled command: at more per second, the rest has none.
PREPARE_SPANS_PER_SECOND_MAX: Final = 500


class Link(Protocol):
    """The way to a service (`stages.client.StageClient`)."""

    def send(self, batch: domain_pb2.Batch, trace_parents: Sequence[str] = ()) -> None:
        """Send a batch."""


class _PrepareTimes:
    """When a prepare took which step; nanoseconds since 1970, 0 for what has not happened."""

    __slots__ = (
        "prepare",
        "batch",
        "admitted_ns",
        "durable_ns",
        "committed_ns",
        "handed_over_ns",
    )

    def __init__(self, prepare: Prepare, batch: Batch, now_ns: int) -> None:
        self.prepare = prepare
        self.batch = batch
        self.admitted_ns = now_ns
        self.durable_ns = self.committed_ns = self.handed_over_ns = 0

    def revision_of(self, trace: CommandTrace) -> int:
        return self.prepare.header.first_revision + trace.offset


class _Visit(NamedTuple):
    """A batch on its way to a stage, with the spans of its sampled commands."""

    sent_ns: int
    times: _PrepareTimes
    spans: Sequence[tuple[CommandTrace, TraceContext]]


class ReplicaWatch:
    """Notes what becomes of prepares. One for each replica, on its event loop."""

    def __init__(
        self,
        recorder: Recorder | None,
        metrics: ReplicaMetrics | None,
        prepares: Sampler,
        *,
        is_alone: bool,
    ) -> None:
        """Tell `recorder` and `metrics`, if they are there.

        `prepares` decides about prepares without a sampled command. A replica that `is_alone`
        replicates in no time.
        """
        self._recorder = recorder
        self._metrics = metrics
        self._prepare_sampler = prepares
        self._is_alone = is_alone
        self._prepares: dict[int, _PrepareTimes] = {}
        self._visits: dict[tuple[mux_types.Stage, int], _Visit] = {}
        self._second = 0
        self._spans_in_second = 0

    # --- From the log ---

    def persisting(
        self, prepares: Sequence[Prepare], batch_of: Callable[[int], Batch | None]
    ) -> None:
        """Prepares were admitted and go to the journal; those without a batch are of a replay."""
        now_ns = time.time_ns()
        for prepare in prepares:
            batch = batch_of(prepare.op)
            if batch is not None:
                self._prepares[prepare.op] = _PrepareTimes(prepare, batch, now_ns)

    def persisted(self, prepares: Sequence[Prepare]) -> None:
        """They are durable here."""
        now_ns = time.time_ns()
        for prepare in prepares:
            times = self._prepares.get(prepare.op)
            if times is None:
                continue
            times.durable_ns = now_ns
            if self._metrics is not None:
                self._metrics.journal_sync.observe(now_ns - times.admitted_ns)

    def committed(self, op: int) -> None:
        """A quorum has it."""
        times = self._prepares.get(op)
        if times is not None:
            times.committed_ns = times.durable_ns if self._is_alone else time.time_ns()

    def handed_over(self, op: int) -> None:
        """The mux has it."""
        times = self._prepares.get(op)
        if times is not None:
            times.handed_over_ns = time.time_ns()

    def cut_times(self, op: int) -> tuple[int, int]:
        """Return when the prepare of a cut was admitted and handed over, before it retires."""
        times = self._prepares.get(op)
        now_ns = time.time_ns()
        return (now_ns, now_ns) if times is None else (times.admitted_ns, times.handed_over_ns)

    # --- Stages ---

    def sent(self, stage: mux_types.Stage, batch: domain_pb2.Batch) -> Sequence[str]:
        """A batch goes to its stage; return a traceparent for each sampled command in it."""
        times = self._prepares.get(batch.op) if batch.sequence else None
        if times is None:
            return ()
        if self._recorder is None or not times.batch.traces:
            spans: Sequence[tuple[CommandTrace, TraceContext]] = ()
            if self._metrics is None:
                return ()
        else:
            spans = _spans_in(batch, times)
        self._visits[stage, batch.sequence] = _Visit(time.time_ns(), times, spans)
        return [format_trace_parent(context) for _, context in spans]

    def answered(self, stage: mux_types.Stage, sequence: int) -> None:
        """The answer to a batch has come."""
        visit = self._visits.pop((stage, sequence), None)
        if visit is None:
            return
        now_ns = time.time_ns()
        if self._metrics is not None:
            self._metrics.stages[stage].observe(now_ns - visit.sent_ns)
        name = stage.name.lower()
        for trace, context in visit.spans:
            assert self._recorder is not None, "a command is sampled where nothing is recorded"
            trace.answered_ns = now_ns
            attributes = {**_place(visit.times, trace), "viewstamp.stage": name}
            parent_id, sent_ns = trace.context.span_id, visit.sent_ns
            self._recorder.record(
                Span(f"stage {name}", Kind.CLIENT, context, parent_id, sent_ns, now_ns, attributes)
            )

    # --- At the end ---

    def retired(self, retired: mux_types.Retired) -> None:
        """A prepare has retired, and its replies were handed over."""
        times = self._prepares.pop(retired.op, None)
        if times is None:
            return
        now_ns = time.time_ns()
        if self._metrics is not None:
            self._metrics.retired(times.batch, retired, now_ns - times.admitted_ns)
        if self._recorder is None:
            return
        for trace in times.batch.traces:
            self._record_steps(times, trace, now_ns)
        if times.batch.traces or self._keeps_prepare(now_ns):
            self._record_prepare(self._recorder, times, now_ns)

    def _record_steps(self, times: _PrepareTimes, trace: CommandTrace, now_ns: int) -> None:
        assert self._recorder is not None, "a command is sampled where nothing is recorded"
        # Before this replica's own sync, if others were faster.
        replicating_ns = min(times.durable_ns, times.committed_ns) or times.committed_ns
        attributes = _place(times, trace)
        trace_id, parent_id = trace.context
        for name, start_ns, end_ns in (
            ("queue", trace.queued_ns, times.admitted_ns),
            ("journal", times.admitted_ns, times.durable_ns or now_ns),
            ("replicate", replicating_ns, times.committed_ns),
            ("commit", times.committed_ns, times.handed_over_ns),
            ("retire", trace.answered_ns or times.handed_over_ns, now_ns),
        ):
            context = TraceContext(trace_id, new_span_id())
            self._recorder.record(
                Span(name, Kind.INTERNAL, context, parent_id, start_ns, end_ns, attributes)
            )

    def _keeps_prepare(self, now_ns: int) -> bool:
        if not self._prepare_sampler.keeps():
            return False
        second = now_ns // NANOSECONDS_PER_SECOND
        if second != self._second:
            self._second, self._spans_in_second = second, 0
        self._spans_in_second += 1
        return self._spans_in_second <= PREPARE_SPANS_PER_SECOND_MAX

    def _record_prepare(self, recorder: Recorder, times: _PrepareTimes, now_ns: int) -> None:
        header = times.prepare.header
        attributes: dict[str, AttributeValue] = {
            "viewstamp.op": header.op,
            "viewstamp.view": header.view,
            "viewstamp.commands": header.command_count,
            "viewstamp.bytes": header.size,
        }
        links = [trace.context for trace in times.batch.traces]
        recorder.record(
            Span(
                "prepare",
                Kind.INTERNAL,
                new_root(),
                "",
                times.admitted_ns,
                now_ns,
                attributes,
                links,
            )
        )


class WatchedLink:
    """The way to a service, past the watch."""

    def __init__(self, watch: ReplicaWatch, stage: mux_types.Stage, link: Link) -> None:
        """Send over `link`, which leads to `stage`."""
        self._watch = watch
        self._stage = stage
        self._link = link

    def send(self, batch: domain_pb2.Batch) -> None:
        """Send a batch, in order."""
        self._link.send(batch, self._watch.sent(self._stage, batch))


def _place(times: _PrepareTimes, trace: CommandTrace) -> dict[str, AttributeValue]:
    return {
        "viewstamp.op": times.prepare.header.op,
        "viewstamp.revision": times.revision_of(trace),
    }


def _spans_in(
    batch: domain_pb2.Batch, times: _PrepareTimes
) -> list[tuple[CommandTrace, TraceContext]]:
    """Return a span for each sampled command that the batch says something about."""
    concerned = list(_revisions(batch))
    found = []
    for trace in times.batch.traces:
        first = times.revision_of(trace)
        if any(start < first + trace.count and first < stop for start, stop in concerned):
            found.append((trace, TraceContext(trace.context.trace_id, new_span_id())))
    return found


def _revisions(batch: domain_pb2.Batch) -> Iterator[tuple[int, int]]:
    """Yield the first and the one after the last revision that each item is about."""
    for item in batch.items:
        kind = item.WhichOneof("kind")
        if kind == "command":
            yield item.command.first_revision, item.command.first_revision + item.command.count
        elif kind == "resolve":
            yield item.resolve.first_revision, item.resolve.first_revision + item.resolve.count
        elif kind == "effect":
            yield item.effect.revision, item.effect.revision + 1
