"""Notes of a prepare on its way: its own span, and the steps of its sampled commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

from coordinator.base.command_traces import (
    IDS,
    PARENT_ID,
    REVISION,
    SERVER_NUMBER,
    STEPS_NUMBERED_MAX,
    TRACE_ID,
    CommandTrace,
)
from coordinator.mux import types as mux_types
from coordinator.replica.batcher import PrepareBatch
from viewstamp.format.prepare import SealedPrepare
from viewstamp.telemetry import otlp
from viewstamp.telemetry.sampling import new_root_bits, root_of
from viewstamp.telemetry.spans import SpanRole

STEPS: Final = ("queue", "journal", "replicate", "commit", "apply")
_FIRST_STAGE_NUMBER: Final = STEPS_NUMBERED_MAX  # of those of all calls: behind the others

# The spans as OTLP JSON, but for what `%` puts in.
_INTERNAL: Final = int(SpanRole.INTERNAL)
_CLIENT: Final = int(SpanRole.CLIENT)
_SERVER_ID: Final = f"{IDS}{SERVER_NUMBER:x}"
_STAGE_PATTERNS: Final = {
    stage: otlp.pattern_of(f"stage {stage.name.lower()}") for stage in mux_types.Stage
}
_PLACE: Final = otlp.integers_of("viewstamp.op", "viewstamp.revision")
_STAGE_ATTRIBUTES: Final = {
    stage: otlp.attributes_of({"viewstamp.stage": stage.name.lower()})[1:-1]
    for stage in mux_types.Stage
}
# Before each step stands all that comes before the last digit of its id.
_STEP_PATTERN: Final = ",".join(
    f'%s{number:x}","name":"{name}","startTimeUnixNano":"%s","endTimeUnixNano":"%s"}}'
    for number, name in enumerate(STEPS, SERVER_NUMBER + 1)
)
_PREPARE_KEYS: Final = ("viewstamp.op", "viewstamp.view", "viewstamp.commands", "viewstamp.bytes")
_PREPARE: Final = otlp.pattern_of("prepare").replace(
    "%s", otlp.shared("%s", "", _INTERNAL, f"[{otlp.integers_of(*_PREPARE_KEYS)}]") + "%s", 1
)
_LINK: Final = f'{{"traceId":"{TRACE_ID}","spanId":"{_SERVER_ID}"}}'


class Concerned(NamedTuple):
    """Calls of `trace` that a batch is about; their spans are the `number`-th and those behind."""

    trace: CommandTrace
    calls: range
    number: int


class SampledVisit:
    """A batch at a stage, with the sampled calls in it, each with the number of its span."""

    __slots__ = ("stage", "sent_ns", "answered_ns", "concerned")

    def __init__(
        self, stage: mux_types.Stage, sent_ns: int, concerned: Sequence[Concerned] = ()
    ) -> None:
        self.stage = stage
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
        "applied_ns",
    )

    def __init__(self, prepare: SealedPrepare, batch: PrepareBatch, now_ns: int) -> None:
        self.header = prepare.header
        self.batch: PrepareBatch | None = batch  # until it has been applied
        self.traces = batch.traces
        self.visits: list[SampledVisit] = []  # that were answered
        self.stage_spans = 0
        self.random_bits = 0
        self.admitted_ns = now_ns
        self.durable_ns = self.committed_ns = self.handed_over_ns = self.applied_ns = 0

    def visit(
        self,
        stage: mux_types.Stage,
        sent_ns: int,
        revisions: Sequence[tuple[int, int]],
    ) -> SampledVisit:
        """Note that a batch was sent which is about these ranges of revisions, in order."""
        concerned = []
        for trace in self.traces:
            for calls in self._concerned(trace, revisions):
                number = _FIRST_STAGE_NUMBER + self.stage_spans
                concerned.append(Concerned(trace, calls, number))
                self.stage_spans += len(calls)
        return SampledVisit(stage, sent_ns, concerned)

    def _concerned(
        self, trace: CommandTrace, revisions: Sequence[tuple[int, int]]
    ) -> Sequence[range]:
        """Return which calls these ranges of revisions are about, without overlap."""
        first = self.header.first_revision + trace.offset
        last = first + trace.command_count
        is_one_call = len(trace.trace_ids) == 1
        found: list[range] = []
        for start, stop in revisions:
            if start >= last or stop <= first:
                continue
            if is_one_call:
                return (range(1),)
            calls = range(max(start, first) - first, min(stop, last) - first)
            if found and calls.start <= found[-1].stop:
                calls = range(found[-1].start, max(found.pop().stop, calls.stop))
            found.append(calls)
        return found

    def apply(self, now_ns: int) -> None:
        """Note the end; nothing is noted after it."""
        self.applied_ns = now_ns
        self.batch = None
        self.random_bits = new_root_bits()

    @property
    def span_count(self) -> int:
        """The span of the prepare, and all of its sampled commands."""
        count = 1
        for trace in self.traces:
            count += len(STEPS) * len(trace.trace_ids)
        for visit in self.visits:
            for concerned in visit.concerned:
                count += len(concerned.calls)
        return count

    def encoded(self) -> Iterable[str]:
        """Yield the spans of the commands, then that of the prepare, as OTLP JSON."""
        if self.traces:
            yield from self._encoded_commands()
        yield self._encoded_prepare()

    def _encoded_commands(self) -> Iterable[str]:
        place = _PLACE % (self.header.op, REVISION)
        steps = otlp.shared(TRACE_ID, _SERVER_ID, _INTERNAL, f"[{place}]")
        for trace, calls, visits in self._alike():
            trace_ids, ids = trace.trace_ids[calls.start : calls.stop], trace.ids(calls)
            first = self.header.first_revision + trace.offset + calls.start
            revisions = list(map(str, range(first, first + len(calls))))
            head = f'{steps}"spanId":"{IDS}'
            values = [(head, *times) for times in self._times(trace, visits)]
            text = _STEP_PATTERN % tuple(chain.from_iterable(values))
            yield from otlp.rows_of(text, trace_ids, (), ids, revisions)
            for visit, number in visits:
                attributes = f"[{place},{_STAGE_ATTRIBUTES[visit.stage]}]"
                head = otlp.shared(TRACE_ID, _SERVER_ID, _CLIENT, attributes)
                times = visit.sent_ns, visit.answered_ns
                text = _STAGE_PATTERNS[visit.stage] % (head, PARENT_ID, *times)
                own_ids = trace.numbered_ids(number, len(calls))
                yield from otlp.rows_of(text, trace_ids, own_ids, ids, revisions)

    def _encoded_prepare(self) -> str:
        header, context = self.header, root_of(self.random_bits)
        links = ""
        if self.traces:
            rows: list[str] = []
            for trace in self.traces:
                rows += otlp.rows_of(_LINK, trace.trace_ids, (), trace.ids(trace.calls))
            links = f'"links":[{",".join(rows)}],'
        counted = header.op, header.view, header.command_count, header.size
        ends = self.admitted_ns, self.applied_ns
        return _PREPARE % (context.trace_id, *counted, links, context.span_id, *ends)

    def _alike(
        self,
    ) -> Iterable[tuple[CommandTrace, range, Sequence[tuple[SampledVisit, int]]]]:
        """Yield calls that took the same steps at the same times, which is nearly always all.

        Each time a trace, some calls in a row of it, and their visits in order with the number of
        the first call's span.
        """
        visited: dict[int, list[tuple[SampledVisit, Concerned]]] = {}
        for visit in self.visits:
            for concerned in visit.concerned:
                visited.setdefault(id(concerned.trace), []).append((visit, concerned))
        for trace in self.traces:
            concerning = visited.get(id(trace), ())
            ends = {0, len(trace.trace_ids)}
            for _, concerned in concerning:
                ends |= {concerned.calls.start, concerned.calls.stop}
            bounds = sorted(ends)
            places = {start: place for place, start in enumerate(bounds)}
            visits: list[list[tuple[SampledVisit, int]]] = [[] for _ in bounds]
            for visit, (_, calls, number) in concerning:
                for place in range(places[calls.start], places[calls.stop]):
                    visits[place].append((visit, number + bounds[place] - calls.start))
            for place, (start, stop) in enumerate(pairwise(bounds)):
                yield trace, range(start, stop), visits[place]

    def _times(
        self, trace: CommandTrace, visits: Sequence[tuple[SampledVisit, int]]
    ) -> Sequence[tuple[int, int]]:
        """Return start and end of each step."""
        admitted_ns, committed_ns = self.admitted_ns, self.committed_ns
        # Before this replica's own sync, if others were faster.
        replicating_ns = min(self.durable_ns, committed_ns) or committed_ns
        answered_ns = visits[-1][0].answered_ns if visits else self.handed_over_ns
        return (
            (trace.queued_ns, admitted_ns),
            (admitted_ns, self.durable_ns or self.applied_ns),
            (replicating_ns, committed_ns),
            (committed_ns, self.handed_over_ns),
            (answered_ns, self.applied_ns),
        )
