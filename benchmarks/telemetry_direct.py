"""Measures what telemetry adds to a command, as CPU time of one thread, without a cluster.

From the client's decision to the encoded lines, in requests of 128 commands that are alone in their
prepare. `notes` is the way of our processes. `sdk` makes the same spans with OpenTelemetry's
tracer, sampler and propagator, in each of the three processes, and encodes them with the same code.
`collector` is the cost of turning notes into the SDK's spans for its exporter.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from coordinator.gateway.routes import Routes
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.mux import types as mux_types
from coordinator.replica.batcher import AnsweredSpan, PrepareBatch, Reply
from coordinator.telemetry.prepares import STEPS
from coordinator.telemetry.watch import ReplicaWatch
from services.runtime.watch import ApplyWatch
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.methods import method_of
from viewstamp.client.tracing import ClientTracing
from viewstamp.telemetry import rpc
from viewstamp.telemetry.collector import sdk_spans
from viewstamp.telemetry.otlp import Lines
from viewstamp.telemetry.provider import FinishedSpan
from viewstamp.telemetry.sampling import CallSampler, Sampler
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings
from viewstamp.telemetry.spans import Notes, Recorder, texts_of

PREPARES: Final = 100
COMMANDS: Final = 128
RATIOS: Final = (0.0, 0.01, 1.0)
REGISTER_SESSION_CODE: Final = 1  # any that the coordinator knows by itself

_METHOD: Final = method_of(sessions_pb2.RegisterSessionRequest())
Encode = Callable[[Sequence[Notes]], None]


async def measured(rounds: int) -> dict[str, dict[str, float]]:
    """Return µs per command for each way, and ratios: medians of rounds with all ways in turns.

    Every other round is in reverse.
    """
    ways: dict[str, Callable[[float], float]] = {
        "notes": Noted(Lined()).run,
        "sdk": Sdk().run,
        "collector": Noted(exported).run,
    }
    turns = [(name, ratio) for name in ways for ratio in RATIOS]
    found: dict[tuple[str, float], list[float]] = {turn: [] for turn in turns}
    for number in range(rounds):
        for name, ratio in turns if number % 2 == 0 else turns[::-1]:
            found[name, ratio].append(ways[name](ratio))
    return {
        name: {f"{ratio:.0%}": round(median(found[name, ratio]), 3) for ratio in RATIOS}
        for name in ways
    }


def timed(prepare: Callable[[int], None]) -> float:
    """Return µs of this thread for each command."""
    begun_s = time.thread_time()
    for op in range(PREPARES):
        prepare(op)
    return (time.thread_time() - begun_s) / PREPARES / COMMANDS * 1e6


class Lined:
    """Encodes notes as the thread that writes files does."""

    def __init__(self) -> None:
        self._lines = Lines()

    def __call__(self, notes: Sequence[Notes]) -> None:
        self._lines.line_of({}, texts_of(notes)).release()


def exported(notes: Sequence[Notes]) -> None:
    """Encode notes as the collector's thread does, up to the request."""
    encode_spans(sdk_spans(f"[{','.join(texts_of(notes))}]", Resource({}))).SerializeToString()


class KeptNotes:
    """Collects notes."""

    def __init__(self) -> None:
        self.notes: list[Notes] = []

    def put(self, notes: Notes) -> None:
        """Keep notes."""
        self.notes.append(notes)


class Noted:
    """The hooks of client, coordinator and service, which note what they see."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._kept = KeptNotes()
        self._recorder = Recorder([self._kept])
        self._gateway = GatewayWatch(Routes(), self._recorder, Sampler(0.0), None)
        self._watch = ReplicaWatch(self._recorder, None, Sampler(1.0), is_alone=lambda: True)
        telemetry = Telemetry("streams", TelemetrySettings())
        telemetry.recorder = self._recorder
        self._service = ApplyWatch("streams", telemetry)
        self._answered = asyncio.get_running_loop().create_future()
        self._answered.set_result(sessions_pb2.RegisterSessionResponse())

    def run(self, ratio: float) -> float:
        """Return µs for each command."""
        client = ClientTracing(self._recorder, Sampler(ratio))
        # Each run samples the same number of requests, so that runs can be compared.
        every = round(1 / ratio) if ratio else 0
        draws = itertools.count(1)
        client.calls = CallSampler(0.5, lambda: float(not every or next(draws) % every > 0))
        return timed(lambda op: self._prepare(client, op))

    def _prepare(self, client: ClientTracing, op: int) -> None:
        begun = [(index, client.begin(_METHOD.full_name)) for index in range(COMMANDS)]
        client.sent()
        sampled = [(index, trace) for index, trace in begun if trace is not None]
        calls = [trace.at(index, 1) for index, trace in sampled]
        span = submit_pb2.Span(code=REGISTER_SESSION_CODE, count=COMMANDS)
        self._lead(submit_pb2.CommandRequest(spans=[span], traces=calls), op)
        for _, trace in sampled:
            client.end(trace, self._answered)
        self._encode(self._kept.notes)
        self._kept.notes.clear()

    def _lead(self, request: submit_pb2.CommandRequest, op: int) -> None:
        """Pass one request through the hooks, as gateway, driver and one stage do."""
        watch, service = self._watch, self._service
        traces = self._gateway.packed(request, 1)
        header: Any = SimpleNamespace(op=op, view=0, first_revision=op, command_count=1, size=1)
        prepares: list[Any] = [SimpleNamespace(op=op, header=header)]
        batch = PrepareBatch(b"", COMMANDS, [], [], traces=traces)
        watch.persisting(prepares, lambda _: batch)
        watch.persisted(prepares)
        watch.committed(op)
        watch.handed_over(op)
        item = domain_pb2.CommandItem(first_revision=op, count=COMMANDS)
        sent = domain_pb2.Batch(sequence=op + 1, op=op, items=[domain_pb2.Item(command=item)])
        for trace in traces:
            trace.offset = 0
        sent.trace_parents.extend(watch.sent(mux_types.Stage.STREAMS, sent))
        service.end(sent, service.begin(sent))
        watch.answered(mux_types.Stage.STREAMS, op + 1)
        watch.applied(mux_types.Applied(op, 0, op, (), ()))
        self._gateway.answered(traces, Reply(0, op, op, (AnsweredSpan(b"", ()),)))


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class Sdk:
    """Makes the same spans with the SDK's tracer, with given start and end times."""

    def __init__(self) -> None:
        self._ended = _Ended()
        self._encode = Lined()
        self._propagator = TraceContextTextMapPropagator()
        self._names = rpc.rpc_names(_METHOD.full_name)

    def run(self, ratio: float) -> float:
        """Return µs for each command."""
        provider = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        tracer = provider.get_tracer("viewstamp")
        kept = TracerProvider(shutdown_on_exit=False)  # prepares all have their span
        kept.add_span_processor(self._ended)
        prepares = kept.get_tracer("viewstamp")
        return timed(lambda op: self._prepare(tracer, prepares, op))

    def _prepare(self, tracer: Tracer, prepares: Tracer, op: int) -> None:
        links = []
        for _ in range(COMMANDS):
            link = self._command(tracer, op)
            if link is not None:
                links.append(link)
        told: Mapping[str, Any] = {"viewstamp.op": op, "viewstamp.view": 0}
        now_ns = time.time_ns()
        prepare = prepares.start_span(
            "prepare", Context(), attributes=told, links=links, start_time=now_ns
        )
        prepare.end(now_ns)
        self._encode([FinishedSpan(span) for span in self._ended.spans])
        self._ended.spans.clear()

    def _command(self, tracer: Tracer, op: int) -> Link | None:
        now_ns, names = time.time_ns(), self._names
        place: Mapping[str, Any] = {"viewstamp.op": op, "viewstamp.revision": op}
        done = {**place, "viewstamp.outcome": "ok"}
        client = tracer.start_span(
            names.span_name, Context(), SpanKind.CLIENT, names.attributes, start_time=now_ns
        )
        if not client.is_recording():
            return None
        server = tracer.start_span(
            names.span_name, self._there(client), SpanKind.SERVER, names.attributes, (), now_ns
        )
        within = set_span_in_context(server, Context())
        for step in STEPS:
            tracer.start_span(step, within, attributes=place, start_time=now_ns).end(now_ns)
        stage = tracer.start_span(
            "stage streams", within, SpanKind.CLIENT, {**place, "viewstamp.stage": "streams"}
        )
        at_stage: Mapping[str, Any] = {
            "viewstamp.op": op,
            "viewstamp.stage": "streams",
            "viewstamp.items": 1,
        }
        apply = tracer.start_span(
            "apply streams", self._there(stage), SpanKind.SERVER, at_stage, (), now_ns
        )
        apply.end(now_ns)
        stage.end(now_ns)
        for span in (server, client):
            span.set_attributes(done)
            span.end(now_ns)
        return Link(server.get_span_context())

    def _there(self, span: Any) -> Context:
        """Return a span as another process receives it."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span, Context()))
        return self._propagator.extract(carrier, Context())


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measured(9)), indent=2))
