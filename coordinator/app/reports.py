"""The last reports of the other replicas: how far they are, and whether they could lead.

Reports are soft: no promise depends on them, and they may be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator.base.roster import Roster
from coordinator.peers.messages import ReplicaReportMessage
from coordinator.snapshot.log_retention import Follower
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

REPORT_INTERVAL_MS: Final = 500
# A replica whose last report is older may be gone.
FRESH_REPORT_MS: Final = 3 * REPORT_INTERVAL_MS
# No replica gives up its view for one that could not lead the next.
NO_VOTE: Final = "it has lost its disk, and has no vote yet"


class SnapshotReports:
    """The last report of each other replica of the roster, and when it was heard."""

    def __init__(self, roster: Roster, clock_ms: Callable[[], int]) -> None:
        self._roster = roster
        self._clock_ms = clock_ms
        self._last: dict[int, tuple[ReplicaReportMessage, int]] = {}
        roster.follow(self._forget_removed)

    def heard(self, report: ReplicaReportMessage) -> None:
        """Take a report, unless it is of a replica that this one knows nothing of (yet)."""
        if report.from_replica in self._roster.others:
            self._last[report.from_replica] = report, self._clock_ms()

    def _forget_removed(self) -> None:
        others = self._roster.others
        self._last = {replica: each for replica, each in self._last.items() if replica in others}

    def last(self, replica: int) -> ReplicaReportMessage | None:
        """Return the last report of a replica; None if it never sent one."""
        heard = self._last.get(replica)
        return None if heard is None else heard[0]

    def fresh(self, replica: int) -> ReplicaReportMessage | None:
        """Return the last report of a replica; None if that is not recent."""
        return self.last(replica) if replica in self._last and self._is_fresh(replica) else None

    def followers(self) -> list[Follower]:
        """Return how far the other replicas are that may ask for entries; any thread may call
        it."""
        now_ms = self._clock_ms()
        last = self._last  # another thread may put others in its place
        heard = [last[replica] for replica in self._roster.others if replica in last]
        return [
            Follower(report.commit, now_ms - heard_ms)
            for report, heard_ms in heard
            if report.status != cluster_pb2.REPLICA_STATUS_HALTED
        ]

    def supported_levels(self) -> dict[int, int]:
        """Return the highest feature level that each replica supports; 0 if it was not heard."""
        return {replica: self._supported(replica) for replica in self._roster.others}

    def _supported(self, replica: int) -> int:
        report = self.last(replica)
        if report is None or report.status == cluster_pb2.REPLICA_STATUS_HALTED:
            return 0
        return report.feature_level_max if self._is_fresh(replica) else 0

    def has_fit_peer(self) -> bool:
        """Return whether another voter was heard recently and nothing speaks against its
        leading."""
        return any(self._is_fit(replica) for replica in self._roster.voters)

    def _is_fit(self, replica: int) -> bool:
        report = self.last(replica)
        if report is None or report.unfit:
            return False
        is_normal = report.status == cluster_pb2.REPLICA_STATUS_NORMAL
        return is_normal and self._is_fresh(replica)

    def _is_fresh(self, replica: int) -> bool:
        return self._clock_ms() - self._last[replica][1] <= FRESH_REPORT_MS
