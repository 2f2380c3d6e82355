"""Snapshots as the API has sent them; `stages.entities` makes the messages."""

from __future__ import annotations

from coordinator.mux.catalog_types import Retention, Snapshot, SnapshotState
from coordinator.stages.entities import tasks_of
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2


def snapshot_of(message: snapshots_pb2.Snapshot) -> Snapshot:
    """Return what the API sent. Raises ValueError for states and stages that are unknown here."""
    return Snapshot(
        generation=message.generation,
        state=SnapshotState(message.state),
        cut_op=message.cut_op,
        cut_revision=message.cut_revision,
        root=message.root,
        tasks=tasks_of(message.tasks),
        created_at=message.created_at,
        retention=Retention(message.retention or Retention.LAST),
        failure=message.failure,
        decided_at=message.decided_at,
        keep_last=message.keep_last,
        keep_daily=message.keep_daily,
    )
