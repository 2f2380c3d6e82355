"""Export of spans to a collector, by OTLP over gRPC, through OpenTelemetry's own exporter.

It retries, and reads the usual environment variables (OTEL_EXPORTER_OTLP_HEADERS and so on). Notes
give spans only as text, so this module reads the text back into the SDK's spans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from viewstamp.telemetry.otlp import SCOPE
from viewstamp.telemetry.spans import AttributeValue, Notes, SpanRole, texts_of

EXPORT_TIMEOUT_S: Final = 5.0
INSECURE_SCHEME: Final = "http://"
SECURE_SCHEME: Final = "https://"

_HEX: Final = 16
# Conversions of attribute values. OTLP JSON has 64-bit integers as text.
_VALUES: Final[Mapping[str, Callable[[Any], AttributeValue]]] = {
    "stringValue": str,
    "intValue": int,
    "doubleValue": float,
    "boolValue": bool,
}
_SCOPE: Final = InstrumentationScope(SCOPE)


class Collector:
    """A sink that exports to a collector at `endpoint` (http://HOST:PORT or https://HOST:PORT)."""

    def __init__(self, endpoint: str, resource: Callable[[], Resource]) -> None:
        """Prepare the exporter; it connects at the first span. Raises ValueError: bad endpoint."""
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
        spans = sdk_spans(f"[{','.join(texts_of(notes))}]", self._resource())
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise OSError(f"the collector at {self._endpoint} did not take them")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


def sdk_spans(text: str, resource: Resource) -> list[ReadableSpan]:
    """Convert a list of spans in OTLP JSON into spans of the SDK."""
    return [_sdk_span(told, resource) for told in json.loads(text)]


def _sdk_span(told: Mapping[str, Any], resource: Resource) -> ReadableSpan:
    trace_id, parent_id = told["traceId"], told.get("parentSpanId")
    kind, status = told["kind"], told.get("status", {})
    is_remote = kind == SpanRole.SERVER
    return ReadableSpan(
        name=told["name"],
        context=_context(trace_id, told["spanId"]),
        parent=_context(trace_id, parent_id, is_remote=is_remote) if parent_id else None,
        resource=resource,
        attributes=dict(map(_attribute, told.get("attributes", ()))),
        links=[Link(_context(**link)) for link in told.get("links", ())],
        kind=SpanKind(kind - 1),  # OTLP keeps 0 for an unspecified kind
        instrumentation_scope=_SCOPE,
        status=Status(StatusCode(status.get("code", 0)), status.get("message")),
        start_time=int(told["startTimeUnixNano"]),
        end_time=int(told["endTimeUnixNano"]),
    )


def _attribute(told: Mapping[str, Any]) -> tuple[str, AttributeValue]:
    ((kind, value),) = told["value"].items()
    return told["key"], _VALUES[kind](value)


def _context(
    traceId: str,  # noqa: N803 - as OTLP names it
    spanId: str,  # noqa: N803
    *,
    is_remote: bool = False,
) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(traceId, _HEX), int(spanId, _HEX), is_remote, flags)
