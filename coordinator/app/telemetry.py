"""Puts the telemetry of one replica together. None of it runs unless it is configured."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer

from coordinator import vsr
from coordinator.app.gauges import Sources, gauges
from coordinator.base.errors import ConfigError
from coordinator.base.roster import Roster
from coordinator.gateway.routes import Routes
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.mux import types as mux_types
from coordinator.replica.batcher import PrepareBatch
from coordinator.stages.client import StageClient
from coordinator.telemetry.metrics import ReplicaMetrics, gauge_families
from coordinator.telemetry.past import past_families
from coordinator.telemetry.snapshots import SnapshotWatch
from coordinator.telemetry.start import StartWatch
from coordinator.telemetry.watch import ReplicaWatch, WatchedLink
from viewstamp.format.prepare import SealedPrepare
from viewstamp.telemetry import fields
from viewstamp.telemetry.sampling import Sampler
from viewstamp.telemetry.settings import Telemetry

_log = logging.getLogger(__name__)


class ReplicaTelemetry:
    """Takes the calls of the coordinator's parts. Without `telemetry` each returns at once.

    `gateway` and the watched link of a stage exist only if telemetry is on.
    """

    def __init__(
        self,
        telemetry: Telemetry | None,
        routes: Routes,
        roster: Roster,
        begun_ns: int | None = None,
    ) -> None:
        """Watch a replica of the roster, begun at `begun_ns`, on behalf of `telemetry`."""
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
                self._recorder, self._metrics, prepares, is_alone=lambda: roster.is_alone
            )
        # The steps of a prepare, as `ReplicaWatch` has them; without one there is nobody to tell.
        told: ReplicaWatch | _Nobody = _Nobody() if self._watch is None else self._watch
        self.persisting = told.persisting
        self.persisted = told.persisted
        self.committed = told.committed
        self.handed_over = told.handed_over
        self.answered = told.answered
        self.applied = told.applied
        self._tracer = NoOpTracer() if telemetry is None else telemetry.tracer
        self.snapshots = SnapshotWatch(self._tracer, self._metrics)
        self._left_normal_ns = 0
        self.start = StartWatch(self._tracer, begun_ns or time.time_ns())
        self.start.reached("open")

    def serve(self, sources: Sources) -> None:
        """Serve the page, if configured. Raises ConfigError."""
        if self._telemetry is None or self._metrics is None:
            return
        families = (
            self._metrics.families,
            partial(gauge_families, gauges(sources)),
            partial(past_families, sources.past),
        )
        try:
            address = self._telemetry.serve_metrics(families)
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
        self.start.serves(changed.view)
        if self._left_normal_ns:
            told = {"viewstamp.view": changed.view}
            since_ns = self._left_normal_ns
            span = self._tracer.start_span(
                "view change", Context(), attributes=told, start_time=since_ns
            )
            span.end(now_ns)
        self._left_normal_ns = 0

    def _name_of(self, code: int) -> str:
        method = self._routes.find(code)
        return str(code) if method is None else method.name


class _Nobody:
    """Stands in for the watch of prepares when there is none."""

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
