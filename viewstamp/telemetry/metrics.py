"""The Prometheus page, on a port of its own.

A hot path counts in plain numbers. The server's thread makes families of them when the page is
requested. Reading a number there needs no lock.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Timestamp

# 50 us to 10 s, three steps per decade: from one apply to a stage that is nearly given up.
LATENCY_BOUNDS_NS: Final = (
    *(step * 10**power for power in range(5, 10) for step in (1, 2, 5)),
    10**10,
)
NANOSECONDS_PER_SECOND: Final = 1_000_000_000

# What tools expect that lead from an exemplar to its trace.
TRACE_ID_LABEL: Final = "trace_id"
# A trace, its duration, and when it was noted; times in nanoseconds.
_NotedTrace: TypeAlias = tuple[str, int, int]

Families: TypeAlias = Callable[[], Iterable[Metric]]


class LatencyHistogram:
    """Counts durations by bucket. One thread observes, another may read.

    Of each bucket it keeps the last duration of a sampled trace, as an exemplar. A page in the
    format of OpenMetrics has these; the classic format has no place for them.
    """

    __slots__ = ("_counts", "_exemplars", "_sum_ns")

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self._counts = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        self._exemplars: list[_NotedTrace | None] = [None] * len(self._counts)
        self._sum_ns = 0

    def observe(self, duration_ns: int, trace_id: str = "", count: int = 1) -> None:
        """Count a duration; `trace_id`, 32 hexadecimal digits, if it is of a sampled trace.

        `count` is how often it was seen: calls that travel together take equally long.
        """
        bucket = bisect_left(LATENCY_BOUNDS_NS, duration_ns)
        self._counts[bucket] += count
        self._sum_ns += count * duration_ns
        if trace_id:
            self._exemplars[bucket] = trace_id, duration_ns, time.time_ns()

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """Add the buckets to a family of seconds."""
        bounds = [*(str(bound / NANOSECONDS_PER_SECOND) for bound in LATENCY_BOUNDS_NS), "+Inf"]
        counted = zip(bounds, accumulate(self._counts), self._exemplars, strict=True)
        buckets = [
            (bound, float(count)) if noted is None else (bound, float(count), _exemplar(noted))
            for bound, count, noted in counted
        ]
        family.add_metric(labels, buckets, self._sum_ns / NANOSECONDS_PER_SECOND)


def _exemplar(noted: _NotedTrace) -> Exemplar:
    trace_id, duration_ns, noted_ns = noted
    seconds = duration_ns / NANOSECONDS_PER_SECOND
    at = Timestamp(*divmod(noted_ns, NANOSECONDS_PER_SECOND))
    return Exemplar({TRACE_ID_LABEL: trace_id}, seconds, at)


class MetricsPage:
    """Serves what `families` yield at `http://HOST:PORT/metrics`."""

    def __init__(self, listen: str, families: Sequence[Families]) -> None:
        """Bind and serve. Raises OSError if binding fails, ValueError for an invalid address."""
        host, separator, port = listen.rpartition(":")
        if not (separator and host and port.isdecimal()):
            raise ValueError(f"--metrics-listen is {listen!r}: give HOST:PORT; port 0 takes any")
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
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
