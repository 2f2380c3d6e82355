"""VerifySnapshot and DownloadSnapshot: calls answered by a stream of messages.

They are not reads of a machine, so no route leads to them: this replica's files answer. As for
every other method, streams authorizes the caller, in log order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from coordinator.base.decoded_requests import decoded_request
from coordinator.gateway.caller_calls import CallerCalls, Callers
from coordinator.gateway.replies import header_of
from coordinator.gateway.slow_readers import end_in_time, write_in_time
from coordinator.gateway.telemetry import GatewayWatch, trace_parent_of
from coordinator.mux.catalog_types import SnapshotState
from coordinator.snapshot.ports import (
    PinnedFiles,
    SnapshotProvider,
)
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client.snapshots import SnapshotApi
from viewstamp.errors import Refusal
from viewstamp.limits import (
    MIB,
    REPLIES_RETRY_DELAY_MS,
    SNAPSHOT_READING_TIMEOUT_MS,
    SNAPSHOT_STREAMS_PER_USER_MAX,
)

SERVICE: Final = "/viewstamp.api.snapshots.v1.SnapshotsService/"
VERIFY_PATH: Final = SERVICE + "VerifySnapshot"
DOWNLOAD_PATH: Final = SERVICE + "DownloadSnapshot"
DOWNLOAD_CHUNK_BYTES: Final = 1 * MIB
# Each reads whole generations from disk: more at a time would only slow each other down.
SNAPSHOT_STREAMS_MAX: Final = 4

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[bytes, Context], Awaitable[None]]


class SnapshotStreams:
    """Serves the two streams of this replica."""

    def __init__(
        self,
        cluster_id: bytes,
        callers: Callers,
        provider: SnapshotProvider,
        check_serving: Callable[[], None],
        watch: GatewayWatch | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self._callers = callers
        self._provider = provider
        self._check_serving = check_serving
        self._watch = watch
        self._open: Counter[int] = Counter()  # by user

    def handlers(self) -> Mapping[str, Any]:
        """Return the gRPC method handlers by path."""
        return {
            path: _handler(self._watched(path, serve), response)
            for path, serve, response in (
                (VERIFY_PATH, self._verify, snapshots_pb2.VerifySnapshotResponse),
                (DOWNLOAD_PATH, self._download, snapshots_pb2.DownloadSnapshotResponse),
            )
        }

    def _watched(self, path: str, serve: Handler) -> Handler:
        watch = self._watch
        if watch is None:
            return serve

        async def watched(payload: bytes, context: Context) -> None:
            trace = watch.streaming(path, trace_parent_of(context.invocation_metadata() or ()))
            try:
                await serve(payload, context)
            except Refusal as refusal:
                watch.refused(() if trace is None else (trace,), refusal)
                raise
            except asyncio.CancelledError:
                watch.abandoned(trace)
                raise
            watch.streamed(trace)

        return watched

    async def _verify(self, payload: bytes, context: Context) -> None:
        request = decoded_request(snapshots_pb2.VerifySnapshotRequest, payload)
        calls = self._caller(context)
        generation, header = await self._admit(request.generation, calls)
        with self._place(calls.user_id):
            async with self._provider.pinned(generation) as pinned:
                await _send_verdicts(pinned, header, context)

    async def _download(self, payload: bytes, context: Context) -> None:
        request = decoded_request(snapshots_pb2.DownloadSnapshotRequest, payload)
        calls = self._caller(context)
        generation, header = await self._admit(request.generation, calls)
        with self._place(calls.user_id):
            async with self._provider.pinned(generation) as pinned:
                await _send_files(pinned, header, context)

    @contextmanager
    def _place(self, user_id: int) -> Iterator[None]:
        """Take one of the places for such streams; each caller has a few at most.

        Call it after authorization, so that unauthorized callers take no place. Raises Refusal
        OVERLOADED or QUOTA_EXCEEDED.
        """
        held, open_count = self._open[user_id], self._open.total()
        if held >= SNAPSHOT_STREAMS_PER_USER_MAX:
            raise Refusal(
                Reason.REASON_QUOTA_EXCEEDED,
                f"user {user_id} verifies or downloads {held} snapshots already: wait until"
                " one of them ends",
                share="snapshot_streams",
                held=held,
                retry_delay_ms=REPLIES_RETRY_DELAY_MS,
            )
        if open_count >= SNAPSHOT_STREAMS_MAX:
            raise Refusal(
                Reason.REASON_OVERLOADED,
                f"{open_count} snapshots are being verified or downloaded: try again later",
                streams=open_count,
                share="snapshot_streams",
                retry_delay_ms=REPLIES_RETRY_DELAY_MS,
            )
        self._open[user_id] += 1
        try:
            yield
        finally:
            self._open[user_id] -= 1
            if not self._open[user_id]:
                del self._open[user_id]

    def _caller(self, context: Context) -> CallerCalls:
        """Return the caller, if this replica leads. Raises Refusal."""
        self._check_serving()
        return self._callers.of(context.invocation_metadata() or ())

    async def _admit(
        self, generation: int, calls: CallerCalls
    ) -> tuple[int, common_pb2.ResponseHeader]:
        """Return the requested generation, once its caller is authorized. Raises Refusal."""
        snapshots = SnapshotApi(calls)
        found = await (snapshots.get(generation) if generation else snapshots.latest())
        _check_has_files(found)
        return found.generation, header_of(calls.newest, self._cluster_id)


def _check_has_files(found: snapshots_pb2.Snapshot) -> None:
    """Raise Refusal SNAPSHOT_NOT_FOUND for a generation that was never completed."""
    if not found.generation:
        raise Refusal(
            Reason.REASON_SNAPSHOT_NOT_FOUND,
            "no snapshot is completed yet: create one first",
            generation=0,
        )
    if found.state != snapshots_pb2.SNAPSHOT_STATE_COMPLETED:
        state = SnapshotState(found.state).name
        raise Refusal(
            Reason.REASON_SNAPSHOT_NOT_FOUND,
            f"snapshot {found.generation} is {state}, and only a COMPLETED one has files: choose"
            " another generation",
            generation=found.generation,
            state=state,
        )


async def _send_verdicts(
    pinned: PinnedFiles, header: common_pb2.ResponseHeader, context: Context
) -> None:
    left = len(pinned.files)
    problems: list[str] = []
    first: common_pb2.ResponseHeader | None = header
    async with aclosing(pinned.verify()) as verdicts:
        async for verdict in verdicts:
            left -= 1
            problems += verdict.problems
            message = snapshots_pb2.VerifySnapshotResponse(
                header=first, file=verdict.file, copies=verdict.copies, files_left=left
            )
            await write_in_time(context, message, SNAPSHOT_READING_TIMEOUT_MS)
            first = None
    wrong = await pinned.check_sections()
    await context.write(
        snapshots_pb2.VerifySnapshotResponse(
            header=first, is_intact=not wrong, problems=[*problems, *wrong]
        )
    )


async def _send_files(
    pinned: PinnedFiles, header: common_pb2.ResponseHeader, context: Context
) -> None:
    total_bytes = sum(file.size_bytes for file in pinned.files)
    first: common_pb2.ResponseHeader | None = header
    for file in pinned.files:
        offset = 0
        async with aclosing(pinned.read(file, DOWNLOAD_CHUNK_BYTES)) as chunks:
            async for chunk in chunks:
                message = snapshots_pb2.DownloadSnapshotResponse(
                    header=first,
                    file=file.name,
                    offset=offset,
                    file_bytes=file.size_bytes,
                    data=chunk,
                    total_bytes=total_bytes,
                )
                await write_in_time(context, message, SNAPSHOT_READING_TIMEOUT_MS)
                first = None
                offset += len(chunk)


def _handler(serve: Handler, response: type[Message]) -> Any:
    # Requests stay bytes until they are read here, so that malformed ones get a proper refusal.
    async def served(payload: bytes, context: Context) -> None:
        try:
            await serve(payload, context)
        except Refusal as refusal:
            await end_in_time(context, refusal)

    return grpc.unary_stream_rpc_method_handler(
        served, response_serializer=response.SerializeToString
    )
