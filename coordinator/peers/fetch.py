"""Snapshot files from peers: the reading side of state transfer.

A digest names a layer, so any peer may finish what another has begun to send: a transfer continues
at its offset with the next peer, and fails only when none of them sends anything more. The caller
checks the bytes by the digest of the whole file, as for its own files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from coordinator.peers.files import SERVICE
from coordinator.peers.hello import Hello, encode_hello
from coordinator.peers.link import dial
from coordinator.snapshot.errors import PeerFileUnavailable
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.cancellation import answer_of
from viewstamp.certificates.pem_files import Certificates

# Stands for the generation that the peer would restart from.
ADOPTED: Final = 0
MANIFEST_TIMEOUT_MS: Final = 10_000
# The peer verifies its whole copy before the first chunk.
CHUNK_TIMEOUT_MS: Final = 60_000


class SnapshotFetcher:
    """Reads manifests and layers from peers."""

    def __init__(
        self,
        own: Hello,
        addresses: Mapping[int, str],
        certificates: Certificates | None,
    ) -> None:
        """Ask as the replica that says the hello `own`."""
        self._own = own
        self._addresses = addresses
        self._certificates = certificates

    async def manifest(self, replica: int, generation: int) -> bytes:
        """Return a peer's manifest file: frame and message, to be decoded and so verified.

        ADOPTED asks for the generation that the peer itself would restart from. Raises
        PeerFileUnavailable.
        """
        request = pb.ReadManifestRequest(hello=self._hello(replica), generation=generation)
        channel = self._dial(replica)
        try:
            call: Any = channel.unary_unary(f"/{SERVICE}/ReadManifest")
            answer = await answer_of(
                call(request.SerializeToString(), timeout=MANIFEST_TIMEOUT_MS / 1000)
            )
            return pb.ReadManifestResponse.FromString(answer).manifest
        except (grpc.RpcError, DecodeError) as error:
            raise PeerFileUnavailable(
                f"the manifest of snapshot {generation}: replica {replica}: {_words(error)}"
            ) from error
        finally:
            await channel.close()

    async def layer(
        self,
        replicas: Sequence[int],
        generation: int,
        digest: bytes,
        size_bytes: int,
        offset: int = 0,
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of a layer from `offset` to its end at `size_bytes`, from these peers in
        turn. Raises PeerFileUnavailable after a round in which none sent anything."""
        failures: dict[int, str] = {}
        turn = 0
        while offset < size_bytes:
            replica = replicas[turn % len(replicas)]
            turn += 1
            before, words = offset, f"ends at {offset} of {size_bytes} bytes"
            try:
                async with aclosing(self.chunks(replica, generation, digest, offset)) as chunks:
                    async for data in chunks:
                        if offset + len(data) > size_bytes:
                            raise _WrongAnswerError(f"sends more than {size_bytes} bytes")
                        offset += len(data)
                        yield data
            except (grpc.RpcError, DecodeError, TimeoutError, _WrongAnswerError) as error:
                words = _words(error)
            if offset > before:
                failures.clear()
                continue
            failures[replica] = f"replica {replica}: {words}"
            if failures.keys() >= set(replicas):
                raise PeerFileUnavailable(
                    f"layer {digest.hex()} from {offset} of {size_bytes} bytes: "
                    + "; ".join(failures[key] for key in sorted(failures))
                )

    async def chunks(
        self, replica: int, generation: int, digest: bytes, offset: int
    ) -> AsyncGenerator[bytes]:
        """Yield the chunks of a layer, from an offset, as one peer sends them."""
        request = pb.ReadLayerRequest(
            hello=self._hello(replica), generation=generation, digest=digest, offset=offset
        )
        channel = self._dial(replica)
        try:
            stream: Any = channel.unary_stream(f"/{SERVICE}/ReadLayer")
            call = stream(request.SerializeToString())
            while (chunk := await _next(call)) is not None:
                if chunk.offset != offset:
                    raise _WrongAnswerError(f"sends {chunk.offset} where {offset} was due")
                if not chunk.data:
                    raise _WrongAnswerError(f"sends nothing at {offset}")
                offset += len(chunk.data)
                yield chunk.data
        finally:
            await channel.close()

    def _hello(self, replica: int) -> pb.ReplicaHello:
        return encode_hello(self._own.to(replica))

    def _dial(self, replica: int) -> grpc.aio.Channel:
        return dial(self._addresses[replica], replica, self._certificates)


class _WrongAnswerError(Exception):
    """A peer sent something other than was asked for."""


async def _next(call: Any) -> pb.ReadLayerResponse | None:
    async with asyncio.timeout(CHUNK_TIMEOUT_MS / 1000):
        answer = await answer_of(call.read())
    return None if answer is grpc.aio.EOF else pb.ReadLayerResponse.FromString(answer)


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    if isinstance(error, TimeoutError):
        return f"nothing within {CHUNK_TIMEOUT_MS} ms"
    return str(error)
