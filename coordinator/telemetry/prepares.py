"""Notes of a prepare on its way: its own span, and the steps of its sampled commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from coordinator.mux import types as mux_types
from coordinator.replica.batcher import Batch
from coordinator.telemetry.commands import SERVER_NUMBER, CommandTrace
from viewstamp.format.prepare import Prepare
from viewstamp.telemetry import otlp
from viewstamp.telemetry.sampling import new_root_bits, numbered_id, numbered_ids, root_of
from viewstamp.telemetry.spans import AttributeValue, Kind, Span

STEPS: Final = ("queue", "journal", "replicate", "commit", "retire")
# Ids of a command's spans: the SERVER span has the first, the steps the next, then its stages.
_FIRST_STEP_NUMBER: Final = SERVER_NUMBER + 1
_FIRST_STAGE_NUMBER: Final = _FIRST_STEP_NUMBER + len(STEPS)
_STAGES: Final = {stage: {"viewstamp.stage": stage.name.lower()} for stage in mux_types.Stage}
_STAGE_SPANS: Final = {stage: f"stage {stage.name.lower()}" for stage in mux_types.Stage}

# The same as OTLP JSON, but for what `%` puts in.
_INTERNAL: Final = int(Kind.INTERNAL)
_CLIENT: Final = int(Kind.CLIENT)
_SERVER_DIGITS: Final = f"{SERVER_NUMBER:04x}"
_STAGE_PATTERNS: Final = {stage: otlp.pattern_of(name) for stage, name in _STAGE_SPANS.items()}
_PLACE: Final = otlp.integers_of("viewstamp.op", "viewstamp.revision")
_STAGE_ATTRIBUTES: Final = {
    stage: otlp.attributes_of(told)[1:-1] for stage, told in _STAGES.items()
}
_PREPARE_KEYS: Final = ("viewstamp.op", "viewstamp.view", "viewstamp.commands", "viewstamp.bytes")
_PREPARE: Final = f"[{otlp.integers_of(*_PREPARE_KEYS)}]"
_PREPARE_PATTERN: Final = otlp.pattern_of("prepare")


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

    It keeps the header of the prepare, not its body: notes may wait for a slow disk.
    """

    __slots__ = (
        "header",
        "batch",
        "traces",
        "visits",
        "stage_spans",
        "random_bits",
        "admitted_ns",
        "durable_ns",
        "committed_ns",
        "handed_over_ns",
        "retired_ns",
    )

    def __init__(self, prepare: Prepare, batch: Batch, now_ns: int) -> None:
        self.header = prepare.header
        self.batch: Batch | None = batch  # until it has retired
        self.traces = batch.traces
        self.visits: list[Visit] = []  # that were answered, with a sampled command
        self.stage_spans = 0
        self.random_bits = 0
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
            first = self.header.first_revision + trace.offset
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
        self.random_bits = new_root_bits()

    @property
    def span_count(self) -> int:
        """The span of the prepare, and all of its sampled commands."""
        count = 1 + len(STEPS) * len(self.traces)
        for visit in self.visits:
            count += len(visit.concerned)
        return count

    def spans(self) -> Iterable[Span]:
        """Yield the spans of the commands, then that of the prepare."""
        visited = self._visited()
        for trace in self.traces:
            parent_id = numbered_id(trace.id_base, SERVER_NUMBER)
            place = self._place(trace)
            visits = visited.get(id(trace), ())
            steps = zip(STEPS, self._times(trace, visits), strict=True)
            for number, (name, times) in enumerate(steps, _FIRST_STEP_NUMBER):
                context = trace.numbered(number)
                yield Span(name, Kind.INTERNAL, context, parent_id, *times, place)
            for visit, number in visits:
                context = trace.numbered(number)
                name, at_stage = _STAGE_SPANS[visit.stage], place | _STAGES[visit.stage]
                times = visit.sent_ns, visit.answered_ns
                yield Span(name, Kind.CLIENT, context, parent_id, *times, at_stage)
        yield self._prepare()

    def encoded(self) -> Iterable[str]:
        """Yield the same spans as OTLP JSON."""
        visited = self._visited()
        for trace in self.traces:
            visits = visited.get(id(trace), ())
            ids = numbered_ids(trace.id_base)
            parent_id = ids + _SERVER_DIGITS
            place = _PLACE % (self.header.op, self.header.first_revision + trace.offset)
            head = otlp.shared(trace.trace_id, parent_id, _INTERNAL, f"[{place}]")
            yield self._encoded_steps(f'{head}"spanId":"{ids}', self._times(trace, visits))
            for visit, number in visits:
                attributes = f"[{place},{_STAGE_ATTRIBUTES[visit.stage]}]"
                head = otlp.shared(trace.trace_id, parent_id, _CLIENT, attributes)
                span_id = numbered_id(trace.id_base, number)
                pattern = _STAGE_PATTERNS[visit.stage]
                yield pattern % (head, span_id, visit.sent_ns, visit.answered_ns)
        yield self._encoded_prepare()

    @staticmethod
    def _encoded_steps(head: str, times: Sequence[tuple[int, int]]) -> str:
        """Return the steps; `head` is all before the last four digits of their ids.

        They are most of what is written, and made at once: in a loop they take twice the time.
        """
        (queued, admitted), (_, durable), (replicating, committed), (_, over), (last, end) = times
        return (
            f'{head}0002","name":"queue",'
            f'"startTimeUnixNano":"{queued}","endTimeUnixNano":"{admitted}"}},'
            f'{head}0003","name":"journal",'
            f'"startTimeUnixNano":"{admitted}","endTimeUnixNano":"{durable}"}},'
            f'{head}0004","name":"replicate",'
            f'"startTimeUnixNano":"{replicating}","endTimeUnixNano":"{committed}"}},'
            f'{head}0005","name":"commit",'
            f'"startTimeUnixNano":"{committed}","endTimeUnixNano":"{over}"}},'
            f'{head}0006","name":"retire",'
            f'"startTimeUnixNano":"{last}","endTimeUnixNano":"{end}"}}'
        )

    def _encoded_prepare(self) -> str:
        header, context = self.header, root_of(self.random_bits)
        attributes = _PREPARE % (header.op, header.view, header.command_count, header.size)
        head = otlp.shared(context.trace_id, "", _INTERNAL, attributes)
        if self.traces:
            head += otlp.links_of([trace.context for trace in self.traces])
        return _PREPARE_PATTERN % (head, context.span_id, self.admitted_ns, self.retired_ns)

    def _visited(self) -> Mapping[int, Sequence[tuple[Visit, int]]]:
        """Return the visits of each trace with the numbers of their spans, in order."""
        found: dict[int, list[tuple[Visit, int]]] = {}
        for visit in self.visits:
            for trace, number in visit.concerned:
                found.setdefault(id(trace), []).append((visit, number))
        return found

    def _place(self, trace: CommandTrace) -> dict[str, AttributeValue]:
        return {
            "viewstamp.op": self.header.op,
            "viewstamp.revision": self.header.first_revision + trace.offset,
        }

    def _times(
        self, trace: CommandTrace, visits: Sequence[tuple[Visit, int]]
    ) -> Sequence[tuple[int, int]]:
        """Return start and end of each step."""
        admitted_ns, committed_ns = self.admitted_ns, self.committed_ns
        # Before this replica's own sync, if others were faster.
        replicating_ns = min(self.durable_ns, committed_ns) or committed_ns
        answered_ns = visits[-1][0].answered_ns if visits else self.handed_over_ns
        return (
            (trace.queued_ns, admitted_ns),
            (admitted_ns, self.durable_ns or self.retired_ns),
            (replicating_ns, committed_ns),
            (committed_ns, self.handed_over_ns),
            (answered_ns, self.retired_ns),
        )

    def _prepare(self) -> Span:
        header = self.header
        values = (header.op, header.view, header.command_count, header.size)
        return Span(
            "prepare",
            Kind.INTERNAL,
            root_of(self.random_bits),
            "",
            self.admitted_ns,
            self.retired_ns,
            dict(zip(_PREPARE_KEYS, values, strict=True)),
            [trace.context for trace in self.traces],
        )
