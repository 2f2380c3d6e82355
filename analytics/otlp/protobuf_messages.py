"""Protobuf messages of OTLP as the values that their JSON has. Pure: bytes in, values out.

Requests (`ExportTraceServiceRequest`) and data (`TracesData`) have the same bytes. Traces, metrics
and logs have the same outer shape, so that spans are told by their ids.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.json_format import Error as FormatError
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from analytics.otlp.canonical import RESOURCES, SPAN_ID_BYTES, TRACE_ID_BYTES

# The one-of of a metric.
METRIC_DATA: Final = "data"


class MessageError(Exception):
    """The bytes are no message of OTLP."""


def document(data: bytes) -> dict[str, Any]:
    """Return a message as `canonical` reads it. Raises MessageError if it is none of OTLP."""
    traces = TracesData()
    try:
        traces.ParseFromString(data)
        if _has_spans(traces) or _is_bare(traces):
            told: dict[str, Any] = MessageToDict(traces, use_integers_for_enums=True)
            return {RESOURCES: [], **told}
    except (DecodeError, FormatError, RecursionError, ValueError):
        pass
    return _other_signal(data)


def _has_spans(traces: TracesData) -> bool:
    """Return whether a span has ids of the right lengths."""
    return any(
        len(span.trace_id) == TRACE_ID_BYTES and len(span.span_id) == SPAN_ID_BYTES
        for resource in traces.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )


def _is_bare(traces: TracesData) -> bool:
    """Return whether there are resources, and no span at all in them."""
    scopes = [scope for resource in traces.resource_spans for scope in resource.scope_spans]
    return bool(traces.resource_spans) and not any(scope.spans for scope in scopes)


def _other_signal(data: bytes) -> dict[str, Any]:
    """Return what stands for metrics or logs. Raises MessageError."""
    metrics, logs = MetricsData(), LogsData()
    if _parsed(metrics, data) and any(
        metric.WhichOneof(METRIC_DATA)
        for resource in metrics.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ):
        return {"resourceMetrics": []}
    if _parsed(logs, data) and any(
        record.time_unix_nano or record.observed_time_unix_nano or record.HasField("body")
        for resource in logs.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ):
        return {"resourceLogs": []}
    raise MessageError("the message is neither spans nor metrics nor logs of OTLP")


def _parsed(message: Message, data: bytes) -> bool:
    """Parse the bytes into a message; return whether they are one."""
    try:
        message.ParseFromString(data)
    except DecodeError:
        return False
    return True
