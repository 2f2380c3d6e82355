"""CLIENT spans: one for each sampled call or batch, from the call to its result.

A call within a span of the application is a child of that span, and sampled if that span is. With
telemetry of the client the span goes to its recorder; without, it goes to the application's own
tracer provider.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.errors import ClientClosed, OutcomeUnknown, TimedOut
from viewstamp.client.transport import Metadata
from viewstamp.errors import Refusal
from viewstamp.telemetry import otlp, rpc
from viewstamp.telemetry.sampling import (
    SPAN_ID_PLACE,
    TRACE_ID_PLACE,
    CallSampler,
    Sampler,
    TraceContext,
    context_in,
    format_trace_parent,
    new_root_trace_parent,
    new_span_id,
)
from viewstamp.telemetry.spans import (
    Attributes,
    AttributeValue,
    Recorder,
    SpanOutcome,
    SpanRole,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

    from viewstamp.telemetry.settings import Telemetry

TRACE_PARENT_KEY: Final = "traceparent"

NOT_TAKEN: Final = -1
_CANCELLED: Final = "CANCELLED"
# The attributes after the names of a method if one command succeeded, as OTLP JSON.
_OK_END: Final = f",{rpc.OUTCOME_OK},{otlp.integers_of('viewstamp.op', 'viewstamp.revision')}]"
# Errors that the client itself found, and their names in spans.
_OUTCOMES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (OutcomeUnknown, "OUTCOME_UNKNOWN"),
    (TimedOut, "TIMED_OUT"),
    (ClientClosed, "CLIENT_CLOSED"),
)


class CallTrace:
    """One sampled call: notes of its CLIENT span, complete when it has an outcome."""

    __slots__ = (
        "trace_parent",
        "parent_id",
        "full_name",
        "count",
        "started_ns",
        "ended_ns",
        "op",
        "revision",
        "refused",
        "outcome",
        "span",
    )

    def __init__(
        self, trace_parent: str, parent_id: str, full_name: str, count: int, started_ns: int
    ) -> None:
        """Begin; `parent_id` is empty for a root, `count` is the number of its commands.

        `full_name` is the name of the method, as in `Method.full_name`.
        """
        self.trace_parent = trace_parent
        self.parent_id = parent_id
        self.full_name = full_name
        self.count = count
        self.started_ns = started_ns
        self.ended_ns = 0
        # Known at the end: the place of its first accepted command, the number of refused ones, and
        # the outcome (the reason of a refusal, or a text if there is none).
        self.op = NOT_TAKEN
        self.revision = self.refused = 0
        self.outcome: Reason.ValueType | str = rpc.OK
        self.span: Span | None = None  # begun by the application's tracer

    def at(self, index: int, count: int) -> submit_pb2.CallTrace:
        """Return the trace as a request carries it."""
        return submit_pb2.CallTrace(index=index, count=count, trace_parent=self.trace_parent)

    def end(self, future: asyncio.Future[Any]) -> None:
        """Note the outcome, once: later calls change nothing."""
        self.ended_ns = time.time_ns()
        if not future.done() or future.cancelled():
            self.outcome = _CANCELLED
        elif (error := future.exception()) is not None:
            self.outcome = _outcome(error)
        else:
            self._answered(future.result())

    def end_span(self) -> None:
        """Tell the span of the application's tracer how the call ended."""
        assert self.span is not None, "it was begun without one"
        from opentelemetry.trace import StatusCode

        self.span.set_attributes(self._told())
        self.span.set_status(StatusCode(self._status().value))
        self.span.end(self.ended_ns)

    def _answered(self, result: Any) -> None:
        results = result if isinstance(result, list) else (result,)
        for one in results:
            if isinstance(one, Refusal):
                self.refused += 1
            elif self.op == NOT_TAKEN:
                header = one.header
                self.op, self.revision = header.op, header.revision

    @property
    def span_count(self) -> int:
        """One."""
        return 1

    def encoded(self) -> Iterable[str]:
        """Return it as OTLP JSON."""
        if self.outcome is not rpc.OK or self.op == NOT_TAKEN or self.count > 1 or self.parent_id:
            return (self._encoded(),)
        pattern, text = _root_pattern(self.full_name), self.trace_parent
        place = text[TRACE_ID_PLACE], self.op, self.revision, text[SPAN_ID_PLACE]
        return (pattern % (*place, self.started_ns, self.ended_ns),)

    def _encoded(self) -> str:
        """Return the span of a call that the pattern does not fit."""
        names = rpc.rpc_names(self.full_name)
        return otlp.span_of(
            names.span_name,
            SpanRole.CLIENT,
            context_in(self.trace_parent),
            self.parent_id,
            self.started_ns,
            self.ended_ns,
            {**names.attributes, **self._told()},
            status=self._status(),
        )

    def _told(self) -> Attributes:
        if not isinstance(self.outcome, str):
            return rpc.refused_attributes(self.outcome)
        told: dict[str, AttributeValue] = {"viewstamp.outcome": self.outcome}
        if self.outcome is not rpc.OK:
            return told
        if self.op != NOT_TAKEN:
            told |= {"viewstamp.op": self.op, "viewstamp.revision": self.revision}
        if self.count > 1:
            told |= {"viewstamp.commands": self.count, "viewstamp.refused": self.refused}
        return told

    def _status(self) -> SpanOutcome:
        if isinstance(self.outcome, str):
            is_unset = self.outcome in (rpc.OK, _CANCELLED)
            return SpanOutcome.UNSET if is_unset else SpanOutcome.ERROR
        return rpc.refused_status(self.outcome)


@cache  # as many as there are methods
def _root_pattern(full_name: str) -> str:
    """Return the pattern that `%` turns into the span of a root call that succeeded."""
    names = rpc.rpc_names(full_name)
    attributes = names.encoded.replace("%", "%%") + _OK_END
    head = otlp.shared("%s", "", SpanRole.CLIENT, attributes)
    return names.pattern.replace("%s", head, 1)


def tracing_of(telemetry: Telemetry | None) -> ClientTracing | None:
    """Return the tracing of a client; None if neither the client nor its application traces."""
    if telemetry is not None and telemetry.recorder is not None:
        return ClientTracing(telemetry.recorder, telemetry.sampler)
    if "opentelemetry.trace" not in sys.modules:  # so there is no current span
        return None
    from opentelemetry import trace

    return ClientTracing(trace.get_tracer(otlp.SCOPE), Sampler(0.0))


class ClientTracing:
    """Decides which calls are sampled, and records how they ended."""

    def __init__(self, target: Recorder | Tracer, sampler: Sampler) -> None:
        """Calls within a current span belong to its trace; `sampler` is for the others.

        Calls become notes for a recorder, or spans of a tracer. `context` returns the current
        context, which is empty without a span.
        """
        # Imported late: a client without telemetry needs none of it.
        from opentelemetry.context import get_current
        from opentelemetry.trace import get_current_span

        self.context: Callable[[], Any] = get_current
        self._current_span = get_current_span
        self._recorder = target if isinstance(target, Recorder) else None
        self._tracer = None if isinstance(target, Recorder) else target
        self.calls = CallSampler(sampler.ratio)

    def begin(self, full_name: str, count: int = 1) -> CallTrace | None:
        """Begin the span of a call if it is sampled. The caller must `end` it.

        `full_name` is that of its method, as in `Method.full_name`.
        """
        if self.context() and (parent := self._current_span().get_span_context()).is_valid:
            return self._follow(parent, full_name, count) if parent.trace_flags.sampled else None
        calls = self.calls
        if not calls.left:
            calls.begin_group()
        calls.left -= 1
        if not calls.is_kept:
            return None
        return CallTrace(new_root_trace_parent(), "", full_name, count, time.time_ns())

    def _follow(self, parent: SpanContext, full_name: str, count: int) -> CallTrace | None:
        """Begin the span of a call as a child of the current span."""
        parent_id, now_ns = f"{parent.span_id:016x}", time.time_ns()
        if self._tracer is None:
            context = TraceContext(f"{parent.trace_id:032x}", new_span_id())
            return CallTrace(format_trace_parent(context), parent_id, full_name, count, now_ns)
        span = _begun(self._tracer, full_name, now_ns)
        if (trace_parent := _trace_parent_of(span)) is None:
            return None
        trace = CallTrace(trace_parent, parent_id, full_name, count, now_ns)
        trace.span = span
        return trace

    def sent(self) -> None:
        """Note that the calls begun so far are sent. Later calls make a new group to sample."""
        self.calls.end_group()

    def end(self, trace: CallTrace, future: asyncio.Future[Any]) -> None:
        """End the span of a call, because its future is done or its caller gave up."""
        trace.end(future)
        if self._recorder is not None:
            self._recorder.record(trace)
        else:
            trace.end_span()

    @contextmanager
    def alone(
        self, full_name: str, metadata: Metadata
    ) -> Iterator[tuple[Metadata, Callable[[Any], None]]]:
        """Trace a call outside the Submit stream; see `traced`."""
        answer: list[Any] = []
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.sent()
        trace = self.begin(full_name)
        self.sent()  # it goes alone
        if trace is None:
            yield metadata, answer.append
            return
        try:
            yield (*metadata, (TRACE_PARENT_KEY, trace.trace_parent)), answer.append
        except (asyncio.CancelledError, GeneratorExit):
            future.cancel()
            raise
        except Exception as error:
            future.set_exception(error)
            raise
        else:
            future.set_result(answer)
        finally:
            self.end(trace, future)


def _outcome(error: BaseException) -> Reason.ValueType | str:
    """Return how a call failed."""
    if isinstance(error, Refusal):
        return error.reason
    return next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "FAILED")


def _begun(tracer: Tracer, full_name: str, now_ns: int) -> Span:
    from opentelemetry.trace import SpanKind

    names = rpc.rpc_names(full_name)
    return tracer.start_span(
        names.span_name, kind=SpanKind.CLIENT, attributes=names.attributes, start_time=now_ns
    )


def _trace_parent_of(span: Span) -> str | None:
    """Return the `traceparent` of a span, None if the application's sampler does not keep it."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    if span.get_span_context().trace_flags.sampled:
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return carrier.get(TRACE_PARENT_KEY)
