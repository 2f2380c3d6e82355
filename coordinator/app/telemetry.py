"""The telemetry of one replica, put together, and nothing of it where nobody asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from coordinator import vsr
from coordinator.base.alarms import Alarms
from coordinator.base.errors import ConfigError
from coordinator.gateway.routes import Routes
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.mux import types as mux_types
from coordinator.mux.mux import Mux
from coordinator.replica.batcher import PrepareBatch
from coordinator.replica.driver import Driver
from coordinator.snapshot.orchestrator import LocalSnapshotOrchestrator
from coordinator.stages.client import StageClient
from coordinator.telemetry.metrics import Gauge, ReplicaMetrics
from coordinator.telemetry.snapshots import SnapshotWatch
from coordinator.telemetry.watch import ReplicaWatch, WatchedLink
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.format.prepare import SealedPrepare
from viewstamp.telemetry import fields
from viewstamp.telemetry.sampling import Sampler, new_root
from viewstamp.telemetry.settings import Telemetry
from viewstamp.telemetry.spans import SpanRole, TraceSpan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the numbers come from that are looked up when the page is asked for."""

    driver: Driver
    clients: Mapping[mux_types.Stage, StageClient]
    alarms: Alarms
    mux: Mux
    orchestrator: LocalSnapshotOrchestrator


class ReplicaTelemetry:
    """What the coordinator's parts call. Without `telemetry` every call returns at once.

    `gateway` and the link of a stage are only there if somebody wants to know.
    """

    def __init__(self, telemetry: Telemetry | None, routes: Routes, replica_count: int) -> None:
        """Watch one of `replica_count` replicas on behalf of `telemetry`."""
        self._telemetry = telemetry
        self._routes = routes
        self._recorder = None if telemetry is None else telemetry.recorder
        self._metrics: ReplicaMetrics | None = None
        if telemetry is not None and telemetry.is_metered:
            self._metrics = ReplicaMetrics(self._name_of)
        self.gateway: GatewayWatch | None = None
        self._watch: ReplicaWatch | None = None
        if telemetry is not None and (self._recorder is not None or self._metrics is not None):
            self.gateway = GatewayWatch(routes, self._recorder, telemetry.sampler, self._metrics)
            prepares = Sampler(telemetry.settings.prepare_ratio)
            self._watch = ReplicaWatch(
                self._recorder, self._metrics, prepares, is_alone=replica_count == 1
            )
        # The steps of a prepare, as `ReplicaWatch` has them; without one there is nobody to tell.
        told: ReplicaWatch | _Nobody = _Nobody() if self._watch is None else self._watch
        self.persisting = told.persisting
        self.persisted = told.persisted
        self.committed = told.committed
        self.handed_over = told.handed_over
        self.answered = told.answered
        self.applied = told.applied
        self.snapshots = SnapshotWatch(self._recorder, self._metrics)
        self._left_normal_ns = 0

    def serve(self, sources: Sources) -> None:
        """Serve the page, if that was asked for. Raises ConfigError."""
        if self._telemetry is None or self._metrics is None:
            return
        self._metrics.gauges = gauges(sources)
        try:
            address = self._telemetry.serve_metrics([self._metrics.families])
        except (OSError, ValueError) as error:
            raise ConfigError(str(error)) from error
        _log.info("metrics are served", extra=fields(address=address))

    def link(self, stage: mux_types.Stage, client: StageClient) -> StageClient | WatchedLink:
        """Return the way to a service, past the watch if there is one."""
        return client if self._watch is None else WatchedLink(self._watch, stage, client)

    def cut_taken(self, taken: mux_types.CutTaken) -> None:
        """All stages are frozen."""
        if self._watch is not None:
            self.snapshots.cut_taken(taken, *self._watch.cut_times(taken.op))

    def status_changed(self, changed: vsr.StatusChanged) -> None:
        """The replica has begun to serve, or has ceased to."""
        now_ns = time.time_ns()
        if changed.status is not vsr.ReplicaStatus.NORMAL:
            self._left_normal_ns = self._left_normal_ns or now_ns
            return
        self.snapshots.serving = True
        if self._left_normal_ns and self._recorder is not None:
            attributes = {"viewstamp.view": changed.view}
            self._recorder.record(
                TraceSpan(
                    "view change",
                    SpanRole.INTERNAL,
                    new_root(),
                    "",
                    self._left_normal_ns,
                    now_ns,
                    attributes,
                )
            )
        self._left_normal_ns = 0

    def _name_of(self, code: int) -> str:
        method = self._routes.find(code)
        return str(code) if method is None else method.name


class _Nobody:
    """What is told of prepares where nobody wants to know."""

    def persisting(
        self, prepares: Sequence[SealedPrepare], batch_of: Callable[[int], PrepareBatch | None]
    ) -> None:
        pass

    def persisted(self, prepares: Sequence[SealedPrepare]) -> None:
        pass

    def committed(self, op: int) -> None:
        pass

    def handed_over(self, op: int) -> None:
        pass

    def answered(self, stage: mux_types.Stage, sequence: int) -> None:
        pass

    def applied(self, applied: mux_types.Applied) -> None:
        pass


def gauges(sources: Sources) -> tuple[Gauge, ...]:
    """Return what is looked up when the page is asked for."""
    progress = sources.driver.progress

    def plain(name: str, text: str, value: Callable[[], float]) -> Gauge:
        return Gauge(f"viewstamp_{name}", text, "", lambda: [("", value())])

    def by_stage(name: str, text: str, value: Callable[[StageClient], float]) -> Gauge:
        def values() -> Iterable[tuple[str, float]]:
            return [(stage.name.lower(), value(one)) for stage, one in sources.clients.items()]

        return Gauge(f"viewstamp_{name}", text, "stage", values)

    return (
        plain("op", "The last op of the log.", lambda: progress.op),
        plain("committed_op", "The last op that a quorum has.", lambda: progress.committed_op),
        plain("applied_op", "The last op that has been applied.", lambda: progress.applied_op),
        plain(
            "revision",
            "The last revision that has been applied.",
            lambda: progress.applied_revision,
        ),
        plain("view", "The view.", lambda: progress.view),
        plain(
            "serving",
            "1 while the replica serves.",
            lambda: progress.status is vsr.ReplicaStatus.NORMAL,
        ),
        plain(
            "queue_depth",
            "Requests that wait for a prepare.",
            lambda: len(sources.driver.intake.batcher),
        ),
        plain("sessions", "Live sessions.", lambda: len(sources.mux.sessions)),
        plain(
            "snapshot_generation",
            "The generation to restart from.",
            lambda: sources.orchestrator.adopted_generation,
        ),
        by_stage("item_log_bytes", "Kept to restart a service.", lambda one: one.item_log_bytes),
        by_stage("service_connected", "1 while its stream is open.", lambda one: one.connected),
        by_stage("service_restarts", "Streams lost since the start.", lambda one: one.restarts),
        Gauge("viewstamp_alarms", "Alarms that are raised.", "kind", lambda: _alarms(sources)),
    )


def _alarms(sources: Sources) -> list[tuple[str, float]]:
    kinds = [cluster_pb2.AlarmKind.Name(alarm.kind) for alarm in sources.alarms.all()]
    return [(kind, kinds.count(kind)) for kind in sorted(set(kinds))]
