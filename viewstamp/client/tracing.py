"""CLIENT spans: one for each sampled call or batch, from the call to its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeAlias

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.errors import ClientClosed, OutcomeUnknown, TimedOut
from viewstamp.errors import Refusal
from viewstamp.telemetry import otlp, rpc
from viewstamp.telemetry.sampling import (
    CURRENT_SPAN,
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
    TraceSpan,
    encoded_each,
)

TRACE_PARENT_KEY: Final = "traceparent"
Metadata: TypeAlias = tuple[tuple[str, str], ...]

NOT_TAKEN: Final = -1
current_span: Final = CURRENT_SPAN.get
_CANCELLED: Final = "CANCELLED"
# What follows the names of a method where one command went well, as OTLP JSON.
_OK_END: Final = f",{rpc.OUTCOME_OK},{otlp.integers_of('viewstamp.op', 'viewstamp.revision')}]"
# What the client itself found out, and how spans call it.
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
    )

    def __init__(
        self, trace_parent: str, parent_id: str, full_name: str, count: int, started_ns: int
    ) -> None:
        """Begin; `parent_id` is empty for a root, `count` how many commands it holds.

        `full_name` is that of the method, as in `Method.full_name`.
        """
        self.trace_parent = trace_parent
        self.parent_id = parent_id
        self.full_name = full_name
        self.count = count
        self.started_ns = started_ns
        self.ended_ns = 0
        # What is known once it has ended: the place of its first command that was taken, how many
        # were refused, and as its outcome the reason of a refusal, or a text where there is none.
        self.op = NOT_TAKEN
        self.revision = self.refused = 0
        self.outcome: Reason.ValueType | str = rpc.OK

    def at(self, index: int, count: int) -> submit_pb2.CallTrace:
        """Return the trace as a request carries it."""
        return submit_pb2.CallTrace(index=index, count=count, trace_parent=self.trace_parent)

    def end(self, future: asyncio.Future[Any]) -> None:
        """Note the outcome; nothing is noted after it."""
        self.ended_ns = time.time_ns()
        if not future.done() or future.cancelled():
            self.outcome = _CANCELLED
        elif (error := future.exception()) is not None:
            self.outcome = _outcome(error)
        else:
            self._answered(future.result())

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
            return encoded_each(self.spans())
        pattern, text = _root_pattern(self.full_name), self.trace_parent
        place = text[TRACE_ID_PLACE], self.op, self.revision, text[SPAN_ID_PLACE]
        return (pattern % (*place, self.started_ns, self.ended_ns),)

    def spans(self) -> Iterable[TraceSpan]:
        """Yield the CLIENT span."""
        names = rpc.rpc_names(self.full_name)
        yield TraceSpan(
            names.span_name,
            SpanRole.CLIENT,
            self._context(),
            self.parent_id,
            self.started_ns,
            self.ended_ns,
            {**names.attributes, **self._told()},
            status=self._status(),
        )

    def _context(self) -> TraceContext:
        return context_in(self.trace_parent)

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
    """Return what `%` makes the span of a root call that went well of."""
    names = rpc.rpc_names(full_name)
    attributes = names.encoded.replace("%", "%%") + _OK_END
    head = otlp.shared("%s", "", SpanRole.CLIENT, attributes)
    return names.pattern.replace("%s", head, 1)


class ClientTracing:
    """Decides which calls are sampled, and records how they ended."""

    def __init__(self, recorder: Recorder, sampler: Sampler) -> None:
        """Calls within a span that is current belong to its trace; `sampler` is for the others."""
        self._recorder = recorder
        self.calls = CallSampler(sampler.ratio)

    def begin(self, full_name: str, count: int = 1) -> CallTrace | None:
        """Begin the span of a call if it is sampled; whoever gets it has to `end` it.

        `full_name` is that of its method, as in `Method.full_name`.
        """
        parent = current_span()
        if parent is None:
            calls = self.calls
            if not calls.left:
                calls.begin_group()
            calls.left -= 1
            if not calls.is_kept:
                return None
            return CallTrace(new_root_trace_parent(), "", full_name, count, time.time_ns())
        context = TraceContext(parent.trace_id, new_span_id())
        trace_parent = format_trace_parent(context)
        return CallTrace(trace_parent, parent.span_id, full_name, count, time.time_ns())

    def sent(self) -> None:
        """What began so far is sent together; what begins from now on is sampled by itself."""
        self.calls.end_group()

    def end(self, trace: CallTrace, future: asyncio.Future[Any]) -> None:
        """End the span of a call: its future is done, or nobody waits for it any more."""
        trace.end(future)
        self._recorder.record(trace)


@contextmanager
def traced(
    tracing: ClientTracing | None, full_name: str, metadata: Metadata
) -> Iterator[tuple[Metadata, Callable[[Any], None]]]:
    """Trace a call that goes by itself, not through the Submit stream; it ends with the block.

    Yields the metadata to send, and whom to tell of the answer.
    """
    if tracing is None:
        yield metadata, lambda _: None
        return
    answer: list[Any] = []
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    tracing.sent()
    trace = tracing.begin(full_name)
    tracing.sent()  # it goes alone
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
        tracing.end(trace, future)


def _outcome(error: BaseException) -> Reason.ValueType | str:
    """Return how a call failed."""
    if isinstance(error, Refusal):
        return error.reason
    return next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "FAILED")
