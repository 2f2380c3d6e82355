"""Snapshots for whoever runs inside the coordinator's process: the API, without gRPC.

The same commands and reads as over gRPC, on the same way through the log: nothing that is done here
could not be seen by a client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import Message

from coordinator.mux.catalog_types import RetentionClass, Snapshot
from coordinator.mux.stage import Stage
from coordinator.stages.entities import snapshot_of
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.errors import Refusal
from viewstamp.routing import methods_of_file

# Takes a method's code and its encoded request; returns the encoded response, or raises Refusal.
Call = Callable[[int, bytes], Awaitable[bytes]]
M = TypeVar("M", bound=Message)

_CODES: Final = {method.name: method.code for method in methods_of_file(pb.DESCRIPTOR)}


@dataclass(frozen=True, slots=True)
class Page:
    """Some generations, newest first, and the token of the next page; empty on the last."""

    snapshots: tuple[Snapshot, ...]
    next_page_token: str


class LocalSnapshotApi:
    """Creates, reads, keeps and deletes generations; every method may raise Refusal.

    `submit` sequences a command, `query` answers a linearizable read.
    """

    def __init__(self, submit: Call, query: Call) -> None:
        self._submit = submit
        self._query = query

    # --- Commands ---

    async def create(self, retention: RetentionClass = RetentionClass.LAST) -> int:
        """Ask for a snapshot; return its generation. Refused: SNAPSHOT_IN_PROGRESS."""
        request = pb.CreateSnapshotRequest(retention=int(retention))  # type: ignore[arg-type]
        response = await self._command("CreateSnapshot", request, pb.CreateSnapshotResponse)
        return response.generation

    async def delete(self, generation: int) -> None:
        """Delete a generation. Refused: SNAPSHOT_NOT_FOUND, SNAPSHOT_IN_USE."""
        request = pb.DeleteSnapshotRequest(generation=generation)
        await self._command("DeleteSnapshot", request, pb.DeleteSnapshotResponse)

    async def prune(
        self, keep_last: int, keep_daily: int = 0, validate_only: bool = False
    ) -> Sequence[int]:
        """Delete what the retention does not keep; return it, ascending."""
        request = pb.PruneSnapshotsRequest(
            keep_last=keep_last, keep_daily=keep_daily, validate_only=validate_only
        )
        response = await self._command("PruneSnapshots", request, pb.PruneSnapshotsResponse)
        return tuple(response.generations)

    async def set_retention(self, generation: int, retention: RetentionClass) -> None:
        """Change how long a generation is kept. Refused: SNAPSHOT_NOT_FOUND."""
        request = pb.SetSnapshotRetentionRequest(
            generation=generation,
            retention=int(retention),  # type: ignore[arg-type]
        )
        await self._command("SetSnapshotRetention", request, pb.SetSnapshotRetentionResponse)

    # --- Reads ---

    async def current(self, wait: bool = False) -> Snapshot:
        """Return the newest generation; with `wait` once it is decided, however long that takes."""
        while True:
            request = pb.GetCurrentSnapshotRequest(wait=wait)
            try:
                found = await self._read(
                    "GetCurrentSnapshot", request, pb.GetCurrentSnapshotResponse
                )
            except Refusal as refusal:
                # A read waits no longer than its deadline; the wait itself has none.
                if not wait or refusal.reason != Reason.REASON_READ_DEADLINE:
                    raise
            else:
                return snapshot_of(found.snapshot)

    async def latest_completed(self) -> Snapshot:
        """Return the newest completed generation; generation 0, empty, before the first."""
        request = pb.GetLatestSnapshotRequest()
        found = await self._read("GetLatestSnapshot", request, pb.GetLatestSnapshotResponse)
        return snapshot_of(found.snapshot)

    async def list(self, page_size: int = 0, page_token: str = "") -> Page:
        """Return a page of generations, newest first; 0 means the default size."""
        request = pb.ListSnapshotsRequest(page_size=page_size, page_token=page_token)
        found = await self._read("ListSnapshots", request, pb.ListSnapshotsResponse)
        return Page(tuple(map(snapshot_of, found.snapshots)), found.next_page_token)

    async def get(self, generation: int) -> Snapshot:
        """Return a generation. Refused: SNAPSHOT_NOT_FOUND."""
        request = pb.GetSnapshotRequest(generation=generation)
        found = await self._read("GetSnapshot", request, pb.GetSnapshotResponse)
        return snapshot_of(found.snapshot)

    async def lookup_generation(self, task: Stage) -> int:
        """Return the generation that a section has reached on this replica."""
        request = pb.LookupGenerationRequest(stage=int(task))  # type: ignore[arg-type]
        found = await self._read("LookupGeneration", request, pb.LookupGenerationResponse)
        return found.generation

    async def _command(self, name: str, request: Message, response: type[M]) -> M:
        return response.FromString(await self._submit(_CODES[name], _encoded(request)))

    async def _read(self, name: str, request: Message, response: type[M]) -> M:
        return response.FromString(await self._query(_CODES[name], _encoded(request)))


def _encoded(request: Message) -> bytes:
    return request.SerializeToString(deterministic=True)
