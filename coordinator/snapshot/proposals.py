"""The internal commands about a generation, encoded; equal ones have equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordinator.mux.catalog_types import TaskSnapshot
from coordinator.snapshot.messages import task_message
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.routing import methods_of_file

CODES: Final = {m.name: m.code for m in methods_of_file(snapshots_pb2.DESCRIPTOR)}
BEGIN_CODE: Final = CODES["BeginSnapshot"]
COMPLETE_CODE: Final = CODES["CompleteSnapshot"]
FAIL_CODE: Final = CODES["FailSnapshot"]
# A reason is for people; what a disk or a service said can be long.
REASON_CHARACTERS_MAX: Final = 500


def begin(generation: int, keep_last: int, keep_daily: int) -> bytes:
    """Return the request to cut a generation."""
    return snapshots_pb2.BeginSnapshotRequest(
        generation=generation, keep_last=keep_last, keep_daily=keep_daily
    ).SerializeToString(deterministic=True)


def complete(generation: int, root: bytes, tasks: Sequence[TaskSnapshot]) -> bytes:
    """Return the request to complete a generation that is durable."""
    return snapshots_pb2.CompleteSnapshotRequest(
        generation=generation, root=root, tasks=map(task_message, tasks)
    ).SerializeToString(deterministic=True)


def fail(generation: int, reason: str) -> bytes:
    """Return the request to give a generation up."""
    return snapshots_pb2.FailSnapshotRequest(
        generation=generation, reason=reason[:REASON_CHARACTERS_MAX]
    ).SerializeToString(deterministic=True)
