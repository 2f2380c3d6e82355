"""Flags of telemetry, and the telemetry of one process that they describe."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.trace import NoOpTracer, Tracer
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from viewstamp.telemetry.files import TraceFiles
from viewstamp.telemetry.metrics import Families, MetricsPage
from viewstamp.telemetry.sampling import Sampler
from viewstamp.telemetry.spans import AttributeValue, Recorder
from viewstamp.telemetry.spool import Sink, Spool

if TYPE_CHECKING:
    from viewstamp.telemetry.provider import Provider

# One command of a hundred; docs/adr/0013 has what it costs.
TRACE_RATIO: Final = 0.01
TELEMETRY_DIRECTORY: Final = "telemetry"  # the default, below a data directory
SERVICE_PREFIX: Final = "viewstamp-"


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """The settings of one process. Without directory and endpoint nothing is traced."""

    directory: Path | None = None
    trace_ratio: float = TRACE_RATIO
    prepare_ratio: float = 1.0
    otlp_endpoint: str | None = None
    metrics_listen: str | None = None
    compresses: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of telemetry to a process's parser."""
    add = parser.add_argument_group("telemetry", "All of it is off by default.").add_argument
    add(
        "--telemetry-directory",
        type=Path,
        help="write traces to <directory>/<service>/traces.jsonl, as OTLP JSON lines",
    )
    add(
        "--trace-ratio",
        type=float,
        default=TRACE_RATIO,
        help="the share of the traces that begin here to keep: 0 to 1",
    )
    add(
        "--prepare-trace-ratio",
        type=float,
        default=1.0,
        help="the share of prepares without a sampled command that get a span: 0 to 1",
    )
    add(
        "--telemetry-compress",
        action="store_true",
        help="compress trace files when they are rotated: traces-<time>.jsonl.zst",
    )
    add("--otlp-endpoint", help="send traces to a collector: http://HOST:PORT or https://HOST:PORT")
    add("--metrics-listen", metavar="HOST:PORT", help="serve a Prometheus page")


def settings_of(options: argparse.Namespace) -> TelemetrySettings:
    """Return the settings of the flags. Raises ValueError for ratios beyond 0 to 1."""
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
        # Where it is the default, a file or a variable may still say otherwise.
        "prepare-trace-ratio": None if settings.prepare_ratio == 1.0 else settings.prepare_ratio,
        "otlp-endpoint": settings.otlp_endpoint,
        "metrics-listen": settings.metrics_listen,
    }
    switches = ["--telemetry-compress"] if settings.compresses else []
    return [f"--{name}={value}" for name, value in flags.items() if value is not None] + switches


class Telemetry:
    """The telemetry of one process. `service` is the name after `viewstamp-`.

    `recorder` is None if nothing is traced. `tracer` is for rare spans; it makes none then.
    """

    def __init__(self, service: str, settings: TelemetrySettings) -> None:
        """Open what the settings ask for. Raises OSError or ValueError, meant for the operator."""
        self.settings = settings
        self._service = service
        self._version = ""
        self.sampler = Sampler(settings.trace_ratio)
        self.recorder: Recorder | None = None
        self.tracer: Tracer = NoOpTracer()
        self._provider: Provider | None = None
        self._page: MetricsPage | None = None
        self._spools: list[Spool] = []
        self.further: list[Families] = []
        """What else the page shows, from parts that are beside the program's own."""
        if settings.directory is not None or settings.otlp_endpoint is not None:
            self._trace(SERVICE_PREFIX + service)

    def belongs_to(self, cluster_id: bytes, replica_id: int | None = None) -> None:
        """Name the cluster and the replica. A service learns them from its first coordinator."""
        told: dict[str, AttributeValue] = {"viewstamp.cluster_id": cluster_id.hex()}
        if replica_id is not None:
            told["viewstamp.replica_id"] = replica_id
        if self._provider is not None:
            self._provider.belongs_to(told)

    def serve_metrics(self, families: Sequence[Families] = ()) -> str | None:
        """Serve the page if it is wanted; return its address. Raises OSError, ValueError."""
        listen = self.settings.metrics_listen
        if listen is None:
            return None
        # Now, because another build may be installed while this process runs.
        self._version = metadata.version("viewstamp")
        self._page = MetricsPage(listen, [self._own_families, *families, *self.further])
        return self._page.address

    def speak_for_process(self) -> None:
        """Make this tracer provider the global one, for rare spans (`work`); once in a process."""
        if self._provider is not None:
            trace.set_tracer_provider(self._provider.tracers)

    @property
    def is_metered(self) -> bool:
        """Whether anybody will read the counts."""
        return self.settings.metrics_listen is not None

    def close(self) -> None:
        """Write the waiting spans, and stop serving."""
        for spool in self._spools:
            spool.stop()
        for spool in self._spools:
            spool.close()
        if self._page is not None:
            self._page.close()

    def _trace(self, name: str) -> None:
        # Imported late: to load the SDK takes as long as the rest of a service, its exporter
        # longer.
        from viewstamp.telemetry.provider import Provider

        self._provider = Provider(name)
        # No thread begins before all is open, so that a failed start leaves no thread behind.
        self._spools = [Spool(each, sink) for each, sink in self._sinks(name, self._provider)]
        self.recorder = Recorder(self._spools)
        self.tracer = self._provider.tracer_to(self.recorder)

    def _sinks(self, name: str, provider: Provider) -> list[tuple[str, Sink]]:
        """Open all destinations of spans, or none. Raises OSError or ValueError."""
        settings = self.settings
        sinks: list[tuple[str, Sink]] = []
        with ExitStack() as opened:
            if settings.otlp_endpoint is not None:
                from viewstamp.telemetry.collector import Collector

                collector = Collector(settings.otlp_endpoint, lambda: provider.resource)
                opened.callback(collector.close)
                sinks.append(("collector", collector))
            if settings.directory is not None:
                files = TraceFiles(
                    settings.directory / name,
                    lambda: provider.resource.attributes,
                    compresses=settings.compresses,
                )
                sinks.append(("files", files))
            opened.pop_all()
        return sinks

    def _own_families(self) -> Iterable[Metric]:
        build = GaugeMetricFamily(
            "viewstamp_build_info", "1; the labels say what runs.", labels=["service", "version"]
        )
        build.add_metric([self._service, self._version], 1)
        yield build
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
