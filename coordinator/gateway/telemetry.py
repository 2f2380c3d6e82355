"""Where traces enter, or begin, at the gateway; and the SERVER span of each sampled call."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Final, NamedTuple

from coordinator.base.command_traces import NO_REFUSALS, CommandTrace, Ended
from coordinator.gateway.routes import Routes
from coordinator.replica.batcher import Reply
from coordinator.telemetry.calls import OK, UNKNOWN_METHOD, TimedCall
from coordinator.telemetry.metrics import ReplicaMetrics
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal, status_code
from viewstamp.routing import MethodKind
from viewstamp.telemetry import rpc
from viewstamp.telemetry.sampling import (
    Sampler,
    TraceContext,
    are_plain,
    context_in,
    new_trace_id,
    parse_trace_parent,
    sampled_parent,
)
from viewstamp.telemetry.spans import Recorder

TRACE_PARENT_KEY: Final = "traceparent"
Traces = Sequence[CommandTrace]
_NOT_TIMED: Final[AbstractContextManager[None]] = nullcontext()
_Calls = tuple[int, int]  # the code of a span, and how many calls are in it
# Of a call: its first command in the request, its number of commands, its parent.
_Sampled = tuple[int, int, TraceContext]


class _Place(NamedTuple):
    """The place of a command in its request: `span_index` in `span`, with `left` of it to the
    end."""

    span: int
    span_index: int
    left: int
    code: int


class GatewayWatch:
    """Counts requests, decides which calls are traced, and records how they ended."""

    def __init__(
        self,
        routes: Routes,
        recorder: Recorder | None,
        sampler: Sampler,
        metrics: ReplicaMetrics | None,
    ) -> None:
        """Name methods as `routes` knows them; `sampler` is for traces that begin here."""
        self._routes = routes
        self._recorder = recorder
        self._sampler = sampler
        self._metrics = metrics

    def unary(self, path: str, trace_parent: str) -> CommandTrace | None:
        """Begin the span of a unary call, if it is sampled and its path is served."""
        if self._metrics is not None:
            self._metrics.unary_requests += 1
        if self._recorder is None:
            return None
        parent = self._parent(trace_parent)
        method = None if parent is None else self._routes.named(path)
        if parent is None or method is None:
            return None
        names = rpc.rpc_names(method.full_name)
        return CommandTrace(parent.trace_id, parent.span_id, names, time.time_ns())

    def timed(self, path: str) -> AbstractContextManager[TimedCall | None]:
        """Return a unary call that is timed in a `with` block; None in it if nothing is counted."""
        if self._metrics is None:
            return _NOT_TIMED
        method = self._routes.named(path)
        if method is None:
            return TimedCall(self._metrics.calls, UNKNOWN_METHOD, is_login=False)
        # Whoever logs in has no token yet; nothing else is public.
        return TimedCall(self._metrics.calls, method.name, is_login=method.public)

    def took(
        self,
        request: submit_pb2.CommandRequest | submit_pb2.ReadRequest,
        began_ns: int,
        outcome: Reply | Refusal,
    ) -> None:
        """Count the calls of a request that came at `began_ns` of the monotonic clock.

        One that was refused as a whole counts as one call of its first method: nobody may have
        checked yet how many calls it has. One without calls only acknowledges answers.
        """
        if self._metrics is None:
            return
        calls, duration_ns = self._metrics.calls, time.monotonic_ns() - began_ns
        if isinstance(outcome, Refusal):
            calls.took(self._first_of(request), status_code(outcome.reason), duration_ns)
            return
        if outcome.error is not None:
            calls.took(self._first_of(request), status_code(outcome.error.reason), duration_ns)
            return
        answered = outcome.spans
        for position, span in enumerate(request.spans):
            # A reply that was kept without a fingerprint may have fewer spans.
            errors = answered[position].errors if position < len(answered) else ()
            if errors:
                name = self._name_of(span.code)
                calls.took_in_part(name, errors, span.count, duration_ns)
            else:
                calls.took(self._name_of(span.code), OK, duration_ns, span.count)

    def _first_of(self, request: submit_pb2.CommandRequest | submit_pb2.ReadRequest) -> str:
        spans = request.spans
        return self._name_of(spans[0].code) if spans else UNKNOWN_METHOD

    def _name_of(self, code: int) -> str:
        method = self._routes.find(code)
        return UNKNOWN_METHOD if method is None else method.name

    def streaming(self, path: str, trace_parent: str) -> CommandTrace | None:
        """Begin the span of a call that files answer by a stream; no route leads to it."""
        if self._metrics is not None:
            self._metrics.file_requests += 1
        parent = None if self._recorder is None else self._parent(trace_parent)
        if parent is None:
            return None
        names = rpc.rpc_names(path.removeprefix("/"))
        return CommandTrace(parent.trace_id, parent.span_id, names, time.time_ns())

    def streamed(self, trace: CommandTrace | None) -> None:
        """Record the span of such a call once everything was sent."""
        if trace is not None:
            self._record(Ended(trace, time.time_ns()))

    def _parent(self, trace_parent: str) -> TraceContext | None:
        """Return the parent of a new span, which has no span for a root; None for no new span."""
        said = parse_trace_parent(trace_parent) if trace_parent else None
        if said is not None:
            return said.context if said.is_sampled else None
        return TraceContext(new_trace_id(), "") if self._sampler.keeps() else None

    def packed(
        self, request: submit_pb2.CommandRequest | submit_pb2.ReadRequest, user_id: int
    ) -> Traces:
        """Begin the spans of the sampled calls of a request.

        A request that names no calls is one call: only the client knows what its spans belong to.
        """
        if self._metrics is not None:
            self._metrics.packed_requests += 1
        if self._recorder is None:
            return ()
        if said := request.traces:
            return self._followed(said, request.spans, user_id)
        if not self._sampler.keeps():
            return ()
        calls, count = _calls_of(request.spans)
        root = TraceContext(new_trace_id(), "")
        return self._begun(calls, count, [(0, count, root)], user_id)

    def _followed(
        self,
        said: Sequence[submit_pb2.CallTrace],
        spans: Iterable[submit_pb2.Span],
        user_id: int,
    ) -> Traces:
        calls, count = _calls_of(spans)
        said = said[:count]
        texts = [trace.trace_parent for trace in said]
        if are_plain(texts):  # as our own client makes them
            found: Iterable[TraceContext | None] = map(context_in, texts)
        else:
            found = map(sampled_parent, texts)
        sampled = [
            (trace.index, trace.count or 1, parent)
            for trace, parent in zip(said, found, strict=True)
            if parent is not None
        ]
        sampled.sort(key=itemgetter(0))
        return self._begun(calls, count, sampled, user_id)

    def _begun(
        self, calls: Sequence[_Calls], total: int, sampled: Iterable[_Sampled], user_id: int
    ) -> list[CommandTrace]:
        """Begin the spans of calls, except invalid ones and those that nobody serves.

        `sampled` are in order. Of overlapping ones only the first is a call, so that a request
        makes no more spans than it has commands. Consecutive calls of one command each in one span
        are begun together.
        """
        now_ns = time.time_ns()
        begun: list[CommandTrace] = []
        free = 0  # the first command not yet in a call
        row_end = 0  # while `free` is below, a call there joins the last of `begun`
        for index, count, parent in sampled:
            if index == free < row_end and count == 1:
                begun[-1].trace_ids.append(parent.trace_id)
                begun[-1].parent_ids.append(parent.span_id)
                free += 1
                continue
            place = _place_of(index, calls)
            method = None if place is None else self._routes.find(place.code)
            if place is None or method is None or index < free or index + count > total:
                continue
            free = index + count
            names = rpc.rpc_names(method.full_name)
            at = index, count, place.span, place.span_index
            begun.append(CommandTrace(*parent, names, now_ns, user_id, *at))
            begun[-1].is_read = method.kind is MethodKind.QUERY
            row_end = index + place.left if count == 1 else 0
        return begun

    def answered(self, traces: Traces, reply: Reply) -> None:
        """Record the spans of answered calls."""
        reasons = _Reasons(reply)
        for trace in traces:
            self._answered(trace, reply, reasons)

    def _answered(self, trace: CommandTrace, reply: Reply, reasons: _Reasons) -> None:
        outcome: errors_pb2.Reason.ValueType | str = rpc.OK
        refusals: Mapping[int, errors_pb2.Reason.ValueType] = NO_REFUSALS
        refused = 0
        if reply.error is not None:
            outcome = reply.error.reason
        elif trace.count == 1:
            refusals = reasons.of(trace)
        else:
            refused = sum(len(span.errors) for span in reply.spans)
        revision = reply.first_revision + (0 if trace.is_read else trace.index)
        self._record(Ended(trace, time.time_ns(), reply.op, revision, refused, outcome, refusals))

    def refused(self, traces: Traces, refusal: Refusal) -> None:
        """Record the spans of calls refused before the log, and count the refusal."""
        if self._metrics is not None:
            self._metrics.refused(refusal.reason)
        for trace in traces:
            self._record(Ended(trace, time.time_ns(), outcome=refusal.reason))

    def abandoned(self, trace: CommandTrace | None) -> None:
        """Record the span of a call whose caller went away."""
        if trace is not None:
            self._record(Ended(trace, time.time_ns(), outcome="CANCELLED"))

    def _record(self, ended: Ended) -> None:
        assert self._recorder is not None, "a call is sampled where nothing is recorded"
        self._recorder.record(ended)


def trace_parent_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the call's `traceparent`, empty without one."""
    return next((str(value) for key, value in metadata if key == TRACE_PARENT_KEY), "")


def _calls_of(spans: Iterable[submit_pb2.Span]) -> tuple[list[_Calls], int]:
    """Return the calls of each span, and their total."""
    calls, total = [], 0
    for span in spans:
        count = span.count
        calls.append((span.code, count))
        total += count
    return calls, total


def _place_of(index: int, calls: Iterable[_Calls]) -> _Place | None:
    """Return the place of the call whose first command has that index, None if there is none."""
    for span, (code, count) in enumerate(calls):
        if index < count:
            return _Place(span, index, count - index, code)
        index -= count
    return None


class _Reasons:
    """Why commands of a reply were refused. Each refusal is read once, however many traces."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._of_span: dict[int, dict[int, errors_pb2.Reason.ValueType]] = {}

    def of(self, trace: CommandTrace) -> Mapping[int, errors_pb2.Reason.ValueType]:
        """Return the reasons of the refused calls of one command, by their place."""
        reasons = self._of_span.get(trace.span)
        if reasons is None:
            errors = self._reply.errors_of(trace.span)
            reasons = {error.index: error.error.reason for error in errors}
            self._of_span[trace.span] = reasons
        if not reasons:
            return NO_REFUSALS
        first = trace.span_index
        return {call: reasons[first + call] for call in trace.calls if first + call in reasons}
