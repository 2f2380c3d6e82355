"""What the coordinator's page looks up when it is requested, by the page's thread."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from coordinator import vsr
from coordinator.app.scrub_gauges import gauges_of_scrubber
from coordinator.app.scrubbing import RunningScrubber
from coordinator.base.alarms import Alarms
from coordinator.mux import types as mux_types
from coordinator.mux.mux import Mux
from coordinator.replica.cluster_clock import ClockView
from coordinator.replica.driver import Driver
from coordinator.snapshot.orchestrator import LocalSnapshotOrchestrator
from coordinator.stages.client import StageClient
from coordinator.telemetry.metrics import Gauge
from coordinator.telemetry.past import PastCounts
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.certificates.certificate_watch import CertificateWatch
from viewstamp.format.superblock import place_of

US_PER_SECOND: Final = 1_000_000
MS_PER_SECOND: Final = 1_000
# While another request waits for the same file system.
ROOM_TIMEOUT_S: Final = 0.5


class Links(Protocol):
    """What is counted of the links to the other replicas (`peers.Peers`); any thread may ask."""

    def refused_hellos(self) -> Mapping[str, int]:
        """How many hellos were refused here, by reason."""
        ...

    def silences_ms(self) -> Mapping[int, int]:
        """How long each replica was not heard."""
        ...

    def sent_snapshot_bytes(self) -> Mapping[int, int]:
        """How many bytes of layers each replica was sent."""
        ...


class _NoLinks:
    def refused_hellos(self) -> Mapping[str, int]:
        return {}

    def silences_ms(self) -> Mapping[int, int]:
        return {}

    def sent_snapshot_bytes(self) -> Mapping[int, int]:
        return {}


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the numbers that are read when the page is requested."""

    driver: Driver
    clients: Mapping[mux_types.Stage, StageClient]
    alarms: Alarms
    mux: Mux
    orchestrator: LocalSnapshotOrchestrator
    scrubber: RunningScrubber | None
    links: Links | None
    """What is counted of the links to other replicas, None without any."""
    certificates: CertificateWatch
    watches: Callable[[], int]
    past: PastCounts
    replica_id: int
    clock: Callable[[], ClockView | None]
    peers: Callable[[], Sequence[cluster_pb2.Replica]]
    """What is known of the other replicas."""
    directories: Mapping[str, Path]
    """What this replica writes to: `data`, and each directory of copies by its number."""


def gauges(sources: Sources) -> tuple[Gauge, ...]:
    """Return the gauges that are read when the page is requested."""
    return (
        *_of_the_log(sources),
        *_of_the_replica(sources),
        *_of_services(sources.clients),
        *_of_peers(sources),
        *gauges_of_disks(sources.directories),
        *(() if sources.scrubber is None else gauges_of_scrubber(sources.scrubber.tally)),
        Gauge(
            "viewstamp_certificate_expiry_timestamp_seconds",
            "When a certificate or its authority expires, in seconds since 1970.",
            "flag",
            lambda: [(one.flag, one.ends_s) for one in sources.certificates.expiries],
        ),
        Gauge("viewstamp_alarms", "Alarms that are raised.", "kind", lambda: _alarms(sources)),
    )


def _plain(name: str, text: str, value: Callable[[], float]) -> Gauge:
    """Return a gauge without labels."""
    return Gauge(f"viewstamp_{name}", text, "", lambda: [("", value())])


def _of_the_log(sources: Sources) -> tuple[Gauge, ...]:
    progress = sources.driver.progress
    return (
        _plain("op", "The last op of the log.", lambda: progress.op),
        _plain("committed_op", "The last op that a quorum has.", lambda: progress.committed_op),
        _plain("applied_op", "The last op that has been applied.", lambda: progress.applied_op),
        _plain(
            "revision",
            "The last revision that has been applied.",
            lambda: progress.applied_revision,
        ),
        _plain("view", "The place of the view in its epoch.", lambda: place_of(progress.view)),
        _plain(
            "serving",
            "1 while the replica serves.",
            lambda: progress.status is vsr.ReplicaStatus.NORMAL,
        ),
        _plain(
            "primary",
            "1 while this replica is the primary and serves.",
            lambda: _is_primary(sources),
        ),
    )


def _of_the_replica(sources: Sources) -> tuple[Gauge, ...]:
    return (
        _plain(
            "queue_depth",
            "Requests that wait for a prepare.",
            lambda: len(sources.driver.intake.batcher),
        ),
        _plain("watches", "Watches that are open.", sources.watches),
        _plain("sessions", "Live sessions.", lambda: len(sources.mux.sessions)),
        _plain(
            "snapshot_generation",
            "The generation to restart from.",
            lambda: sources.orchestrator.adopted_generation,
        ),
        _plain(
            "snapshot_generation_newest",
            "The newest generation that was asked for, whatever became of it.",
            sources.orchestrator.current_generation,
        ),
        _plain(
            "snapshot_completed_timestamp_seconds",
            "When the newest completed snapshot was decided, by log time; 0 before the first.",
            lambda: sources.mux.catalog.latest_completed().decided_at / US_PER_SECOND,
        ),
        Gauge(
            "viewstamp_refused_hellos",
            "Connections of replicas that were refused here.",
            "reason",
            lambda: (sources.links or _NoLinks()).refused_hellos().items(),
            is_counter=True,
        ),
    )


def _of_services(clients: Mapping[mux_types.Stage, StageClient]) -> tuple[Gauge, ...]:
    def by_stage(
        name: str, text: str, value: Callable[[StageClient], float], *, is_counter: bool = False
    ) -> Gauge:
        def values() -> Iterable[tuple[str, float]]:
            return [(stage.name.lower(), value(one)) for stage, one in clients.items()]

        return Gauge(f"viewstamp_{name}", text, "stage", values, is_counter)

    return (
        by_stage("item_log_bytes", "Kept to restart a service.", lambda one: one.item_log_bytes),
        by_stage("service_connected", "1 while its stream is open.", lambda one: one.connected),
        by_stage(
            "service_restarts",
            "Streams to a service that were lost.",
            lambda one: one.restarts,
            is_counter=True,
        ),
    )


def _alarms(sources: Sources) -> list[tuple[str, float]]:
    kinds = [cluster_pb2.AlarmKind.Name(alarm.kind) for alarm in sources.alarms.all()]
    return [(kind, kinds.count(kind)) for kind in sorted(set(kinds))]


def _is_primary(sources: Sources) -> bool:
    progress = sources.driver.progress
    is_named = progress.primary == sources.replica_id
    return is_named and progress.status is vsr.ReplicaStatus.NORMAL


def _of_peers(sources: Sources) -> tuple[Gauge, ...]:
    """Return what this replica knows of the others, by their ids."""
    progress, links = sources.driver.progress, sources.links or _NoLinks()

    def lags() -> Iterable[tuple[str, float]]:
        peers = sources.peers()
        committed_op = max((progress.committed_op, *(peer.commit for peer in peers)))
        return [(str(peer.replica_id), committed_op - peer.applied) for peer in peers]

    def silences() -> Iterable[tuple[str, float]]:
        return [(str(who), ms / MS_PER_SECOND) for who, ms in links.silences_ms().items()]

    def sent() -> Iterable[tuple[str, float]]:
        return [(str(who), count) for who, count in sorted(links.sent_snapshot_bytes().items())]

    def offsets() -> Iterable[tuple[str, float]]:
        view = sources.clock()
        ahead_us = {} if view is None else view.ahead_us
        return [(str(who), each / US_PER_SECOND) for who, each in sorted(ahead_us.items())]

    return (
        Gauge("viewstamp_peer_lag_ops", "Ops that a replica is behind.", "replica", lags),
        Gauge(
            "viewstamp_peer_silence_seconds",
            "Time since a replica was heard, or since this one listens if it never was.",
            "replica",
            silences,
        ),
        Gauge(
            "viewstamp_peer_snapshot_bytes",
            "Bytes of snapshot files that a replica was sent from here.",
            "replica",
            sent,
            is_counter=True,
        ),
        Gauge(
            "viewstamp_clock_offset_seconds",
            "How far a replica's clock is ahead of the time by all clocks.",
            "replica",
            offsets,
        ),
    )


def gauges_of_disks(directories: Mapping[str, Path]) -> tuple[Gauge, ...]:
    """Return the room on the file system of each directory."""

    disks = {label: _Disk(path) for label, path in directories.items()}

    def free() -> Iterable[tuple[str, float]]:
        return [(label, disk.room()[0]) for label, disk in disks.items()]

    def size() -> Iterable[tuple[str, float]]:
        return [(label, disk.room()[1]) for label, disk in disks.items()]

    return (
        Gauge(
            "viewstamp_filesystem_free_bytes",
            "Room that is left on the file system of a directory.",
            "directory",
            free,
        ),
        Gauge(
            "viewstamp_filesystem_size_bytes",
            "Size of the file system of a directory.",
            "directory",
            size,
        ),
    )


class _Disk:
    """Asks for the room of a file system, which may hang for ever, as one over a network does.

    One request waits then. Those after it do not: each has a thread, and Prometheus goes on asking.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asking = threading.Lock()

    def room(self) -> tuple[float, float]:
        """Return free bytes and size; NaN, so that the page stays, without an answer."""
        if not self._asking.acquire(timeout=ROOM_TIMEOUT_S):
            return math.nan, math.nan
        try:
            found = os.statvfs(self._path)
        except OSError:
            return math.nan, math.nan
        finally:
            self._asking.release()
        return float(found.f_bavail * found.f_frsize), float(found.f_blocks * found.f_frsize)
