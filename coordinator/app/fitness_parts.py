"""What the fitness of one replica depends on, and who hears of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordinator.app.cluster_time import ClusterTime
from coordinator.app.reports import SnapshotReports
from coordinator.app.services import ServiceLinks
from coordinator.base.alarms import Alarms
from coordinator.base.clock import monotonic_ms
from coordinator.base.roster import Roster
from coordinator.replica.driver import Driver
from coordinator.replica.fitness import Fitness, FitnessPorts, Seen
from coordinator.replica.ring_room import RoomWatch
from coordinator.replica.writer import JournalWriter
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2


@dataclass(frozen=True, slots=True)
class FitnessParts:
    """The parts that are looked at, and those that hear of a reason.

    `reports` are those of the other replicas, None without any. `stalled` hears of stages or a disk
    without progress.
    """

    driver: Driver
    services: ServiceLinks
    space: RoomWatch
    writer: JournalWriter[Any]
    reports: SnapshotReports | None
    time: ClusterTime
    roster: Roster
    alarms: Alarms
    stalled: Callable[[str], None]


def make_fitness(parts: FitnessParts) -> Fitness:
    """Return what looks whether the replica is fit to lead."""

    def said(reason: str) -> None:
        kind = cluster_pb2.ALARM_KIND_UNFIT
        if reason:
            parts.alarms.tell(kind, f"{reason}: another replica takes over if it is fit")
        else:
            parts.alarms.clear(kind)

    return Fitness(
        FitnessPorts(lambda: _seen(parts), parts.driver.step, said, parts.stalled, monotonic_ms)
    )


def _seen(parts: FitnessParts) -> Seen:
    """Return what a look finds."""
    return Seen(
        committed_op=parts.driver.progress.committed_op,
        applied_op=parts.driver.progress.applied_op,
        services=parts.services.states(),
        is_full=parts.space.full,
        is_writing=parts.writer.is_writing,
        writes_done=parts.writer.writes_done,
        has_fit_peer=parts.reports is not None and parts.reports.has_fit_peer(),
        clock=parts.time.look(parts.driver.core.log_time_us),
        is_alone=parts.roster.is_alone,
    )
