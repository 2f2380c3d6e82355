"""Snapshots as the API sends them, and back."""

from __future__ import annotations

from coordinator.mux.catalog_types import Retention, Snapshot, SnapshotState, TaskSnapshot
from coordinator.mux.stage import Stage
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2


def snapshot_message(snapshot: Snapshot) -> snapshots_pb2.Snapshot:
    """Return a generation as the API sends it."""
    return snapshots_pb2.Snapshot(
        generation=snapshot.generation,
        state=int(snapshot.state),  # type: ignore[arg-type]
        cut_op=snapshot.cut_op,
        cut_revision=snapshot.cut_revision,
        root=snapshot.root,
        tasks=map(task_message, snapshot.tasks),
        created_at=snapshot.created_at,
        retention=int(snapshot.retention),  # type: ignore[arg-type]
        failure=snapshot.failure,
        decided_at=snapshot.decided_at,
        keep_last=snapshot.keep_last,
        keep_daily=snapshot.keep_daily,
    )


def task_message(task: TaskSnapshot) -> snapshots_pb2.SnapshotTask:
    """Return one section of a generation as the API sends it."""
    return snapshots_pb2.SnapshotTask(
        stage=int(task.stage),  # type: ignore[arg-type]
        applied_revision=task.applied_revision,
        state_digest=task.state_digest,
        entities=task.entities,
        size_bytes=task.size_bytes,
    )


def snapshot_of(message: snapshots_pb2.Snapshot) -> Snapshot:
    """Return what the API sent. Raises ValueError for states and stages that are unknown here."""
    return Snapshot(
        generation=message.generation,
        state=SnapshotState(message.state),
        cut_op=message.cut_op,
        cut_revision=message.cut_revision,
        root=message.root,
        tasks=tuple(
            TaskSnapshot(
                Stage(task.stage),
                task.applied_revision,
                task.state_digest,
                task.entities,
                task.size_bytes,
            )
            for task in message.tasks
        ),
        created_at=message.created_at,
        retention=Retention(message.retention or Retention.LAST),
        failure=message.failure,
        decided_at=message.decided_at,
        keep_last=message.keep_last,
        keep_daily=message.keep_daily,
    )
