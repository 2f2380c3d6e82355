"""One coordinator whose members change: its parts go by one roster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coordinator.app.composition import Coordinator
from coordinator.app.config import parse
from coordinator.mux.catalog_types import Snapshot, SnapshotState
from coordinator.peers.messages import ReplicaReportMessage, SnapshotDurableMessage
from coordinator.replica.data_directory import DirectoryOptions, open_replica
from tests.coordinator.app.in_process import CLUSTER_ID, KEY
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.limits import MIB
from viewstamp.routing import SERVICE_NAMES

DIVERGED = cluster_pb2.ALARM_KIND_REPLICA_DIVERGED


class ChangingCoordinator(Coordinator):
    """A coordinator of three replicas that reaches nothing; the test is the log and the others."""

    def decides(self, generation: int, root: bytes) -> None:
        """Have the log complete a generation."""
        snapshot = Snapshot(generation, SnapshotState.COMPLETED, 5, 5, root)
        self._snapshots.orchestrator.catalog_changed([snapshot], [])

    def hears(self, replica: int, root: bytes = b"", generation: int = 0) -> None:
        """Hear a report of a replica; with a root also that a generation is durable there."""
        assert self.members is not None
        handlers = self.members.peers.handlers
        normal = cluster_pb2.REPLICA_STATUS_NORMAL
        report = ReplicaReportMessage(CLUSTER_ID, replica, normal, 1, 1, 1, 1, generation, "")
        handlers[ReplicaReportMessage](report)
        if root:
            durable = SnapshotDurableMessage(CLUSTER_ID, replica, generation + 1, root, ())
            handlers[SnapshotDurableMessage](durable)

    @property
    def alarms_of_diverged(self) -> list[str]:
        """The replicas whose alarms are raised."""
        told = [alarm.message for alarm in self.alarms.all() if alarm.kind == DIVERGED]
        return sorted(number for text in told for number in re.findall(r"replica (\d+) has", text))


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[ChangingCoordinator]:
    """Run replica 0 of three in a directory."""
    flags = [f"--data-directory={directory}/data", "--listen=127.0.0.1:0", "--replica-count=3"]
    flags += [f"--service={name}=unix:{directory}/{name}" for name in SERVICE_NAMES]
    flags += ["--peer-listen=127.0.0.1:0", "--peer=1=127.0.0.1:1", "--peer=2=127.0.0.1:2"]
    options = DirectoryOptions(
        directory / "data", 0, 3, segment_bytes=4 * MIB, cluster_id=CLUSTER_ID
    )
    coordinator = ChangingCoordinator(parse(flags), open_replica(options), KEY)
    stop = asyncio.Event()
    task = asyncio.create_task(coordinator.run(stop))
    try:
        yield coordinator
    finally:
        stop.set()
        await task


async def test_the_alarm_of_a_diverged_replica_ends_with_its_membership(tmp_path: Path) -> None:
    """Replicas with another root than the decided one are told while they are members."""
    async with running(tmp_path) as coordinator:
        coordinator.decides(1, b"r" * 32)
        for replica in (1, 2, 3):
            coordinator.hears(replica, b"x" * 32)
        assert coordinator.alarms_of_diverged == ["1", "2"]
        coordinator.roster.enter((0, 2, 3), ())
        assert coordinator.alarms_of_diverged == ["2"]
        coordinator.hears(1, b"x" * 32)
        coordinator.hears(3, b"x" * 32)
        assert coordinator.alarms_of_diverged == ["2", "3"]
        coordinator.hears(3, generation=1)
        assert coordinator.alarms_of_diverged == ["2"]
        coordinator.roster.enter((0,), (3,))
        assert coordinator.alarms_of_diverged == []


async def test_reports_of_one_coordinator_follow_its_roster(tmp_path: Path) -> None:
    """A newcomer is heard from the moment in which the roster has it, a removed one no more."""
    async with running(tmp_path) as coordinator:
        assert coordinator.members is not None
        reports = coordinator.members.reports
        for replica in (2, 3):
            coordinator.hears(replica)
        assert [reports.last(each) is not None for each in (1, 2, 3)] == [False, True, False]
        assert reports.has_fit_peer()
        coordinator.roster.enter((0, 1), (3,))
        for replica in (2, 3):
            coordinator.hears(replica)
        assert [reports.last(each) is not None for each in (1, 2, 3)] == [False, False, True]
        assert not reports.has_fit_peer()
