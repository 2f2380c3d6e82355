"""Snapshot files for a peer whose log no longer reaches back far enough: the serving side.

A generation stays pinned while one of its files is read, and every file comes from a copy that was
verified whole. The caller sends the same hello as on a stream, judged by the same rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final, Protocol, TypeAlias

import grpc
import grpc.aio

from coordinator.base.decoded_requests import decoded_request
from coordinator.base.refused_calls import abort
from coordinator.peers.hello import RefusedHello as HelloRefused
from coordinator.snapshot.layout import layer_file, manifest_file
from coordinator.snapshot.ports import PinnedFiles, SnapshotFile, SnapshotProvider
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.errors import Refusal
from viewstamp.limits import MIB

SERVICE: Final = "viewstamp.api.replication.v1.SnapshotFilesService"
CHUNK_BYTES: Final = 1 * MIB
# One peer reads one layer at a time; more would take the disk from commands.
FILES_OPEN_MAX: Final = 4

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
JudgeCaller: TypeAlias = Callable[[pb.ReplicaHello, Context], HelloRefused | None]


class _Request(Protocol):
    @property
    def hello(self) -> pb.ReplicaHello: ...


class SnapshotFilesServer:
    """Serves the files of this replica's snapshots to peers, and to nobody else."""

    def __init__(
        self, provider: SnapshotProvider, judge_caller: JudgeCaller, adopted: Callable[[], int]
    ) -> None:
        """Serve what `provider` holds to callers for whom `judge_caller` returns None.

        `adopted` is the generation that this replica would restart from, 0 for none.
        """
        self._provider = provider
        self._judge_caller = judge_caller
        self._adopted = adopted
        self._open = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return what serves the two methods."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "ReadManifest": grpc.unary_unary_rpc_method_handler(_answering(self._manifest)),
                "ReadLayer": grpc.unary_stream_rpc_method_handler(_answering(self._layer)),
            },
        )

    async def _manifest(self, payload: bytes, context: Context) -> bytes:
        request = decoded_request(pb.ReadManifestRequest, payload)
        await self._check_caller(request, context)
        generation = request.generation or self._adopted()
        with self._place():
            async with self._provider.pinned(generation) as pinned:
                file = _named(pinned, manifest_file(generation), generation)
                async with aclosing(pinned.read(file, CHUNK_BYTES)) as chunks:
                    manifest = b"".join([chunk async for chunk in chunks])
        return pb.ReadManifestResponse(manifest=manifest).SerializeToString()

    async def _layer(self, payload: bytes, context: Context) -> None:
        request = decoded_request(pb.ReadLayerRequest, payload)
        await self._check_caller(request, context)
        with self._place():
            async with self._provider.pinned(request.generation) as pinned:
                file = _named(pinned, layer_file(request.digest), request.generation)
                await send_file(pinned, file, request.offset, context)

    async def _check_caller(self, request: _Request, context: Context) -> None:
        refused = self._judge_caller(request.hello, context)
        if refused is not None:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"{refused.reason.value}: {refused.detail}"
            )

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Take one of the places. Raises Refusal OVERLOADED."""
        if self._open >= FILES_OPEN_MAX:
            raise Refusal(
                Reason.REASON_OVERLOADED,
                f"{self._open} snapshot files are being read by peers: try again later",
                files=self._open,
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


def _named(pinned: PinnedFiles, name: str, generation: int) -> SnapshotFile:
    for file in pinned.files:
        if file.name == name:
            return file
    raise Refusal(
        Reason.REASON_SNAPSHOT_NOT_FOUND,
        f"snapshot {generation} has no file {name} here",
        generation=generation,
    )


async def send_file(pinned: PinnedFiles, file: SnapshotFile, offset: int, context: Context) -> None:
    """Send a file from an offset. Raises Refusal if the file ends before it."""
    if offset > file.size_bytes:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            f"{file.name} has {file.size_bytes} bytes: it cannot be read from {offset}",
        )
    position = 0
    # The whole file is read, to verify it: skipping is rare, and costs no network.
    async with aclosing(pinned.read(file, CHUNK_BYTES)) as chunks:
        async for chunk in chunks:
            data = chunk[max(0, offset - position) :]
            begin = position + len(chunk) - len(data)
            position += len(chunk)
            if data:
                message = pb.ReadLayerResponse(offset=begin, file_bytes=file.size_bytes, data=data)
                await context.write(message.SerializeToString())


def _answering(serve: Callable[[bytes, Context], Awaitable[Any]]) -> Any:
    # Requests stay bytes until they are read here: what is malformed deserves a proper refusal.
    async def served(payload: bytes, context: Context) -> Any:
        try:
            return await serve(payload, context)
        except Refusal as refusal:
            await abort(context, refusal)

    return served
