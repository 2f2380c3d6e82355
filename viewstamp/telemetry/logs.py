"""Structured logs: one JSON object per line on stderr.

    {"time": "2026-01-31T12:00:00.000123Z", "level": "info", "service": "users",
     "logger": "services.runtime.server", "message": "an Apply stream is open",
     "fields": {"coordinator_sequence": 7}}

`exception` holds a traceback if there is one, `trace_id` and `span_id` the current span if it is
sampled. All variable values go into `fields`, so that messages can be counted. A line that a full
disk cut short ends there; once there is room, a line says how many were lost.

Callers cannot flood the log: lines with the same message are written up to a limit at once, and
then a few a second. The next line says how many were left out.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
# How many lines with one message are written at once, and how many a second after that.
LINES_AT_ONCE: Final = 200
LINES_PER_SECOND: Final = 5
# Messages with a count of their own. Messages of libraries may vary; the others share one count.
MESSAGES_COUNTED_MAX: Final = 1_000


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
        if "opentelemetry.trace" in sys.modules:  # else there is no current span
            from viewstamp.telemetry.current import sampled_span

            if (span := sampled_span()) is not None:
                line["trace_id"], line["span_id"] = span
        if values := getattr(record, "fields", None):
            line["fields"] = values
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class RepeatFilter(logging.Filter):
    """Suppresses lines whose message was written too often lately, and counts them.

    All lines of the debug level are written.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing written."""
        super().__init__()
        self._clock_s = clock_s
        self.counts: dict[tuple[str, str], _Repeats] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written; its fields count those left out before it."""
        if record.levelno <= logging.DEBUG:
            return True
        repeats = self._repeats_of((record.name, str(record.msg)))
        left_out = repeats.take(self._clock_s())
        if left_out:
            known = getattr(record, "fields", None) or {}
            record.fields = {**known, "left_out": left_out}
        return left_out is not None

    def _repeats_of(self, key: tuple[str, str]) -> _Repeats:
        if key not in self.counts and len(self.counts) >= MESSAGES_COUNTED_MAX:
            key = ("", "")
        return self.counts.setdefault(key, _Repeats())


class _Repeats:
    """The budget of one message."""

    def __init__(self) -> None:
        self._room = float(LINES_AT_ONCE)
        self._as_of_s = 0.0
        self._left_out = 0

    def take(self, now_s: float) -> int | None:
        """Return how many were left out since the last line; None if this one is left out, too."""
        elapsed_s = now_s - self._as_of_s
        self._room = min(LINES_AT_ONCE, self._room + LINES_PER_SECOND * elapsed_s)
        self._as_of_s = now_s
        if self._room < 1:
            self._left_out += 1
            return None
        self._room -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out


class LineHandler(logging.Handler):
    """Writes each record as one whole line to a file descriptor.

    The buffers of `sys.stderr` would keep lines that a full disk refused, and mix them with later
    lines.
    """

    def __init__(self, descriptor: int) -> None:
        """Write to the descriptor, which stays open."""
        super().__init__()
        self._descriptor = descriptor
        self._lost = 0
        self._is_cut = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; count a lost one, and report the count once there is room."""
        try:
            line = self.format(record).encode(errors="backslashreplace") + b"\n"
        except Exception:  # logging reports values that cannot be formatted in this way
            self.handleError(record)
            return
        if not self._write((b"\n" if self._is_cut else b"") + line):
            self._lost += 1
        elif lost := self._lost:
            self._lost = 0
            self.handle(_lines_lost(lost))

    def _write(self, line: bytes) -> bool:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
                self._is_cut = True
        except OSError:
            return False
        self._is_cut = False
        return True


def _lines_lost(count: int) -> logging.LogRecord:
    values = {
        "name": __name__,
        "levelno": logging.WARNING,
        "levelname": "WARNING",
        "msg": "log lines were lost or cut short: they could not be written",
        **fields(lines=count),
    }
    return logging.makeLogRecord(values)


def configure_logging(service: str, level: str, stream: TextIO | None = None) -> None:
    """Send all logs of the process from `level` (one of LOG_LEVELS) on to stderr, or `stream`.

    Replaces earlier handlers. Raises ValueError for an unknown level.
    """
    if level not in LOG_LEVELS:
        raise ValueError(f"log level {level!r}; known are {', '.join(LOG_LEVELS)}")
    handler: logging.Handler = (
        LineHandler(sys.stderr.fileno()) if stream is None else logging.StreamHandler(stream)
    )
    handler.setFormatter(JsonFormatter(service))
    handler.addFilter(RepeatFilter())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level.upper())
