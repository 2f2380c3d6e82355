"""The Prometheus page, on a port of its own.

A hot path counts in plain numbers. The server's thread makes families of them when the page is
requested. Reading a number there needs no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

# 50 us to 10 s, three steps per decade: from one apply to a stage that is nearly given up.
LATENCY_BOUNDS_NS: Final = (
    *(step * 10**power for power in range(5, 10) for step in (1, 2, 5)),
    10**10,
)
NANOSECONDS_PER_SECOND: Final = 1_000_000_000

Families: TypeAlias = Callable[[], Iterable[Metric]]


class LatencyHistogram:
    """Counts durations by bucket. One thread observes, another may read."""

    __slots__ = ("_counts", "_sum_ns")

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self._counts = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        self._sum_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Count a duration."""
        self._counts[bisect_left(LATENCY_BOUNDS_NS, duration_ns)] += 1
        self._sum_ns += duration_ns

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Add the buckets to a family of seconds."""
        bounds = [*(str(bound / NANOSECONDS_PER_SECOND) for bound in LATENCY_BOUNDS_NS), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(labels, buckets, self._sum_ns / NANOSECONDS_PER_SECOND)


class MetricsPage:
    """Serves what `families` yield at `http://HOST:PORT/metrics`."""

    def __init__(self, listen: str, families: Sequence[Families]) -> None:
        """Bind and serve. Raises OSError if binding fails, ValueError for an invalid address."""
        host, separator, port = listen.rpartition(":")
        if not (separator and host and port.isdecimal()):
            raise ValueError(f"--metrics-listen is {listen!r}: give HOST:PORT; port 0 takes any")
        registry = CollectorRegistry()
        for each in families:
            registry.register(_Page(each))
        try:
            self._server, self._thread = start_http_server(int(port), host.strip("[]"), registry)
        except (OSError, OverflowError) as error:
            raise OSError(f"--metrics-listen {listen}: cannot be bound ({error})") from error
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Page(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def describe(self) -> Iterable[Metric]:
        return ()  # the families are known only when the page is requested
