"""Snapshot files for a peer whose log no longer reaches back far enough: the serving side.

A generation stays pinned while one of its files is read, and every file comes from a copy that was
verified whole, once in a minute if it is read in parts. The caller sends the same hello as on a
stream, judged by the same rules. Layers are sent as fast as `send_shares` allows, so that peers
that fetch do not slow commands down.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import grpc
import grpc.aio

from coordinator.base.decoded_requests import decoded_request
from coordinator.base.refused_calls import abort
from coordinator.peers.hello import RefusedHello as HelloRefused
from coordinator.peers.send_shares import CHUNK_BYTES, SendShares
from coordinator.snapshot.layout import layer_file, manifest_file
from coordinator.snapshot.ports import PinnedFiles, SnapshotFile, SnapshotProvider
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.errors import Refusal

SERVICE: Final = "viewstamp.api.replication.v1.SnapshotFilesService"
# Each holds a chunk in memory. Two peers read at once what `FETCHES_PER_PEER_MAX` allows them.
FILES_OPEN_MAX: Final = 8
# Its parts of layers, a manifest, and a part that it has just given up.
FILES_OPEN_PER_PEER_MAX: Final = 4
# Whoever reads a layer in parts has it verified once in this time; the reader checks the digest.
VERIFIED_FOR_MS: Final = 60_000

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
JudgeCaller: TypeAlias = Callable[[pb.ReplicaHello, Context], HelloRefused | None]


class _Request(Protocol):
    @property
    def hello(self) -> pb.ReplicaHello: ...


class SnapshotFilesServer:
    """Serves the files of this replica's snapshots to peers, and to nobody else."""

    def __init__(
        self,
        provider: SnapshotProvider,
        judge_caller: JudgeCaller,
        adopted: Callable[[], int],
        shares: SendShares,
    ) -> None:
        """Serve what `provider` holds to callers for whom `judge_caller` returns None.

        `adopted` is the generation that this replica would restart from, 0 for none. `shares` says
        when the next chunk may be sent.
        """
        self._provider = provider
        self._judge_caller = judge_caller
        self._adopted = adopted
        self._shares = shares
        self._open: Counter[int] = Counter()
        # Until when, by the clock of the loop, a layer need not be verified again, by its digest.
        self._verified: dict[bytes, float] = {}

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
        with self._place(request.hello.replica_id):
            async with self._provider.pinned(generation) as pinned:
                file = _named(pinned, manifest_file(generation), generation)
                async with aclosing(pinned.read(file, CHUNK_BYTES)) as chunks:
                    manifest = b"".join([chunk async for chunk in chunks])
        return pb.ReadManifestResponse(manifest=manifest).SerializeToString()

    async def _layer(self, payload: bytes, context: Context) -> None:
        request = decoded_request(pb.ReadLayerRequest, payload)
        await self._check_caller(request, context)
        replica = request.hello.replica_id
        with self._place(replica):
            async with self._provider.pinned(request.generation) as pinned:
                file = _named(pinned, layer_file(request.digest), request.generation)
                is_verified = self._is_verified(request.digest)
                sending = Sending(file, request.offset, request.size_bytes, is_verified)

                async def take(size_bytes: int) -> None:
                    if not is_verified:
                        self._was_verified(request.digest)
                    await self._shares.take(replica, size_bytes)

                await send_file(pinned, sending, self._shares.chunk_bytes, take, context)

    def _is_verified(self, digest: bytes) -> bool:
        """Return whether all copies of a layer were read and verified just now."""
        return asyncio.get_running_loop().time() < self._verified.get(digest, 0)

    def _was_verified(self, digest: bytes) -> None:
        now_s = asyncio.get_running_loop().time()
        self._verified = {key: end_s for key, end_s in self._verified.items() if now_s < end_s}
        self._verified[digest] = now_s + VERIFIED_FOR_MS / 1000

    async def _check_caller(self, request: _Request, context: Context) -> None:
        refused = self._judge_caller(request.hello, context)
        if refused is not None:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"{refused.reason.value}: {refused.detail}"
            )

    @contextmanager
    def _place(self, replica: int) -> Iterator[None]:
        """Take one of the places. Raises Refusal OVERLOADED."""
        opened = self._open.total()
        if opened >= FILES_OPEN_MAX or self._open[replica] >= FILES_OPEN_PER_PEER_MAX:
            raise Refusal(
                Reason.REASON_OVERLOADED,
                f"{opened} snapshot files are being read by peers, {self._open[replica]} of them by"
                f" replica {replica}: try again later",
                files=opened,
            )
        self._open[replica] += 1
        try:
            yield
        finally:
            self._open[replica] -= 1


def _named(pinned: PinnedFiles, name: str, generation: int) -> SnapshotFile:
    for file in pinned.files:
        if file.name == name:
            return file
    raise Refusal(
        Reason.REASON_SNAPSHOT_NOT_FOUND,
        f"snapshot {generation} has no file {name} here",
        generation=generation,
    )


@dataclass(frozen=True, slots=True)
class Sending:
    """Which bytes of a file are to be sent; a size of 0 is all of them to its end.

    `is_verified`: its copies were verified for another part of it a moment ago.
    """

    file: SnapshotFile
    offset: int
    size_bytes: int
    is_verified: bool = False

    @property
    def end(self) -> int:
        """Where it ends in the file."""
        file_bytes = self.file.size_bytes
        return min(file_bytes, self.offset + self.size_bytes) if self.size_bytes else file_bytes


async def send_file(
    pinned: PinnedFiles,
    sending: Sending,
    chunk_bytes: int,
    take: Callable[[int], Awaitable[None]],
    context: Context,
) -> None:
    """Send a part of a file, each chunk once `take` returns. Raises Refusal if the file ends before
    its offset."""
    file, offset = sending.file, sending.offset
    if offset > file.size_bytes:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            f"{file.name} has {file.size_bytes} bytes: it cannot be read from {offset}",
        )
    chunks_read = pinned.read(file, chunk_bytes, offset, is_verified=sending.is_verified)
    async with aclosing(chunks_read) as chunks:
        async for chunk in chunks:
            data = chunk[: sending.end - offset]
            await take(len(data))
            message = pb.ReadLayerResponse(offset=offset, file_bytes=file.size_bytes, data=data)
            await context.write(message.SerializeToString())
            offset += len(data)
            if offset >= sending.end:
                return


def _answering(serve: Callable[[bytes, Context], Awaitable[Any]]) -> Any:
    # Requests stay bytes until they are read here: what is malformed deserves a proper refusal.
    async def served(payload: bytes, context: Context) -> Any:
        try:
            return await serve(payload, context)
        except Refusal as refusal:
            await abort(context, refusal)

    return served
