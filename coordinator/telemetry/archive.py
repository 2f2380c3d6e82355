"""Shipping to an archive on the Prometheus page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

MS_PER_S: Final = 1_000


class ShippingLagCounts(Protocol):
    """How far the archive lags."""

    @property
    def ops(self) -> int:
        """Entries that are committed and not in the archive."""


class ArchiveCounts(Protocol):
    """What is counted of shipping (`app.archive_shipping`), since the coordinator's start."""

    @property
    def lag(self) -> ShippingLagCounts:
        """The lag."""

    @property
    def lag_ms(self) -> int:
        """For how long the oldest entry that the archive lacks has been committed."""

    @property
    def archived_op(self) -> int:
        """The last op of the archive."""

    @property
    def is_archive_known(self) -> bool:
        """Whether a process has read where the archive is."""

    @property
    def shipped_bytes(self) -> int:
        """Bytes that were stored."""

    @property
    def failures(self) -> int:
        """Rounds that failed, and processes that ended."""

    @property
    def gaps(self) -> int:
        """Ranges of entries that the archive lacks for ever."""


def archive_families(counts: ArchiveCounts) -> Iterable[Metric]:
    """Yield what is counted of shipping, for the page; of the archive once it was read."""
    yield GaugeMetricFamily(
        "viewstamp_archive_lag_seconds",
        "For how long the oldest entry that the archive lacks has been committed.",
        counts.lag_ms / MS_PER_S,
    )
    for name, text, value in (
        ("viewstamp_archive_lag_ops", "Entries that the archive lacks.", counts.lag.ops),
        ("viewstamp_archive_op", "The last op of the archive.", counts.archived_op),
        ("viewstamp_archive_gaps", "Ranges that the archive lacks for ever.", counts.gaps),
    ):
        family = GaugeMetricFamily(name, text)
        if counts.is_archive_known:
            family.add_metric([], value)
        yield family
    yield CounterMetricFamily(
        "viewstamp_archive_shipped_bytes", "Bytes that were stored.", counts.shipped_bytes
    )
    yield CounterMetricFamily(
        "viewstamp_archive_failures",
        "Rounds of shipping that failed, and ends of the process.",
        counts.failures,
    )
