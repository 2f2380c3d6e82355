"""The last reports of the other replicas: how far they are, and whether they could lead.

Reports are soft: no promise depends on them, and they may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from coordinator.peers.messages import ReplicaReportMessage
from coordinator.snapshot.log_retention import Follower
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

REPORT_INTERVAL_MS: Final = 500
# A replica whose last report is older may be gone.
FRESH_REPORT_MS: Final = 3 * REPORT_INTERVAL_MS
# No replica gives up its view for one that could not lead the next.
NO_VOTE: Final = "it has lost its disk, and has no vote yet"


class SnapshotReports:
    """The last report of each of `others`. The first `replica_count` replicas have a vote."""

    def __init__(
        self, others: Sequence[int], replica_count: int, clock_ms: Callable[[], int]
    ) -> None:
        self._others = others
        self._replica_count = replica_count
        self._clock_ms = clock_ms
        self._last: dict[int, ReplicaReportMessage] = {}
        self._heard_ms: dict[int, int] = {}

    def heard(self, report: ReplicaReportMessage) -> None:
        """Take a report."""
        self._heard_ms[report.from_replica] = self._clock_ms()
        self._last[report.from_replica] = report

    def last(self, replica: int) -> ReplicaReportMessage | None:
        """Return the last report of a replica; None if it never sent one."""
        return self._last.get(replica)

    def followers(self) -> list[Follower]:
        """Return how far the other replicas are that may ask for entries; any thread may call
        it."""
        now_ms = self._clock_ms()
        reports = [self._last.get(replica) for replica in self._others]
        return [
            Follower(report.commit, now_ms - self._heard_ms[report.from_replica])
            for report in reports
            if report is not None and report.status != cluster_pb2.REPLICA_STATUS_HALTED
        ]

    def supported_levels(self) -> dict[int, int]:
        """Return the highest feature level that each replica supports; 0 if it was not heard."""
        return {replica: self._supported(replica) for replica in self._others}

    def _supported(self, replica: int) -> int:
        report = self._last.get(replica)
        if report is None or report.status == cluster_pb2.REPLICA_STATUS_HALTED:
            return 0
        return report.feature_level_max if self._is_fresh(replica) else 0

    def has_fit_peer(self) -> bool:
        """Return whether another voter was heard recently and nothing speaks against its
        leading."""
        return any(self._is_fit(replica) for replica in range(self._replica_count))

    def _is_fit(self, replica: int) -> bool:
        report = self._last.get(replica)
        if report is None or report.unfit:
            return False
        is_normal = report.status == cluster_pb2.REPLICA_STATUS_NORMAL
        return is_normal and self._is_fresh(replica)

    def _is_fresh(self, replica: int) -> bool:
        return self._clock_ms() - self._heard_ms[replica] <= FRESH_REPORT_MS
