"""Telemetry of every process: structured logs, traces, metrics.

    logs        one JSON object per line, with the ids of the span that is current
    sampling    which traces are kept, and the W3C `traceparent`
    spans       finished spans, and the recorder that takes them
    spool       a bounded queue and a thread between the recorder and where spans go
    otlp        the OTLP JSON encoding
    files       rotated files of OTLP JSON lines
    collector   OTLP/gRPC to a collector
    metrics     the Prometheus page
    settings    flags, and one process's telemetry put together

A process that is told nothing has logs alone. What costs time on the way of a command asks one
question first: is it sampled? `docs/telemetry.md` lists spans, attributes, metrics and flags.
"""

from viewstamp.telemetry.logs import LOG_LEVELS, JsonFormatter, configure_logging, fields

__all__ = ["LOG_LEVELS", "JsonFormatter", "configure_logging", "fields"]
