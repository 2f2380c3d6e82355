"""Snapshot files from peers: the reading side of state transfer.

A digest names a layer, so any peer may finish what another has begun to send, and several may send
parts of it at once. The caller checks the bytes by the digest of the whole file, as for its own
files. A fetch of which nothing comes for `CHUNK_TIMEOUT_MS` is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from coordinator.peers.files import SERVICE
from coordinator.peers.hello import Hello, encode_hello
from coordinator.peers.link import dial
from coordinator.snapshot.errors import PeerFileUnavailable
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.cancellation import answer_of
from viewstamp.certificates.pem_files import Certificates
from viewstamp.status import refusal_of

# Stands for the generation that the peer would restart from.
ADOPTED: Final = 0
MANIFEST_TIMEOUT_MS: Final = 10_000
# The peer verifies its copies, as a whole, before the first chunk.
FIRST_CHUNK_TIMEOUT_MS: Final = 60_000
# A peer that sends at its slowest sends several chunks in a second (`send_shares`).
CHUNK_TIMEOUT_MS: Final = 20_000


class SnapshotFetcher:
    """Reads manifests and layers from peers."""

    def __init__(
        self,
        own: Callable[[], Hello],
        addresses: Mapping[int, str],
        certificates: Certificates | None,
    ) -> None:
        """Ask as the replica that says the hello which `own` returns."""
        self._own = own
        self._addresses = addresses
        self._certificates = certificates

    async def manifest(self, replica: int, generation: int) -> bytes:
        """Return a peer's manifest file: frame and message, to be decoded and so verified.

        ADOPTED asks for the generation that the peer itself would restart from. Raises
        PeerFileUnavailable.
        """
        request = pb.ReadManifestRequest(hello=self._hello(replica), generation=generation)
        if replica not in self._addresses:
            raise PeerFileUnavailable(f"replica {replica} is no member, or its address is unknown")
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

    async def part(
        self, replica: int, generation: int, digest: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of a layer from `begin` to `end`, as one peer sends them.

        Raises PeerFileUnavailable if it does not, or sends something else.
        """
        offset = begin
        try:
            chunks = self.chunks(replica, generation, digest, begin, end - begin)
            async with aclosing(chunks):
                async for data in chunks:
                    # An older build sends the rest of the file.
                    needed = data[: end - offset]
                    offset += len(needed)
                    yield needed
                    if offset == end:
                        return
        except _FAILURES as error:
            raise PeerFileUnavailable(
                f"replica {replica}: {_words(error)}", is_busy=_is_busy(error)
            ) from error
        if offset < end:
            raise PeerFileUnavailable(f"replica {replica}: ends at {offset} of {end} bytes")

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
            except _FAILURES as error:
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
        self, replica: int, generation: int, digest: bytes, offset: int, size_bytes: int = 0
    ) -> AsyncGenerator[bytes]:
        """Yield the chunks of a layer, from an offset, as one peer sends them.

        `size_bytes` is what it is asked for, 0 for all to the end of the file.
        """
        if replica not in self._addresses:
            raise _WrongAnswerError("is no member, or its address is unknown")
        request = pb.ReadLayerRequest(
            hello=self._hello(replica),
            generation=generation,
            digest=digest,
            offset=offset,
            size_bytes=size_bytes,
        )
        channel, timeout_ms = self._dial(replica), FIRST_CHUNK_TIMEOUT_MS
        try:
            stream: Any = channel.unary_stream(f"/{SERVICE}/ReadLayer")
            call = stream(request.SerializeToString())
            while (chunk := await _next(call, timeout_ms)) is not None:
                timeout_ms = CHUNK_TIMEOUT_MS
                if chunk.offset != offset:
                    raise _WrongAnswerError(f"sends {chunk.offset} where {offset} was due")
                if not chunk.data:
                    raise _WrongAnswerError(f"sends nothing at {offset}")
                offset += len(chunk.data)
                yield chunk.data
        finally:
            await channel.close()

    def _hello(self, replica: int) -> pb.ReplicaHello:
        return encode_hello(self._own().to(replica))

    def _dial(self, replica: int) -> grpc.aio.Channel:
        return dial(self._addresses[replica], replica, self._certificates)


class _WrongAnswerError(Exception):
    """A peer sent something other than was asked for."""


_FAILURES: Final = (grpc.RpcError, DecodeError, _WrongAnswerError)


async def _next(call: Any, timeout_ms: int) -> pb.ReadLayerResponse | None:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            answer = await answer_of(call.read())
    except TimeoutError as error:
        raise _WrongAnswerError(f"nothing within {timeout_ms} ms") from error
    return None if answer is grpc.aio.EOF else pb.ReadLayerResponse.FromString(answer)


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)


def _is_busy(error: Exception) -> bool:
    """Return whether a peer has no place for another file just now."""
    refusal = refusal_of(error) if isinstance(error, grpc.RpcError) else None
    return refusal is not None and refusal.reason == Reason.REASON_OVERLOADED
