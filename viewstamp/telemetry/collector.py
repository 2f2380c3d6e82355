"""Spans to a collector, by OTLP over gRPC, through OpenTelemetry's own exporter.

It retries, and reads the usual environment variables (OTEL_EXPORTER_OTLP_HEADERS and so on). Our
spans become the SDK's here, off the hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace import Status as SdkStatus

from viewstamp.telemetry.otlp import SCOPE
from viewstamp.telemetry.sampling import TraceContext
from viewstamp.telemetry.spans import Attributes, Notes, SpanOutcome, SpanRole, TraceSpan

EXPORT_TIMEOUT_S: Final = 5.0
INSECURE_SCHEME: Final = "http://"
SECURE_SCHEME: Final = "https://"

_KINDS: Final = {
    SpanRole.INTERNAL: SpanKind.INTERNAL,
    SpanRole.SERVER: SpanKind.SERVER,
    SpanRole.CLIENT: SpanKind.CLIENT,
}
_STATUSES: Final = {
    SpanOutcome.UNSET: StatusCode.UNSET,
    SpanOutcome.OK: StatusCode.OK,
    SpanOutcome.ERROR: StatusCode.ERROR,
}
_HEX: Final = 16


class Collector:
    """A sink that exports to a collector at `endpoint` (http://HOST:PORT or https://HOST:PORT)."""

    def __init__(self, endpoint: str, resource: Callable[[], Attributes]) -> None:
        """Prepare; nobody is called before the first span. Raises ValueError for the endpoint."""
        if not endpoint.startswith((INSECURE_SCHEME, SECURE_SCHEME)):
            raise ValueError(
                f"--otlp-endpoint is {endpoint!r}: give http://HOST:PORT, or https://HOST:PORT"
            )
        self._endpoint = endpoint
        self._resource = resource
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint,
            insecure=endpoint.startswith(INSECURE_SCHEME),
            timeout=EXPORT_TIMEOUT_S,
        )

    def write(self, notes: Sequence[Notes]) -> None:
        """Export a group. Raises OSError if the collector did not take it."""
        resource = Resource(dict(self._resource()))
        exported = self._exporter.export(
            [sdk_span(span, resource) for one in notes for span in one.spans()]
        )
        if exported is not SpanExportResult.SUCCESS:
            raise OSError(f"the collector at {self._endpoint} did not take them")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


def sdk_span(span: TraceSpan, resource: Resource) -> ReadableSpan:
    """Return a span in the SDK's form."""
    parent = TraceContext(span.context.trace_id, span.parent_id) if span.parent_id else None
    return ReadableSpan(
        name=span.name,
        context=_context(span.context, is_remote=False),
        parent=None if parent is None else _context(parent, is_remote=span.kind is SpanRole.SERVER),
        resource=resource,
        attributes=span.attributes,
        links=_links(span.links),
        kind=_KINDS[span.kind],
        instrumentation_scope=InstrumentationScope(SCOPE),
        status=SdkStatus(_STATUSES[span.status], span.message or None),
        start_time=span.start_ns,
        end_time=span.end_ns,
    )


def _links(links: Iterable[TraceContext]) -> list[Link]:
    return [Link(_context(link, is_remote=False)) for link in links]


def _context(context: TraceContext, *, is_remote: bool) -> SpanContext:
    return SpanContext(
        int(context.trace_id, _HEX),
        int(context.span_id, _HEX),
        is_remote,
        TraceFlags(TraceFlags.SAMPLED),
    )
