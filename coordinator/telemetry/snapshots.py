"""The spans of generations: one root `snapshot`, from the admission of its cut to its adoption.

Only generations that are cut while the replica serves have spans; what a replay comes across was
told before.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode, Tracer, set_span_in_context

from coordinator.mux.catalog_types import CutTaken, Snapshot, SnapshotState, TaskSnapshot
from coordinator.mux.stage import Stage
from coordinator.snapshot.orchestrator import SnapshotWork
from coordinator.snapshot.work import LocalCut, Report
from coordinator.telemetry.metrics import ReplicaMetrics
from viewstamp.telemetry.rpc import OK
from viewstamp.telemetry.spans import Attributes

# Generations whose spans are open, or that are still compacted: a replica has one or two.
GENERATIONS_MAX: Final = 8


Adopt = Callable[[int], Awaitable[None]]


@dataclass(slots=True)
class _Times:
    """One generation; nanoseconds since 1970, 0 for what has not happened."""

    start_ns: int
    root: Span
    written_ns: int = 0
    durable_ns: int = 0
    bytes: int = 0
    entities: int = 0


class SnapshotWatch:
    """Notes what becomes of generations; does nothing until `serving` is set."""

    def __init__(self, tracer: Tracer, metrics: ReplicaMetrics | None) -> None:
        """Make spans by `tracer`, and tell `metrics`, if they are there."""
        self.serving = False
        self._tracer = tracer
        self._metrics = metrics
        self._generations: dict[int, _Times] = {}

    def cut_taken(self, taken: CutTaken, admitted_ns: int, handed_over_ns: int) -> None:
        """All stages are frozen; `admitted_ns` and `handed_over_ns` are of the cut's prepare."""
        if not self.serving:
            return
        while len(self._generations) >= GENERATIONS_MAX:
            del self._generations[next(iter(self._generations))]
        # A root, whatever call the cut came with or after.
        root = self._tracer.start_span("snapshot", Context(), start_time=admitted_ns)
        times = self._generations[taken.generation] = _Times(admitted_ns, root)
        told = {"viewstamp.op": taken.op}
        self._child(taken.generation, times, "cut", handed_over_ns, time.time_ns(), told)

    def work(self, work: SnapshotWork) -> SnapshotWork:
        """Return the work, watched."""
        return _WatchedWork(work, self)

    def adopt(self, adopt: Adopt) -> Adopt:
        """Return the adoption, watched."""

        async def watched(generation: int) -> None:
            started_ns = time.time_ns()
            await adopt(generation)
            self._adopted(generation, started_ns)

        return watched

    def begun(self, generation: int) -> None:
        """The sections are being read."""
        if (times := self._generations.get(generation)) is not None:
            times.written_ns = time.time_ns()
            times.bytes = times.entities = 0

    def reported(self, generation: int, tasks: Iterable[TaskSnapshot]) -> None:
        """Sections are durable here."""
        times = self._generations.get(generation)
        if times is None:
            return
        now_ns = time.time_ns()
        for task in tasks:
            name = task.stage.name.lower()
            told: Attributes = {
                "viewstamp.stage": name,
                "viewstamp.bytes": task.size_bytes,
                "viewstamp.entities": task.entities,
            }
            self._child(generation, times, f"section {name}", times.written_ns, now_ns, told)
            times.bytes += task.size_bytes
            times.entities += task.entities
            times.durable_ns = now_ns  # the manifest begins after the last of them

    def durable(self, generation: int) -> None:
        """The manifest is durable here."""
        if (times := self._generations.get(generation)) is not None:
            now_ns = time.time_ns()
            self._child(generation, times, "manifest", times.durable_ns, now_ns)
            times.durable_ns = now_ns

    def decided(self, snapshots: Iterable[Snapshot]) -> None:
        """A prepare has changed the catalog."""
        if not self.serving:
            return
        for snapshot in snapshots:
            if snapshot.state is not SnapshotState.CREATED:
                self._decided(snapshot)

    def _decided(self, snapshot: Snapshot) -> None:
        outcome = snapshot.state.name.lower()
        if self._metrics is not None:
            self._metrics.snapshots[outcome] = self._metrics.snapshots.get(outcome, 0) + 1
        times = self._generations.get(snapshot.generation)
        if times is None:
            return
        now_ns = time.time_ns()
        start_ns = times.durable_ns or times.start_ns
        told = {"viewstamp.outcome": outcome}
        self._child(snapshot.generation, times, "decide", start_ns, now_ns, told)
        if snapshot.state is SnapshotState.FAILED:
            times.root.set_status(StatusCode.ERROR)
            self._end(snapshot.generation, times, now_ns, "FAILED")
            del self._generations[snapshot.generation]

    def _adopted(self, generation: int, started_ns: int) -> None:
        if (times := self._generations.get(generation)) is not None:
            now_ns = time.time_ns()
            self._child(generation, times, "adopt", started_ns, now_ns)
            self._end(generation, times, now_ns, OK)

    def compacted(self, generation: int, stage: Stage, started_ns: int, size_bytes: int) -> None:
        """A chain of the generation was merged into a base; its trace is over by then."""
        if (times := self._generations.get(generation)) is not None:
            name = stage.name.lower()
            told: Attributes = {"viewstamp.stage": name, "viewstamp.bytes": size_bytes}
            now_ns = time.time_ns()
            self._child(generation, times, f"compact {name}", started_ns, now_ns, told)

    def _child(
        self,
        generation: int,
        times: _Times,
        name: str,
        start_ns: int,
        end_ns: int,
        more: Attributes | None = None,
    ) -> None:
        span = self._tracer.start_span(
            name,
            set_span_in_context(times.root, Context()),
            attributes={"viewstamp.generation": generation, **(more or {})},
            start_time=start_ns or end_ns,
        )
        span.end(end_ns)

    def _end(self, generation: int, times: _Times, end_ns: int, outcome: str) -> None:
        attributes: Attributes = {
            "viewstamp.generation": generation,
            "viewstamp.bytes": times.bytes,
            "viewstamp.entities": times.entities,
            "viewstamp.outcome": outcome,
        }
        times.root.set_attributes(attributes)
        times.root.end(end_ns)


class _WatchedWork:
    def __init__(self, work: SnapshotWork, watch: SnapshotWatch) -> None:
        self._work = work
        self._watch = watch

    async def make_durable(self, cut: LocalCut, tasks: Sequence[Stage], report: Report) -> bytes:
        generation = cut.taken.generation
        self._watch.begun(generation)

        def watched_report(generation: int, tasks: Sequence[TaskSnapshot]) -> None:
            report(generation, tasks)
            self._watch.reported(generation, tasks)

        root = await self._work.make_durable(cut, tasks, watched_report)
        self._watch.durable(generation)
        return root

    async def delete(self, generation: int) -> None:
        await self._work.delete(generation)
