"""Telemetry of every process: structured logs, traces, metrics.

    logs        one JSON object per line, with the ids of the span that is current
    current     the span within which a task runs, which is OpenTelemetry's
    sampling    which calls are kept, and the W3C `traceparent`
    spans       notes of finished spans, and the recorder that takes them
    provider    OpenTelemetry's tracer, for spans that are rare
    spool       a bounded queue and a thread between the recorder and where spans go
    otlp        the OTLP JSON encoding, of all spans
    files       rotated files of OTLP JSON lines
    collector   OTLP/gRPC to a collector, by OpenTelemetry's exporter
    metrics     the Prometheus page
    settings    flags, and one process's telemetry put together

A process that is told nothing has logs alone. Costly work on the way of a command is done only if
the command is sampled. `docs/telemetry.md` lists spans, attributes, metrics and flags.
"""

from viewstamp.telemetry.logs import LOG_LEVELS, JsonFormatter, configure_logging, fields

__all__ = ["LOG_LEVELS", "JsonFormatter", "configure_logging", "fields"]
