"""The span within which a task runs: OpenTelemetry's own, so that other libraries follow it."""

from __future__ import annotations

from typing import Final

from opentelemetry.context import Context, attach
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)

from viewstamp.telemetry.sampling import TraceContext

_HEX: Final = 16


def make_current(span: TraceContext | None) -> None:
    """Let the rest of this task run within a sampled span, or within none.

    Log lines carry it, and spans that the task begins are its children.
    """
    attach(Context() if span is None else set_span_in_context(_known(span), Context()))


def sampled_span() -> TraceContext | None:
    """Return the span within which this task runs, None if there is none or it is not sampled."""
    found = get_current_span().get_span_context()
    if not (found.is_valid and found.trace_flags.sampled):
        return None
    return TraceContext(format_trace_id(found.trace_id), format_span_id(found.span_id))


def _known(span: TraceContext) -> NonRecordingSpan:
    ids = int(span.trace_id, _HEX), int(span.span_id, _HEX)
    flags = TraceFlags(TraceFlags.SAMPLED)
    return NonRecordingSpan(SpanContext(*ids, is_remote=True, trace_flags=flags))
