"""Notes of a prepare on its way: its own span, and the steps of its sampled commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from coordinator.mux import types as mux_types
from coordinator.replica.batcher import Batch
from coordinator.telemetry.commands import SERVER_NUMBER, CommandTrace
from viewstamp.format.prepare import Prepare
from viewstamp.telemetry import otlp
from viewstamp.telemetry.sampling import TraceContext, new_id_base, new_trace_id, numbered_id
from viewstamp.telemetry.spans import AttributeValue, Kind, Span

STEPS: Final = 5  # queue, journal, replicate, commit, retire
# Ids of a command's spans: the SERVER span has the first, the steps the next, then its stages.
_FIRST_STEP_NUMBER: Final = SERVER_NUMBER + 1
_FIRST_STAGE_NUMBER: Final = _FIRST_STEP_NUMBER + STEPS
_STAGES: Final = {stage: {"viewstamp.stage": stage.name.lower()} for stage in mux_types.Stage}
_STAGE_SPANS: Final = {stage: f"stage {stage.name.lower()}" for stage in mux_types.Stage}


class Visit:
    """A batch at a stage, with the sampled commands in it, each with the number of its span."""

    __slots__ = ("stage", "notes", "sent_ns", "answered_ns", "concerned")

    def __init__(
        self,
        stage: mux_types.Stage,
        notes: PrepareNotes,
        sent_ns: int,
        concerned: Sequence[tuple[CommandTrace, int]],
    ) -> None:
        self.stage = stage
        self.notes = notes
        self.sent_ns = sent_ns
        self.answered_ns = 0
        self.concerned = concerned


class PrepareNotes:
    """When a prepare took which step; nanoseconds since 1970, 0 for what has not happened.

    It keeps numbers of the prepare, not its body: notes may wait for a slow disk.
    """

    __slots__ = (
        "op",
        "view",
        "first_revision",
        "commands",
        "size_bytes",
        "batch",
        "traces",
        "visits",
        "stage_spans",
        "id_base",
        "trace_id",
        "admitted_ns",
        "durable_ns",
        "committed_ns",
        "handed_over_ns",
        "retired_ns",
    )

    def __init__(self, prepare: Prepare, batch: Batch, now_ns: int) -> None:
        header = prepare.header
        self.op = header.op
        self.view = header.view
        self.first_revision = header.first_revision
        self.commands = header.command_count
        self.size_bytes = header.size
        self.batch: Batch | None = batch  # until it has retired
        self.traces = batch.traces
        self.visits: list[Visit] = []  # that were answered, with a sampled command
        self.stage_spans = 0
        self.admitted_ns = now_ns
        self.durable_ns = self.committed_ns = self.handed_over_ns = self.retired_ns = 0

    def visit(
        self,
        stage: mux_types.Stage,
        sent_ns: int,
        revisions: Sequence[tuple[int, int]],
    ) -> Visit:
        """Note that a batch was sent which is about these ranges of revisions."""
        concerned = []
        for trace in self.traces:
            first = self.first_revision + trace.offset
            last = first + trace.count
            for start, stop in revisions:
                if start < last and first < stop:
                    concerned.append((trace, _FIRST_STAGE_NUMBER + self.stage_spans))
                    self.stage_spans += 1
                    break
        return Visit(stage, self, sent_ns, concerned)

    def retire(self, now_ns: int) -> None:
        """Note the end; nothing is noted after it."""
        self.retired_ns = now_ns
        self.batch = None
        self.trace_id = new_trace_id()
        self.id_base = new_id_base()

    @property
    def span_count(self) -> int:
        """The span of the prepare, and all of its sampled commands."""
        stages = sum(len(visit.concerned) for visit in self.visits)
        return 1 + STEPS * len(self.traces) + stages

    def spans(self) -> Iterable[Span]:
        """Yield the spans of the commands, then that of the prepare."""
        visited = self._visited()
        for trace in self.traces:
            parent_id = numbered_id(trace.id_base, SERVER_NUMBER)
            place = self._place(trace)
            visits = visited.get(id(trace), ())
            for name, number, start_ns, end_ns in self._steps(trace, visits):
                context = trace.numbered(number)
                yield Span(name, Kind.INTERNAL, context, parent_id, start_ns, end_ns, place)
            for visit, number in visits:
                context = trace.numbered(number)
                name, at_stage = _STAGE_SPANS[visit.stage], place | _STAGES[visit.stage]
                times = visit.sent_ns, visit.answered_ns
                yield Span(name, Kind.CLIENT, context, parent_id, *times, at_stage)
        yield self._prepare()

    def encoded(self) -> Iterable[str]:
        """Yield the same spans as OTLP JSON; the steps of a command share most of their text."""
        visited = self._visited()
        for trace in self.traces:
            parent_id = numbered_id(trace.id_base, SERVER_NUMBER)
            place = self._place(trace)
            visits = visited.get(id(trace), ())
            text = otlp.attributes_of(place)
            head = otlp.shared(trace.trace_id, parent_id, Kind.INTERNAL, text)
            for name, number, start_ns, end_ns in self._steps(trace, visits):
                yield head + otlp.own(numbered_id(trace.id_base, number), name, start_ns, end_ns)
            for visit, number in visits:
                text = otlp.attributes_of(place | _STAGES[visit.stage])
                head = otlp.shared(trace.trace_id, parent_id, Kind.CLIENT, text)
                span_id, name = numbered_id(trace.id_base, number), _STAGE_SPANS[visit.stage]
                yield head + otlp.own(span_id, name, visit.sent_ns, visit.answered_ns)
        yield from self._prepare().encoded()

    def _visited(self) -> Mapping[int, Sequence[tuple[Visit, int]]]:
        """Return the visits of each trace with the numbers of their spans, in order."""
        found: dict[int, list[tuple[Visit, int]]] = {}
        for visit in self.visits:
            for trace, number in visit.concerned:
                found.setdefault(id(trace), []).append((visit, number))
        return found

    def _place(self, trace: CommandTrace) -> dict[str, AttributeValue]:
        return {
            "viewstamp.op": self.op,
            "viewstamp.revision": self.first_revision + trace.offset,
        }

    def _steps(
        self, trace: CommandTrace, visits: Sequence[tuple[Visit, int]]
    ) -> Sequence[tuple[str, int, int, int]]:
        """Return name, number, start and end of each step."""
        admitted_ns, committed_ns = self.admitted_ns, self.committed_ns
        # Before this replica's own sync, if others were faster.
        replicating_ns = min(self.durable_ns, committed_ns) or committed_ns
        answered_ns = visits[-1][0].answered_ns if visits else self.handed_over_ns
        first = _FIRST_STEP_NUMBER
        return (
            ("queue", first, trace.queued_ns, admitted_ns),
            ("journal", first + 1, admitted_ns, self.durable_ns or self.retired_ns),
            ("replicate", first + 2, replicating_ns, committed_ns),
            ("commit", first + 3, committed_ns, self.handed_over_ns),
            ("retire", first + 4, answered_ns, self.retired_ns),
        )

    def _prepare(self) -> Span:
        attributes: dict[str, AttributeValue] = {
            "viewstamp.op": self.op,
            "viewstamp.view": self.view,
            "viewstamp.commands": self.commands,
            "viewstamp.bytes": self.size_bytes,
        }
        return Span(
            "prepare",
            Kind.INTERNAL,
            TraceContext(self.trace_id, numbered_id(self.id_base, 1)),
            "",
            self.admitted_ns,
            self.retired_ns,
            attributes,
            [trace.context for trace in self.traces],
        )
