"""What a replica's watch keeps of prepares, and for how long."""

from __future__ import annotations

import gc
import time
import weakref
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.app.telemetry import ReplicaTelemetry
from coordinator.base.roster import Roster
from coordinator.gateway.routes import Routes
from coordinator.mux import types as mux_types
from coordinator.replica.batcher import LooseCommand, PrepareBatch
from coordinator.telemetry.metrics import COUNTED_TOGETHER, ReplicaMetrics
from coordinator.telemetry.prepares import PrepareNotes
from coordinator.telemetry.watch import ReplicaWatch
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.log.v1 import log_pb2
from viewstamp.telemetry.metrics import NANOSECONDS_PER_SECOND
from viewstamp.telemetry.sampling import Sampler
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings

STAGE = mux_types.Stage.STREAMS


class Waiters(list[LooseCommand]):
    """The callers waiting for a batch; unlike a plain list they allow weak references."""


class NotingReplica:
    """A replica's watch that only counts, as with a page for Prometheus and no spans."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.metrics = ReplicaMetrics(str)
        self.watch = ReplicaWatch(None, self.metrics, Sampler(1.0), is_alone=lambda: True)

    def persist(self, op: int, batch: PrepareBatch | None) -> None:
        """Journal an entry, admitted here if it has a batch."""
        header = SimpleNamespace(op=op, view=0, first_revision=op, command_count=1, size=3)
        prepares: list[Any] = [SimpleNamespace(op=op, header=header)]
        self.watch.persisting(prepares, lambda _: batch)
        self.watch.persisted(prepares)

    def apply(self, op: int, *replies: mux_types.RequestReply) -> None:
        """Take an entry from its commit through a stage to its application."""
        self.watch.committed(op)
        self.watch.handed_over(op)
        self.watch.sent(STAGE, domain_pb2.Batch(sequence=op, op=op))
        self.watch.answered(STAGE, op)
        self.watch.applied(mux_types.Applied(op, 0, op, replies, ()))

    def counted(self) -> list[float]:
        """Return how many prepares were counted, and the times at the stage."""
        samples = [sample for family in self.metrics.families() for sample in family.samples]
        told = {(each.name, each.labels.get("stage")): each.value for each in samples}
        return [
            told["viewstamp_prepares_total", None],
            told["viewstamp_stage_seconds_count", "streams"],
        ]


def test_what_was_counted_is_let_go() -> None:
    """Nothing keeps a prepare alive once it is counted, since cycles are not collected under
    load."""
    replica = NotingReplica()
    waiters = Waiters()
    gone = weakref.ref(waiters)
    gc.collect()
    gc.disable()
    try:
        replica.persist(1, PrepareBatch(b"abc", 1, [], [waiters]))
        del waiters
        replica.apply(1)
        for op in range(2, 1 + COUNTED_TOGETHER):
            assert gone() is not None, "it is counted together with others"
            replica.persist(op, PrepareBatch(b"abc", 1, [], []))
            replica.apply(op)
        assert gone() is None
    finally:
        gc.enable()
    assert replica.counted() == [COUNTED_TOGETHER, COUNTED_TOGETHER]


def test_an_entry_that_another_primary_replaced() -> None:
    """An entry that was admitted here and replaced is forgotten: other replies have its place."""
    request = log_pb2.LoggedRequest(spans=[log_pb2.LoggedSpan(code=200, count=3)])
    replica = NotingReplica()
    replica.persist(1, PrepareBatch(b"abc", 3, [request], []))

    replica.persist(1, None)  # the new primary's
    replica.apply(1)

    assert replica.counted() == [0, 0]


def test_only_one_that_is_alone_replicates_in_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit takes time while others have votes; who is alone commits with the own sync. Both
    change while the replica runs."""
    seconds = count(1)
    monkeypatch.setattr(time, "time_ns", lambda: next(seconds) * NANOSECONDS_PER_SECOND)
    roster = Roster.founding(0, 1)
    telemetry = Telemetry("coordinator", TelemetrySettings(directory=tmp_path))
    kept: list[PrepareNotes] = []
    recorder: Any = SimpleNamespace(record=kept.append)
    telemetry.recorder = recorder
    told = ReplicaTelemetry(telemetry, Routes(lambda: 0), roster)
    for op, members in enumerate((((0,), ()), ((0,), (1,)), ((0, 1), ()), ((0,), ())), 1):
        roster.enter(*members)
        header = SimpleNamespace(op=op, view=0, first_revision=op, command_count=1, size=3)
        prepares: list[Any] = [SimpleNamespace(op=op, header=header)]
        told.persisting(prepares, lambda _: PrepareBatch(b"abc", 1, [], []))
        told.persisted(prepares)
        told.committed(op)
        told.handed_over(op)
        told.applied(mux_types.Applied(op, 0, op, (), ()))
    telemetry.close()
    assert [each.committed_ns == each.durable_ns for each in kept] == [True, True, False, True]
