"""Notes of client and service: their spans, and the agreement of both ways to make them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.base.command_traces import CommandTrace
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.mux import types as mux_types
from coordinator.replica.batcher import AnsweredSpan, PrepareBatch, Reply
from coordinator.telemetry.metrics import COUNTED_TOGETHER, UNCOUNTED_BYTES_MAX, ReplicaMetrics
from services.runtime.watch import ApplyWatch
from tests.viewstamp.telemetry.spans_for_tests import Kept
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.client.errors import ClientClosed, OutcomeUnknown, TimedOut
from viewstamp.client.tracing import ClientTracing
from viewstamp.client.transport import traced
from viewstamp.errors import Refusal
from viewstamp.telemetry.current import make_current, sampled_span
from viewstamp.telemetry.rpc import rpc_names
from viewstamp.telemetry.sampling import (
    Sampler,
    TraceContext,
    format_trace_parent,
    new_root,
)
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings
from viewstamp.telemetry.spans import Recorder, SpanOutcome, SpanRole

METHOD = "viewstamp.api.streams.v1.StreamsService/CreateTopic"
Future = asyncio.Future[Any]


def taken(op: int, revision: int) -> Any:
    """Return an answer of the cluster."""
    return SimpleNamespace(header=SimpleNamespace(op=op, revision=revision))


def refusal(reason: Reason.ValueType) -> Refusal:
    """Return a refusal."""
    return Refusal(reason, "secret")


def failing(error: BaseException) -> Callable[[Future], object]:
    """Return the error that fails a call."""
    return lambda future: future.set_exception(error)


def answering(result: Any) -> Callable[[Future], object]:
    """Return the answer to a call."""
    return lambda future: future.set_result(result)


EXISTS, INTERNAL = Reason.REASON_STREAM_EXISTS, Reason.REASON_INTERNAL
OK = {"viewstamp.outcome": "ok", "viewstamp.op": 3, "viewstamp.revision": 9}
ENDS: list[tuple[int, Callable[[Future], object], dict[str, Any], SpanOutcome]] = [
    (1, answering(taken(3, 9)), OK, SpanOutcome.UNSET),
    (
        1,
        answering(taken(0, 0)),
        OK | {"viewstamp.op": 0, "viewstamp.revision": 0},
        SpanOutcome.UNSET,
    ),
    (1, answering([]), {"viewstamp.outcome": "ok"}, SpanOutcome.UNSET),
    (
        3,
        answering([refusal(EXISTS), taken(3, 9), taken(3, 10)]),
        OK | {"viewstamp.commands": 3, "viewstamp.refused": 1},
        SpanOutcome.UNSET,
    ),
    (
        2,
        answering([refusal(EXISTS), refusal(EXISTS)]),
        {"viewstamp.outcome": "ok", "viewstamp.commands": 2, "viewstamp.refused": 2},
        SpanOutcome.UNSET,
    ),
    (
        1,
        failing(refusal(EXISTS)),
        {"viewstamp.outcome": "STREAM_EXISTS", "viewstamp.reason": "STREAM_EXISTS"},
        SpanOutcome.UNSET,
    ),
    (
        1,
        failing(refusal(INTERNAL)),
        {"viewstamp.outcome": "INTERNAL", "viewstamp.reason": "INTERNAL"},
        SpanOutcome.ERROR,
    ),
    (1, failing(TimedOut("late")), {"viewstamp.outcome": "TIMED_OUT"}, SpanOutcome.ERROR),
    (
        1,
        failing(OutcomeUnknown("secret", session_id=1, request_number=2)),
        {"viewstamp.outcome": "OUTCOME_UNKNOWN"},
        SpanOutcome.ERROR,
    ),
    (1, failing(ClientClosed("closed")), {"viewstamp.outcome": "CLIENT_CLOSED"}, SpanOutcome.ERROR),
    (1, failing(ValueError("secret")), {"viewstamp.outcome": "FAILED"}, SpanOutcome.ERROR),
    (1, lambda future: future.cancel(), {"viewstamp.outcome": "CANCELLED"}, SpanOutcome.UNSET),
    (1, lambda future: None, {"viewstamp.outcome": "CANCELLED"}, SpanOutcome.UNSET),
]


@pytest.mark.parametrize(("count", "end", "told", "status"), ENDS)
async def test_client_span_says_how_a_call_ended(
    count: int, end: Callable[[Future], object], told: dict[str, Any], status: SpanOutcome
) -> None:
    """A span tells every way a call can end, with its place or reason, and without its message."""
    kept, future = Kept(), asyncio.get_running_loop().create_future()
    tracing = ClientTracing(Recorder([kept]), Sampler(1.0))
    trace = tracing.begin(METHOD, count)
    assert trace is not None
    end(future)
    tracing.end(trace, future)
    (span,) = kept.spans
    assert dict(span.attributes) == {**rpc_names(METHOD).attributes, **told}
    assert (span.status, span.name, span.parent_id) == (status, "StreamsService/CreateTopic", "")
    assert format_trace_parent(span.context) == trace.trace_parent
    assert "secret" not in repr(span)


async def test_call_alone_ends_with_its_block() -> None:
    """A single call has its span however the block is left."""
    kept = Kept()
    tracing = ClientTracing(Recorder([kept]), Sampler(1.0))
    with traced(tracing, METHOD, ()) as (metadata, answered):
        answered(taken(3, 9))
    with pytest.raises(Refusal), traced(tracing, METHOD, ()):
        raise refusal(EXISTS)
    with pytest.raises(asyncio.CancelledError), traced(tracing, METHOD, ()):
        raise asyncio.CancelledError
    outcomes = [span.attributes["viewstamp.outcome"] for span in kept.spans]
    assert outcomes == ["ok", "STREAM_EXISTS", "CANCELLED"]
    assert metadata == (("traceparent", format_trace_parent(kept.spans[0].context)),)
    make_current(TraceContext(32 * "c", 16 * "d"))
    with traced(tracing, METHOD, ()) as (_, answered):
        answered(taken(3, 9))
    make_current(None)
    assert (kept.spans[-1].context.trace_id, kept.spans[-1].parent_id) == (32 * "c", 16 * "d")


def test_service_has_a_span_for_each_parent() -> None:
    """A batch has a span below each traceparent that came with it; the next batch has none."""
    kept, telemetry = Kept(), Telemetry("streams", TelemetrySettings())
    telemetry.recorder = Recorder([kept])
    watch = ApplyWatch("streams", telemetry)
    parents = [new_root() for _ in range(3)]
    batch = domain_pb2.Batch(op=5, items=[domain_pb2.Item(), domain_pb2.Item()])
    batch.trace_parents.extend(map(format_trace_parent, parents))
    begun_ns = watch.begin(batch)
    assert sampled_span() == parents[0]
    watch.end(batch, begun_ns)
    assert sampled_span() is None
    assert [(span.context.trace_id, span.parent_id) for span in kept.spans] == parents
    told = {"viewstamp.op": 5, "viewstamp.stage": "streams", "viewstamp.items": 2}
    for span in kept.spans:
        assert (span.name, span.kind, span.attributes) == ("apply streams", SpanRole.SERVER, told)
        assert span.start_ns == begun_ns <= span.end_ns
    # One failed half-way, as after a machine's error: it has no span, nor has the next.
    watch.begin(batch)
    unsampled = domain_pb2.Batch(op=6)
    watch.end(unsampled, watch.begin(unsampled))
    assert len(kept.spans) == len(parents)
    make_current(None)  # or later tests would run within the span


@pytest.mark.parametrize("user_id", [None, 0, 7])
@pytest.mark.parametrize("count", [1, 3])
def test_server_span_says_whose_it_is(user_id: int | None, count: int) -> None:
    """The span has the user that the token gave, and the number of commands if above one.

    `Kept` compares both ways in which the span is made.
    """
    kept: Any = Kept()
    gateway = GatewayWatch(SimpleNamespace(), Recorder([kept]), Sampler(0.0), None)  # type: ignore[arg-type]
    trace = CommandTrace(32 * "a", 16 * "b", rpc_names(METHOD), 1_000, user_id, 0, count)
    gateway.answered((trace,), Reply(0, 5, 40, (AnsweredSpan(b"", ()),)))
    (span,) = kept.spans
    told = {"viewstamp.op": 5, "viewstamp.revision": 40, "viewstamp.outcome": "ok"}
    if user_id is not None:
        told["viewstamp.user_id"] = user_id
    if count > 1:
        told |= {"viewstamp.commands": count, "viewstamp.refused": 0}
    assert dict(span.attributes) == {**rpc_names(METHOD).attributes, **told}


@pytest.mark.parametrize(
    ("size", "prepares"), [(1, COUNTED_TOGETHER), (UNCOUNTED_BYTES_MAX // 2, 2)]
)
def test_bodies_are_not_kept_to_be_counted(size: int, prepares: int) -> None:
    """Commands are counted later, yet bodies are freed after a number of them, or of bytes."""
    metrics = ReplicaMetrics(str)
    request = log_pb2.LoggedRequest(spans=[log_pb2.LoggedSpan(code=200, count=3)])
    first = PrepareBatch(bytes(size), 3, [request], [])
    references = sys.getrefcount(first)
    reply = mux_types.RequestReply(1, 1, 0, 5, 9, (mux_types.SpanReply(b"", ()),))
    for number in range(prepares):
        batch = first if number == 0 else PrepareBatch(bytes(size), 3, [request], [])
        metrics.applied(batch, mux_types.Applied(5, 0, 13, (reply,), ()), 1_000)
        del batch
        is_kept = sys.getrefcount(first) > references
        assert is_kept == (number < prepares - 1)
    # And the next one waits for others again.
    metrics.applied(first, mux_types.Applied(5, 0, 13, (reply,), ()), 1_000)
    assert sys.getrefcount(first) > references
    families = {family.name: family for family in metrics.families()}
    (commands,) = families["viewstamp_commands"].samples
    assert commands.value == 3 * (prepares + 1)
