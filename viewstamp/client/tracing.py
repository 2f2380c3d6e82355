"""CLIENT spans: one for each sampled call or batch, from the call to its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.errors import ClientClosed, OutcomeUnknown, TimedOut
from viewstamp.errors import Refusal
from viewstamp.telemetry import rpc
from viewstamp.telemetry.sampling import (
    CURRENT_SPAN,
    Sampler,
    TraceContext,
    format_trace_parent,
    new_root,
    new_span_id,
    sampled_parent,
)
from viewstamp.telemetry.spans import (
    Attributes,
    AttributeValue,
    Kind,
    Recorder,
    Span,
    Status,
    encoded_each,
)

TRACE_PARENT_KEY: Final = "traceparent"
Metadata: TypeAlias = tuple[tuple[str, str], ...]

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
        "status",
        "outcome",
    )

    def __init__(self, trace_parent: str, parent_id: str, full_name: str, count: int) -> None:
        """Begin; `parent_id` is empty for a root, `count` how many commands it holds.

        `full_name` is that of the method, as in `Method.full_name`.
        """
        self.trace_parent = trace_parent
        self.parent_id = parent_id
        self.full_name = full_name
        self.count = count
        self.started_ns = time.time_ns()
        self.ended_ns = 0
        self.status = Status.UNSET
        self.outcome: Attributes = {}

    def at(self, index: int, count: int) -> submit_pb2.CallTrace:
        """Return the trace as a request carries it."""
        return submit_pb2.CallTrace(index=index, count=count, trace_parent=self.trace_parent)

    def end(self, future: asyncio.Future[Any]) -> None:
        """Note the outcome."""
        self.ended_ns = time.time_ns()
        self.outcome, self.status = _outcome(self, future)

    @property
    def span_count(self) -> int:
        """One."""
        return 1

    def encoded(self) -> Iterable[str]:
        """Return it as OTLP JSON."""
        return encoded_each(self.spans())

    def spans(self) -> Iterable[Span]:
        """Yield the CLIENT span."""
        context = sampled_parent(self.trace_parent)
        assert context is not None, "a call is sampled from its beginning"
        names = rpc.rpc_names(self.full_name)
        attributes = {**names.attributes, **self.outcome}
        yield Span(
            names.span_name,
            Kind.CLIENT,
            context,
            self.parent_id,
            self.started_ns,
            self.ended_ns,
            attributes,
            status=self.status,
        )


class ClientTracing:
    """Decides which calls are sampled, and records how they ended."""

    def __init__(self, recorder: Recorder, sampler: Sampler) -> None:
        """Calls within a span that is current belong to its trace; `sampler` is for the others."""
        self._recorder = recorder
        self._sampler = sampler
        self._gap = sampler.gap()  # so many calls are not sampled before the next one is

    def begin(
        self, full_name: str, future: asyncio.Future[Any], count: int = 1
    ) -> CallTrace | None:
        """Begin the span of a call if it is sampled; it ends when `future` is done.

        `full_name` is that of its method, as in `Method.full_name`.
        """
        parent = CURRENT_SPAN.get()
        if parent is None:
            if self._gap:
                self._gap -= 1
                return None
            self._gap = self._sampler.gap()
            context, parent_id = new_root(), ""
        else:
            context, parent_id = TraceContext(parent.trace_id, new_span_id()), parent.span_id
        trace = CallTrace(format_trace_parent(context), parent_id, full_name, count)
        future.add_done_callback(lambda done: self._end(trace, done))
        return trace

    def _end(self, trace: CallTrace, future: asyncio.Future[Any]) -> None:
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
    trace = tracing.begin(full_name, future)
    if trace is not None:
        metadata = (*metadata, (TRACE_PARENT_KEY, trace.trace_parent))
    try:
        yield metadata, answer.append
    except (asyncio.CancelledError, GeneratorExit):
        future.cancel()
        raise
    except Exception as error:
        if trace is not None:  # or nobody would ask the future for it
            future.set_exception(error)
        raise
    else:
        future.set_result(answer)


def _outcome(
    trace: CallTrace, future: asyncio.Future[Any]
) -> tuple[dict[str, AttributeValue], Status]:
    if future.cancelled():
        return {"viewstamp.outcome": "CANCELLED"}, Status.UNSET
    error = future.exception()
    if error is None:
        return _answered(trace, future.result()), Status.UNSET
    if isinstance(error, Refusal):
        return rpc.refused_attributes(error.reason), rpc.refused_status(error.reason)
    name = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "FAILED")
    return {"viewstamp.outcome": name}, Status.ERROR


def _answered(trace: CallTrace, result: Any) -> dict[str, AttributeValue]:
    results: Sequence[Any] = result if isinstance(result, list) else [result]
    attributes: dict[str, AttributeValue] = {"viewstamp.outcome": rpc.OK}
    taken = [one for one in results if not isinstance(one, Refusal)]
    if taken:
        attributes["viewstamp.op"] = taken[0].header.op
        attributes["viewstamp.revision"] = taken[0].header.revision
    if trace.count > 1:
        attributes["viewstamp.commands"] = trace.count
        attributes["viewstamp.refused"] = len(results) - len(taken)
    return attributes
