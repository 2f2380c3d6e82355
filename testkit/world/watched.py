"""Telemetry and the audit log in a world: all that is told is encoded at once, and thrown away.

The product's own have threads, files and ports. What these two take is what those take, so a note
or a record that cannot be made fails a run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from viewstamp.audit.log import AuditLog
from viewstamp.telemetry.metrics import Families
from viewstamp.telemetry.provider import Provider
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings
from viewstamp.telemetry.spans import Notes, Recorder

_TRACE_RATIO: Final = 0.3
# How often the page of metrics is read.
_PAGE_S: Final = 1.0


class Encoding:
    """Encodes spans where the product queues them; `failed` is told of those that cannot be."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        self._failed = failed

    def put(self, notes: Notes) -> None:
        """Encode notes. Whoever made them looks on, and may not be told."""
        try:
            texts = json.loads(f"[{','.join(notes.encoded())}]")
        except Exception as error:
            self._failed(f"a span cannot be encoded: {error!r}")
            return
        if len(texts) != notes.span_count:
            self._failed(f"{len(texts)} spans are counted as {notes.span_count}")


class WorldProvider(Provider):
    """A provider that looks for nothing on the machine: it would wait for a thread."""

    def __init__(self) -> None:
        """Begin with an empty resource."""
        self.resource = Resource({})
        self.tracers = TracerProvider(resource=self.resource, shutdown_on_exit=False)


class WorldTelemetry(Telemetry):
    """The telemetry of one process: traces, and a page that is read now and then."""

    def __init__(self, service: str, failed: Callable[[str], None]) -> None:
        """Trace and count."""
        super().__init__(
            service, TelemetrySettings(metrics_listen="world", trace_ratio=_TRACE_RATIO)
        )
        self.recorder = Recorder([Encoding(failed)])
        self.tracer = WorldProvider().tracer_to(self.recorder)
        self._families: Sequence[Families] = ()

    def serve_metrics(self, families: Sequence[Families] = ()) -> str:
        """Read the page every second of the process, for as long as it lives."""
        self._families = families
        self._read()
        return "world"

    def _read(self) -> None:
        for each in self._families:
            for metric in each():
                assert metric.name, "a metric has a name"
        asyncio.get_running_loop().call_later(_PAGE_S, self._read)


class WorldAudit(AuditLog):
    """An audit log without thread and files. A record that cannot be made is a defect."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        """Lose nothing yet; the product's would start its thread."""
        self.lost = 0
        self._failed = failed

    def add(
        self, made: Callable[[], dict[str, Any]], size: int, *, is_strangers: bool = False
    ) -> None:
        """Make a record."""
        try:
            json.dumps(made())
        except Exception as error:
            self._failed(f"a record of the audit log cannot be made: {error!r}")

    def lose(self) -> None:
        """Note a record that could not even be begun."""
        self.lost += 1
        self._failed("a record of the audit log is lost")

    def close(self) -> None:
        """Do nothing: nothing waits."""
