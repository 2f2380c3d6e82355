"""`client.snapshots`: composite snapshots by generation, for callers outside and in the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol, Unpack

from google.protobuf.message import Message

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.identifiers import Answer, Facade, FacadeClient, Guards, pages
from viewstamp.errors import Refusal


class StreamingCaller(FacadeClient, Protocol):
    """What this facade needs of a client."""

    def stream(self, request: Message) -> AsyncIterator[Any]:
        """Iterate over the messages that answer `request`."""


class SnapshotApi(Facade):
    """Snapshots as generations. The RPCs of SnapshotsService document the errors.

    `client` makes the calls: over gRPC for a program, through the log of its own process for the
    gateway.
    """

    def create(
        self,
        *,
        retention: snapshots_pb2.RetentionClass.ValueType = snapshots_pb2.RETENTION_CLASS_LAST,
        keep_for_ms: int = 0,
        validate_only: bool = False,
    ) -> Answer[snapshots_pb2.CreateSnapshotResponse]:
        """Start a snapshot; the cut follows at once. `decided` waits for the outcome.

        It is kept for `keep_for_ms` in any case; 0 for no time (from feature level 7 on).
        """
        request = snapshots_pb2.CreateSnapshotRequest(
            retention=retention, keep_for_ms=keep_for_ms, validate_only=validate_only
        )
        return self._client.call(request)

    async def decided(self, generation: int) -> snapshots_pb2.Snapshot:
        """Wait until a generation is completed or failed, and return it.

        The cluster gives a generation up after two minutes. Raises Refusal SNAPSHOT_NOT_FOUND if it
        was deleted meanwhile.
        """
        while True:
            newest = await self._waited()
            if newest is None or (newest.generation <= generation and not newest.decided_at):
                continue
            if newest.generation == generation:
                return newest
            found = await self.get(generation)
            if found.decided_at:
                return found

    async def _waited(self) -> snapshots_pb2.Snapshot | None:
        """Return the newest generation once it is decided, None after a timeout."""
        try:
            return await self.current(wait=True)
        except Refusal as refusal:
            if refusal.reason != Reason.REASON_READ_DEADLINE:
                raise
            return None

    async def current(
        self, *, wait: bool = False, consistency: Consistency = LINEARIZABLE
    ) -> snapshots_pb2.Snapshot:
        """Return the newest generation, whatever its state; generation 0 before the first.

        With `wait` the answer comes when it is decided, or at the deadline of a read.
        """
        request = snapshots_pb2.GetCurrentSnapshotRequest(wait=wait)
        response = await self._client.call(request, consistency=consistency)
        found: snapshots_pb2.Snapshot = response.snapshot
        return found

    async def latest(self, *, consistency: Consistency = LINEARIZABLE) -> snapshots_pb2.Snapshot:
        """Return the newest completed generation; generation 0, empty, before the first."""
        request = snapshots_pb2.GetLatestSnapshotRequest()
        response = await self._client.call(request, consistency=consistency)
        found: snapshots_pb2.Snapshot = response.snapshot
        return found

    async def get(
        self, generation: int, *, consistency: Consistency = LINEARIZABLE
    ) -> snapshots_pb2.Snapshot:
        """Return a generation."""
        request = snapshots_pb2.GetSnapshotRequest(generation=generation)
        response = await self._client.call(request, consistency=consistency)
        found: snapshots_pb2.Snapshot = response.snapshot
        return found

    def list(
        self, *, page_size: int = 0, consistency: Consistency = LINEARIZABLE
    ) -> AsyncIterator[snapshots_pb2.Snapshot]:
        """Iterate over all generations, newest first."""
        request = snapshots_pb2.ListSnapshotsRequest(page_size=page_size)
        return pages(self._client, request, lambda page: page.snapshots, consistency)

    async def lookup_generation(
        self, stage: routing_pb2.Stage.ValueType, *, consistency: Consistency = LINEARIZABLE
    ) -> int:
        """Return the generation that a section has reached on the answering replica."""
        request = snapshots_pb2.LookupGenerationRequest(stage=stage)
        response = await self._client.call(request, consistency=consistency)
        return int(response.generation)

    def delete(
        self, generation: int, **guards: Unpack[Guards]
    ) -> Answer[snapshots_pb2.DeleteSnapshotResponse]:
        """Delete a generation; not the last completed one, and not one under way."""
        request = snapshots_pb2.DeleteSnapshotRequest(generation=generation, **guards)
        return self._client.call(request)

    def prune(
        self, *, keep_last: int, keep_daily: int = 0, validate_only: bool = False
    ) -> Answer[snapshots_pb2.PruneSnapshotsResponse]:
        """Delete all but the newest `keep_last` generations and the newest of each recent day.

        The response names the deleted generations; with `validate_only` those that would be
        deleted.
        """
        request = snapshots_pb2.PruneSnapshotsRequest(
            keep_last=keep_last, keep_daily=keep_daily, validate_only=validate_only
        )
        return self._client.call(request)

    def set_retention(
        self,
        generation: int,
        retention: snapshots_pb2.RetentionClass.ValueType,
        *,
        keep_for_ms: int = 0,
        **guards: Unpack[Guards],
    ) -> Answer[snapshots_pb2.SetSnapshotRetentionResponse]:
        """Change how long a generation is kept: in any case for `keep_for_ms` from now on."""
        request = snapshots_pb2.SetSnapshotRetentionRequest(
            generation=generation, retention=retention, keep_for_ms=keep_for_ms, **guards
        )
        return self._client.call(request)


class ClientSnapshots(SnapshotApi):
    """Snapshots for a program, with the files of a snapshot as streams of messages."""

    def __init__(self, client: StreamingCaller) -> None:
        super().__init__(client)
        self._streams = client

    def verify(self, generation: int = 0) -> AsyncIterator[snapshots_pb2.VerifySnapshotResponse]:
        """Verify every copy of a generation; 0 for the newest completed one.

        Yields a message for each file, and a last one (`file` empty) about the whole generation.
        """
        return self._streams.stream(snapshots_pb2.VerifySnapshotRequest(generation=generation))

    def download(
        self, generation: int = 0
    ) -> AsyncIterator[snapshots_pb2.DownloadSnapshotResponse]:
        """Iterate over the files of a generation in chunks; 0 for the newest completed one."""
        return self._streams.stream(snapshots_pb2.DownloadSnapshotRequest(generation=generation))
