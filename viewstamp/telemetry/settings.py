"""Flags, and the telemetry of one process put together from them."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from viewstamp.telemetry.files import TraceFiles
from viewstamp.telemetry.metrics import Families, MetricsPage
from viewstamp.telemetry.sampling import Sampler
from viewstamp.telemetry.spans import AttributeValue, Recorder
from viewstamp.telemetry.spool import Spool

# One command of a hundred; docs/adr/0013 has what it costs.
TRACE_RATIO: Final = 0.01
TELEMETRY_DIRECTORY: Final = "telemetry"  # below a data directory, by default
SERVICE_PREFIX: Final = "viewstamp-"


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What one process was told. Without directory and endpoint nothing is traced."""

    directory: Path | None = None
    trace_ratio: float = TRACE_RATIO
    prepare_ratio: float = 1.0
    otlp_endpoint: str | None = None
    metrics_listen: str | None = None
    compresses: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of telemetry to a process's parser."""
    add = parser.add_argument_group("telemetry", "Off unless told otherwise.").add_argument
    add(
        "--telemetry-directory",
        type=Path,
        help="write traces to <directory>/<service>/traces.jsonl, as OTLP JSON lines",
    )
    add(
        "--trace-ratio",
        type=float,
        default=TRACE_RATIO,
        help="of traces that begin here, so many are kept: 0 to 1",
    )
    add(
        "--prepare-trace-ratio",
        type=float,
        default=1.0,
        help="of prepares without a sampled command, so many have a span: 0 to 1",
    )
    add(
        "--telemetry-compress",
        action="store_true",
        help="compress trace files when they are rotated: traces-<time>.jsonl.zst",
    )
    add("--otlp-endpoint", help="send traces to a collector: http://HOST:PORT or https://HOST:PORT")
    add("--metrics-listen", metavar="HOST:PORT", help="serve a Prometheus page")


def settings_of(options: argparse.Namespace) -> TelemetrySettings:
    """Return what was told. Raises ValueError for ratios beyond 0 to 1."""
    for flag in ("trace_ratio", "prepare_trace_ratio"):
        value = getattr(options, flag)
        if not 0.0 <= value <= 1.0:
            name = "--" + flag.replace("_", "-")
            raise ValueError(f"{name} is {value}: give a number from 0 to 1")
    return TelemetrySettings(
        directory=options.telemetry_directory,
        trace_ratio=options.trace_ratio,
        prepare_ratio=options.prepare_trace_ratio,
        otlp_endpoint=options.otlp_endpoint,
        metrics_listen=options.metrics_listen,
        compresses=options.telemetry_compress,
    )


def arguments_of(settings: TelemetrySettings) -> list[str]:
    """Return the settings as flags, for a process that is to be started with them."""
    flags = {
        "telemetry-directory": settings.directory and settings.directory.resolve(),
        "trace-ratio": settings.trace_ratio,
        "prepare-trace-ratio": settings.prepare_ratio,
        "otlp-endpoint": settings.otlp_endpoint,
        "metrics-listen": settings.metrics_listen,
    }
    switches = ["--telemetry-compress"] if settings.compresses else []
    return [f"--{name}={value}" for name, value in flags.items() if value is not None] + switches


class Telemetry:
    """The telemetry of one process. `service` is the name after `viewstamp-`.

    `recorder` is None where nothing is traced, so that nobody needs to ask twice.
    """

    def __init__(self, service: str, settings: TelemetrySettings) -> None:
        """Open what was asked for. Raises OSError or ValueError with a message for the operator."""
        self.settings = settings
        self.sampler = Sampler(settings.trace_ratio)
        self.resource: dict[str, AttributeValue] = {
            "service.name": SERVICE_PREFIX + service,
            "service.instance.id": str(uuid.uuid4()),
        }
        self._page: MetricsPage | None = None
        self._spools = self._opened(SERVICE_PREFIX + service)
        self.recorder = Recorder(self._spools) if self._spools else None

    def belongs_to(self, cluster_id: bytes, replica_id: int | None = None) -> None:
        """Say whose telemetry it is; it is known once the first coordinator has called."""
        resource: dict[str, AttributeValue] = {
            **self.resource,
            "viewstamp.cluster_id": cluster_id.hex(),
        }
        if replica_id is not None:
            resource["viewstamp.replica_id"] = replica_id
        self.resource = resource  # at once: the writing thread may be reading it

    def serve_metrics(self, families: Sequence[Families] = ()) -> str | None:
        """Serve the page, if that was asked for; return its address. Raises OSError, ValueError."""
        listen = self.settings.metrics_listen
        if listen is None:
            return None
        self._page = MetricsPage(listen, [self._own_families, *families])
        return self._page.address

    @property
    def is_metered(self) -> bool:
        """Whether anybody will ask for what is counted."""
        return self.settings.metrics_listen is not None

    def close(self) -> None:
        """Write what waits, and serve no more."""
        for spool in self._spools:
            spool.close()
        if self._page is not None:
            self._page.close()

    def _opened(self, name: str) -> list[Spool]:
        spools = []
        settings = self.settings
        if settings.directory is not None:
            files = TraceFiles(
                settings.directory / name, lambda: self.resource, compresses=settings.compresses
            )
            spools.append(Spool("files", files))
        if settings.otlp_endpoint is not None:
            # Late: loading the exporter takes longer than all the rest of a service.
            from viewstamp.telemetry.collector import Collector

            collector = Collector(settings.otlp_endpoint, lambda: self.resource)
            spools.append(Spool("collector", collector))
        return spools

    def _own_families(self) -> Iterable[Metric]:
        written = CounterMetricFamily(
            "viewstamp_spans_written", "Spans that were written or exported.", labels=["to"]
        )
        dropped = CounterMetricFamily(
            "viewstamp_spans_dropped", "Spans given up: queue full, or not taken.", labels=["to"]
        )
        for spool in self._spools:
            written.add_metric([spool.name], spool.written)
            dropped.add_metric([spool.name], spool.dropped)
        yield written
        yield dropped
