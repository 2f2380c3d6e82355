"""The hooks in the replica: what becomes of a prepare, stage by stage.

`ReplicaWatch` is told of each step and notes the time. The notes are handed over when a prepare
is applied, and only if it has sampled commands or is sampled itself. What is replayed was never
admitted here, so it is not known here, and leaves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from coordinator.mux import types as mux_types
from coordinator.replica.batcher import PrepareBatch
from coordinator.telemetry.metrics import ReplicaMetrics
from coordinator.telemetry.prepares import PrepareNotes, SampledVisit
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.format.prepare import SealedPrepare
from viewstamp.telemetry.metrics import NANOSECONDS_PER_SECOND
from viewstamp.telemetry.sampling import Sampler
from viewstamp.telemetry.spans import Recorder

# Spans of prepares without a sampled command: at more per second, the rest has none.
PREPARE_SPANS_PER_SECOND_MAX: Final = 500


class ServiceLink(Protocol):
    """The way to a service (`stages.client.StageClient`)."""

    def send(self, batch: domain_pb2.Batch, trace_parents: Sequence[str] = ()) -> None:
        """Send a batch."""


class ReplicaWatch:
    """Notes what becomes of prepares. One for each replica, on its event loop."""

    def __init__(
        self,
        recorder: Recorder | None,
        metrics: ReplicaMetrics | None,
        prepares: Sampler,
        *,
        is_alone: Callable[[], bool],
    ) -> None:
        """Tell `recorder` and `metrics`, if they are there.

        `prepares` decides about prepares without a sampled command. A replica that `is_alone`
        just then replicates in no time.
        """
        self._recorder = recorder
        self._metrics = metrics
        self._prepare_sampler = prepares
        self._is_drawn = prepares.ratio < 1.0
        self._is_alone = is_alone
        self._prepares: dict[int, PrepareNotes] = {}
        # No visit knows of the notes that will have it: nobody collects cycles while there is load.
        self._visits: dict[tuple[mux_types.Stage, int], tuple[PrepareNotes, SampledVisit]] = {}
        self._second = 0
        self._spans_in_second = 0

    # --- From the log ---

    def persisting(
        self, prepares: Sequence[SealedPrepare], batch_of: Callable[[int], PrepareBatch | None]
    ) -> None:
        """Prepares were admitted and go to the journal; those without a batch are of a replay."""
        now_ns = time.time_ns()
        for prepare in prepares:
            batch = batch_of(prepare.op)
            if batch is not None:
                self._prepares[prepare.op] = PrepareNotes(prepare, batch, now_ns)
            else:
                # Another primary's may stand where one was admitted here that did not survive.
                self._prepares.pop(prepare.op, None)

    def persisted(self, prepares: Sequence[SealedPrepare]) -> None:
        """They are durable here."""
        now_ns = time.time_ns()
        for prepare in prepares:
            times = self._prepares.get(prepare.op)
            if times is not None:
                times.durable_ns = now_ns

    def committed(self, op: int) -> None:
        """A quorum has it."""
        times = self._prepares.get(op)
        if times is not None:
            times.committed_ns = times.durable_ns if self._is_alone() else time.time_ns()

    def handed_over(self, op: int) -> None:
        """The mux has it."""
        times = self._prepares.get(op)
        if times is not None:
            times.handed_over_ns = time.time_ns()

    def cut_times(self, op: int) -> tuple[int, int]:
        """Return when the prepare of a cut was admitted and handed over, before it is applied."""
        times = self._prepares.get(op)
        now_ns = time.time_ns()
        return (now_ns, now_ns) if times is None else (times.admitted_ns, times.handed_over_ns)

    # --- Stages ---

    def sent(self, stage: mux_types.Stage, batch: domain_pb2.Batch) -> Sequence[str]:
        """A batch goes to its stage; return a traceparent for each sampled command in it."""
        notes = self._prepares.get(batch.op) if batch.sequence else None
        if notes is None:
            return ()
        now_ns = time.time_ns()
        if self._recorder is None or not notes.traces:
            if self._metrics is not None:
                self._visits[stage, batch.sequence] = notes, SampledVisit(stage, now_ns)
            return ()
        visit = notes.visit(stage, now_ns, _revisions(batch))
        self._visits[stage, batch.sequence] = notes, visit
        trace_parents: list[str] = []
        for trace, calls, number in visit.concerned:
            trace_parents += trace.trace_parents(calls, number)
        return trace_parents

    def answered(self, stage: mux_types.Stage, sequence: int) -> None:
        """The answer to a batch has come."""
        found = self._visits.pop((stage, sequence), None)
        if found is None:
            return
        notes, visit = found
        visit.answered_ns = time.time_ns()
        notes.visits.append(visit)

    # --- At the end ---

    def applied(self, applied: mux_types.Applied) -> None:
        """A prepare has been applied, and its replies were handed over."""
        notes = self._prepares.pop(applied.op, None)
        if notes is None:
            return
        now_ns = time.time_ns()
        if self._metrics is not None:
            assert notes.batch is not None, "it has been applied before"
            sync_ns = max(0, notes.durable_ns - notes.admitted_ns)
            duration_ns = now_ns - notes.admitted_ns
            self._metrics.applied(notes.batch, applied, duration_ns, sync_ns, notes.visits)
        if self._recorder is not None and (notes.traces or self._keeps_prepare(now_ns)):
            notes.apply(now_ns)
            self._recorder.record(notes)

    def _keeps_prepare(self, now_ns: int) -> bool:
        if self._is_drawn and not self._prepare_sampler.keeps():
            return False
        second = now_ns // NANOSECONDS_PER_SECOND
        if second != self._second:
            self._second, self._spans_in_second = second, 0
        self._spans_in_second += 1
        return self._spans_in_second <= PREPARE_SPANS_PER_SECOND_MAX


class WatchedLink:
    """The way to a service, past the watch."""

    def __init__(self, watch: ReplicaWatch, stage: mux_types.Stage, link: ServiceLink) -> None:
        """Send over `link`, which leads to `stage`."""
        self._watch = watch
        self._stage = stage
        self._link = link

    def send(self, batch: domain_pb2.Batch) -> None:
        """Send a batch, in order."""
        self._link.send(batch, self._watch.sent(self._stage, batch))


def _revisions(batch: domain_pb2.Batch) -> list[tuple[int, int]]:
    """Return the first and the one after the last revision that each item is about, in order."""
    found = []
    for item in batch.items:
        command = item.command
        if command.count:  # nearly always; it has none where the item is another
            first = command.first_revision
            found.append((first, first + command.count))
            continue
        kind = item.WhichOneof("kind")
        if kind == "resolve":
            resolve = item.resolve
            found.append((resolve.first_revision, resolve.first_revision + resolve.count))
        elif kind == "effect":
            found.append((item.effect.revision, item.effect.revision + 1))
    found.sort()
    return found
