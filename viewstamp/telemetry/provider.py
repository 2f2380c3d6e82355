"""OpenTelemetry's tracer provider, for rare spans: starts, snapshots, transfers.

Its spans share the queue of each destination with the notes of commands: one limit, one count of
dropped spans, one deadline at the end, one writer for each file.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanContext, Tracer, format_span_id, format_trace_id

from viewstamp.telemetry import otlp
from viewstamp.telemetry.sampling import TraceContext
from viewstamp.telemetry.spans import Attributes, Recorder


class Provider:
    """The resource (identity) of a process, and its tracers.

    `resource` includes `OTEL_RESOURCE_ATTRIBUTES`.
    """

    def __init__(self, service_name: str) -> None:
        """Begin for a process that knows only its name."""
        self.resource = Resource.create(
            {"service.name": service_name, "service.instance.id": str(uuid.uuid4())}
        )
        # A trace that begins here is kept, because its work is rare. Others follow their parent.
        # The code that opened the recorder closes it, because at exit it would be too late.
        self.tracers = TracerProvider(ParentBased(ALWAYS_ON), self.resource, shutdown_on_exit=False)

    def belongs_to(self, attributes: Attributes) -> None:
        """Add to the resource. Spans written from now on have it."""
        self.resource = self.resource.merge(Resource(attributes))

    def tracer_to(self, recorder: Recorder) -> Tracer:
        """Return a tracer whose finished spans go to `recorder`."""
        self.tracers.add_span_processor(_Recorded(recorder))
        return self.tracers.get_tracer(otlp.SCOPE)


class _Recorded(SpanProcessor):
    """Hands finished spans to a recorder, in the thread that finishes them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_end(self, span: ReadableSpan) -> None:
        self._recorder.record(FinishedSpan(span))


class FinishedSpan(NamedTuple):
    """A finished span of the SDK, as the note of one span. It leaves out events: we have none."""

    span: ReadableSpan

    @property
    def span_count(self) -> int:
        """One."""
        return 1

    def encoded(self) -> tuple[str]:
        """Return it as OTLP JSON."""
        span = self.span
        assert span.context is not None and span.start_time is not None
        assert span.end_time is not None, "it is finished"
        text = otlp.span_of(
            span.name,
            span.kind.value + 1,  # OTLP keeps 0 for an unspecified kind
            _context(span.context),
            "" if span.parent is None else format_span_id(span.parent.span_id),
            span.start_time,
            span.end_time,
            span.attributes or {},
            [_context(link.context) for link in span.links],
            span.status.status_code.value,
            span.status.description or "",
        )
        return (text,)


def _context(context: SpanContext) -> TraceContext:
    return TraceContext(format_trace_id(context.trace_id), format_span_id(context.span_id))
