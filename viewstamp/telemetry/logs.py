"""Structured logs: one JSON object per line on stderr.

    {"time": "2026-01-31T12:00:00.000123Z", "level": "info", "service": "users",
     "logger": "services.runtime.server", "message": "an Apply stream is open",
     "fields": {"coordinator_sequence": 7}}

`exception` holds a traceback where there is one, `trace_id` and `span_id` the span that is current
where that is sampled. Whatever varies goes into `fields`, so that messages can be counted.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from viewstamp.telemetry.sampling import CURRENT_SPAN

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def fields(**values: object) -> dict[str, Any]:
    """Return what to pass as `extra` to a logging call, so that the values stand in `fields`."""
    return {"fields": values}


class JsonFormatter(logging.Formatter):
    """Formats records as JSON lines; values that JSON does not know are written as text."""

    def __init__(self, service: str) -> None:
        """Format for the service named, for example `users`."""
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line["time"] = line["time"].removesuffix("+00:00") + "Z"
        if (span := CURRENT_SPAN.get()) is not None:
            line["trace_id"], line["span_id"] = span
        if values := getattr(record, "fields", None):
            line["fields"] = values
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logging(service: str, level: str, stream: TextIO | None = None) -> None:
    """Send all logs of the process from `level` (one of LOG_LEVELS) on to stderr, or `stream`.

    Replaces earlier handlers. Raises ValueError for an unknown level.
    """
    if level not in LOG_LEVELS:
        raise ValueError(f"log level {level!r}; known are {', '.join(LOG_LEVELS)}")
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(service))
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level.upper())
