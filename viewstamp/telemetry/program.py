"""Traces of a program that does one piece of work and ends; `OTEL_*` variables configure them.

Such a program is an application of OpenTelemetry like any other: the SDK's tracer provider is the
global one, its sampler, its resource and its exporter read their variables, and `TRACEPARENT` names
the span that the program runs below. The client follows the current span.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# Each of these variables says where somebody collects traces.
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# The limit of one export. At its end a program waits for the export under way, and for one more
# with the rest.
EXPORT_TIMEOUT_S: Final = 2.0
SPANS_WAITING_MAX: Final = 512
_PARENT_VARIABLES: Final = {"traceparent": "TRACEPARENT", "tracestate": "TRACESTATE"}


def traced_program(service_name: str, name: str) -> AbstractContextManager[object]:
    """Return a context that runs the program in a span of that name if variables ask for it."""
    if not any(map(os.environ.get, ENDPOINTS)):
        return nullcontext()
    try:
        from viewstamp.telemetry.work import working
    except ModuleNotFoundError:  # no SDK; the variables may be for other programs
        return nullcontext()
    return _exported(service_name, working(name))


def part(name: str) -> AbstractContextManager[object]:
    """Return a context for a part of the work; it has a span if the program has one."""
    if "opentelemetry.trace" not in sys.modules:
        return nullcontext()
    from viewstamp.telemetry.work import working

    return working(name)


@contextmanager
def _exported(service_name: str, work: AbstractContextManager[object]) -> Iterator[None]:
    from opentelemetry import trace
    from opentelemetry.context import attach
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    trace.set_tracer_provider(_provider(service_name))
    said = {key: os.environ.get(name, "") for key, name in _PARENT_VARIABLES.items()}
    attach(TraceContextTextMapPropagator().extract(said))
    with work:
        yield


def _provider(service_name: str) -> TracerProvider:
    """Return a provider that exports the waiting spans when the process exits."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", service_name)
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    exporter = OTLPSpanExporter(timeout=EXPORT_TIMEOUT_S)
    one_export = BatchSpanProcessor(
        exporter, max_queue_size=SPANS_WAITING_MAX, max_export_batch_size=SPANS_WAITING_MAX
    )
    provider.add_span_processor(one_export)
    return provider
