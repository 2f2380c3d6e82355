"""Commands of the catalog to and from protobuf.

A malformed command raises Refusal, ValueError or DecodeError, which the codec of the log turns into
a refusal, the same on every replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from coordinator.mux import catalog_types as catalog
from coordinator.mux import types as mux
from coordinator.stages.entities import (
    begin_epoch_message,
    epoch_members_of,
    task_message,
    tasks_of,
)
from viewstamp import limits
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.names import check_name

CREATE_SNAPSHOT_CODE: Final = 401
DELETE_SNAPSHOT_CODE: Final = 402
PRUNE_SNAPSHOTS_CODE: Final = 403
SET_SNAPSHOT_RETENTION_CODE: Final = 404
BEGIN_SNAPSHOT_CODE: Final = mux.BEGIN_SNAPSHOT_CODE
COMPLETE_SNAPSHOT_CODE: Final = 406
FAIL_SNAPSHOT_CODE: Final = 407
RAISE_FEATURE_LEVEL_CODE: Final = 408
SET_DESCRIPTION_CODE: Final = 409
BEGIN_EPOCH_CODE: Final = mux.BEGIN_EPOCH_CODE

Guarded: TypeAlias = (
    snapshots_pb2.DeleteSnapshotRequest
    | snapshots_pb2.SetSnapshotRetentionRequest
    | cluster_pb2.SetClusterDescriptionRequest
)

_STAGES: Final = frozenset(int(stage) for stage in mux.Stage)


def encode_catalog_result(result: catalog.CatalogResult) -> bytes:
    """Return the response message as one frame."""
    match result:
        case catalog.CreateSnapshotResult():
            created = snapshots_pb2.CreateSnapshotResponse(generation=result.generation)
            return frame(created.SerializeToString(deterministic=True))
        case catalog.PruneSnapshotsResult():
            pruned = snapshots_pb2.PruneSnapshotsResponse(generations=result.generations)
            return frame(pruned.SerializeToString(deterministic=True))
        case catalog.RaiseFeatureLevelResult():
            raised = cluster_pb2.RaiseFeatureLevelResponse(feature_level=result.level)
            return frame(raised.SerializeToString(deterministic=True))
        case catalog.CatalogDone():
            return mux.EMPTY_FRAME  # the other responses have only their header


def begin_snapshot_request(command: catalog.BeginSnapshot) -> bytes:
    """Return the request that a primary proposes to cut a generation."""
    request = snapshots_pb2.BeginSnapshotRequest(
        generation=command.generation,
        keep_last=command.keep_last,
        keep_daily=command.keep_daily,
    )
    return request.SerializeToString(deterministic=True)


def begin_epoch_request(command: catalog.BeginEpoch) -> bytes:
    """Return the request by which a primary ends its epoch."""
    return begin_epoch_message(command).SerializeToString(deterministic=True)


def complete_snapshot_request(command: catalog.CompleteSnapshot) -> bytes:
    """Return the request that a primary proposes once enough replicas hold a generation."""
    request = snapshots_pb2.CompleteSnapshotRequest(
        generation=command.generation,
        root=command.root,
        tasks=[task_message(task) for task in command.tasks],
    )
    return request.SerializeToString(deterministic=True)


def fail_snapshot_request(command: catalog.FailSnapshot) -> bytes:
    """Return the request that a primary proposes to give a generation up."""
    request = snapshots_pb2.FailSnapshotRequest(
        generation=command.generation, reason=command.reason
    )
    return request.SerializeToString(deterministic=True)


def _create(item: bytes) -> catalog.CreateSnapshot:
    request = snapshots_pb2.CreateSnapshotRequest.FromString(item)
    retention = _retention(request.retention)
    return catalog.CreateSnapshot(retention, request.keep_for_ms, request.validate_only)


def _delete(item: bytes) -> catalog.DeleteSnapshot:
    request = snapshots_pb2.DeleteSnapshotRequest.FromString(item)
    return catalog.DeleteSnapshot(request.generation, _expected(request), request.validate_only)


def _prune(item: bytes) -> catalog.PruneSnapshots:
    request = snapshots_pb2.PruneSnapshotsRequest.FromString(item)
    return catalog.PruneSnapshots(request.keep_last, request.keep_daily, request.validate_only)


def _set_retention(item: bytes) -> catalog.SetRetention:
    request = snapshots_pb2.SetSnapshotRetentionRequest.FromString(item)
    retention = _retention(request.retention)
    return catalog.SetRetention(
        request.generation,
        retention,
        request.keep_for_ms,
        _expected(request),
        request.validate_only,
    )


def _begin(item: bytes) -> catalog.BeginSnapshot:
    request = snapshots_pb2.BeginSnapshotRequest.FromString(item)
    return catalog.BeginSnapshot(request.generation, request.keep_last, request.keep_daily)


def _complete(item: bytes) -> catalog.CompleteSnapshot:
    request = snapshots_pb2.CompleteSnapshotRequest.FromString(item)
    for task in request.tasks:
        if task.stage not in _STAGES:
            raise Refusal.of(
                Reason.REASON_MALFORMED_REQUEST, "snapshot_stage", stage=int(task.stage)
            )
    return catalog.CompleteSnapshot(request.generation, request.root, tasks_of(request.tasks))


def _fail(item: bytes) -> catalog.FailSnapshot:
    request = snapshots_pb2.FailSnapshotRequest.FromString(item)
    return catalog.FailSnapshot(request.generation, request.reason)


def _raise_level(item: bytes) -> catalog.RaiseFeatureLevel:
    request = cluster_pb2.RaiseFeatureLevelRequest.FromString(item)
    return catalog.RaiseFeatureLevel(request.level, request.expected, request.validate_only)


def _set_description(item: bytes) -> catalog.SetDescription:
    request = cluster_pb2.SetClusterDescriptionRequest.FromString(item)
    check_name(
        request.description,
        reason=Reason.REASON_INVALID_OPTION,
        bytes_min=0,
        bytes_max=limits.DESCRIPTION_BYTES_MAX,
        field="description",
    )
    return catalog.SetDescription(request.description, _expected(request), request.validate_only)


def begin_epoch_of(item: bytes) -> catalog.BeginEpoch:
    """Return who belongs to the next epoch, as an item of the log says it. Raises DecodeError."""
    request = cluster_pb2.BeginEpochRequest.FromString(item)
    return catalog.BeginEpoch(
        request.first_view,
        epoch_members_of(request.voters),
        epoch_members_of(request.standbys),
        request.next_replica_id,
    )


def _expected(request: Guarded) -> int | None:
    return request.expected_revision if request.HasField("expected_revision") else None


def _retention(number: int) -> catalog.RetentionClass:
    """Return a retention class; an unspecified one means LAST."""
    if number == snapshots_pb2.RETENTION_CLASS_UNSPECIFIED:
        return catalog.RetentionClass.LAST
    if number not in snapshots_pb2.RetentionClass.values():
        raise Refusal.of(Reason.REASON_MALFORMED_REQUEST, "retention", retention=number)
    return catalog.RetentionClass(number)


# Code -> how its request is read.
CATALOG_PARSERS: Final[Mapping[int, Callable[[bytes], mux.CatalogCommand]]] = MappingProxyType(
    {
        CREATE_SNAPSHOT_CODE: _create,
        DELETE_SNAPSHOT_CODE: _delete,
        PRUNE_SNAPSHOTS_CODE: _prune,
        SET_SNAPSHOT_RETENTION_CODE: _set_retention,
        BEGIN_SNAPSHOT_CODE: _begin,
        COMPLETE_SNAPSHOT_CODE: _complete,
        FAIL_SNAPSHOT_CODE: _fail,
        RAISE_FEATURE_LEVEL_CODE: _raise_level,
        SET_DESCRIPTION_CODE: _set_description,
        BEGIN_EPOCH_CODE: begin_epoch_of,
    }
)
