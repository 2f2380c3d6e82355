"""The gRPC interface of a domain service: Describe, Apply, Normalize, ReadSection and health.

The coordinator that opens an Apply stream owns the machine: it starts from the empty state, after
the older stream has ended. A failure outside a command leaves the machine half applied; then
nothing more is answered and `failure` is set, upon which the process must end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.runtime.domain import Domain
from services.runtime.encryption import admit, refusal_of
from services.runtime.failures import ApplyError
from services.runtime.fair_threads import FairThreads
from services.runtime.handlers import description_of
from services.runtime.machine import Machine
from services.runtime.reading import ReadingOvertaken, SectionReading
from services.runtime.stream import ApplyStream, Context, StreamEnded
from services.runtime.watch import ApplyWatch
from viewstamp import grpc_transport
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import domain_service_pb2_grpc
from viewstamp.certificates.proven_names import names_of
from viewstamp.errors import Refusal
from viewstamp.format.block import EntryTooLargeError
from viewstamp.limits import (
    APPLY_MESSAGE_BYTES_MAX,
    CLUSTER_ID_BYTES,
    HANDSHAKE_TIMEOUT_MS,
    HASHES_WAITING_MAX,
    HASHES_WAITING_PER_USER_MAX,
    LOGINS_WAITING_MAX,
    LOGINS_WAITING_PER_ADDRESS_MAX,
    LOGINS_WAITING_TRUSTED_MAX,
    READ_DEADLINE_MS,
    SERVICE_STOP_GRACE_MS,
    SERVICE_THREADS_MAX,
    STAGE_PING_MS,
    STREAMS_PER_CONNECTION_MAX,
)
from viewstamp.telemetry import fields

logger: Final = logging.getLogger(__name__)

# Names under which the health service answers.
LIVENESS: Final = "liveness"
READINESS: Final = "readiness"

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", APPLY_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", APPLY_MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # The coordinator sends pings more often than gRPC allows by default.
    ("grpc.http2.min_ping_interval_without_data_ms", STAGE_PING_MS // 2),
    # Whoever connects and does not shake hands is closed.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    # Without this a second process would share the port silently.
    ("grpc.so_reuseport", 0),
)


class Fence:
    """Decides who may open a stream: one cluster, one replica, no coordinator older than known."""

    def __init__(self) -> None:
        """Know nobody yet."""
        self._owner: tuple[bytes, int] | None = None
        self._sequence = 0

    def admit(self, hello: pb.Hello) -> None:
        """Remember the caller. Raises StreamEnded if it may not open a stream."""
        if len(hello.cluster_id) != CLUSTER_ID_BYTES:
            raise StreamEnded(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"a cluster id has {CLUSTER_ID_BYTES} bytes, not {len(hello.cluster_id)}",
            )
        owner = hello.cluster_id, hello.replica_id
        if self._owner is not None and self._owner != owner:
            known_cluster, known_replica = self._owner
            raise StreamEnded(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this service belongs to replica {known_replica} of cluster "
                f"{known_cluster.hex()}, not to replica {hello.replica_id} of "
                f"{hello.cluster_id.hex()}: start one of its own",
            )
        if hello.coordinator_sequence < self._sequence:
            raise StreamEnded(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"coordinator {hello.coordinator_sequence} is fenced off: "
                f"{self._sequence} was here already",
            )
        self._owner = owner
        self._sequence = hello.coordinator_sequence

    @property
    def replica_id(self) -> int | None:
        """The replica that this service belongs to, None until a coordinator has come."""
        return None if self._owner is None else self._owner[1]

    def serves(self, coordinator_sequence: int) -> bool:
        """Return whether this is the coordinator admitted last."""
        return self._owner is not None and coordinator_sequence == self._sequence


class DomainServer(domain_service_pb2_grpc.DomainServiceServicer):
    """Serves one domain. `failure` is set to what made the machine unusable."""

    def __init__(self, domain: Domain[Any], watch: ApplyWatch | None = None) -> None:
        """Serve `domain`; tell `watch` of every batch. Raises ValueError if it is not whole."""
        self.failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.health = health.aio.HealthServicer()
        self._domain = domain
        self._watch = watch
        self._description = description_of(domain)
        self._fence = Fence()
        self._stream: ApplyStream | None = None
        self._batches = 0
        self._readings = 0
        # Separate, so that a long list of passwords to hash does not keep logins waiting.
        workers = min(SERVICE_THREADS_MAX, os.cpu_count() or 1)
        self._read_threads = FairThreads(
            "deferred-read",
            workers,
            places=LOGINS_WAITING_MAX,
            places_per_share=LOGINS_WAITING_PER_ADDRESS_MAX,
            trusted_places=LOGINS_WAITING_TRUSTED_MAX,
            patience_s=READ_DEADLINE_MS / 1000,
        )
        self._normalize_threads = FairThreads(
            "normalize",
            workers,
            places=HASHES_WAITING_MAX,
            places_per_share=HASHES_WAITING_PER_USER_MAX,
        )
        self._compress_threads = ThreadPoolExecutor(1, "section-compress")

    @property
    def batches(self) -> int:
        """The number of batches applied since the start, over all streams."""
        return self._batches + (self._stream.batches if self._stream is not None else 0)

    async def start(self, server: grpc.aio.Server) -> None:
        """Register with the gRPC server, start it, and say that the process lives."""
        domain_service_pb2_grpc.add_DomainServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        await self.health.set(LIVENESS, _SERVING)
        await self.health.set(READINESS, _NOT_SERVING)
        await server.start()

    async def stop(self, server: grpc.aio.Server) -> None:
        """End the stream, let short calls finish, and stop serving."""
        await self.health.enter_graceful_shutdown()
        if self._stream is not None:
            self._stream.end(grpc.StatusCode.UNAVAILABLE, "the service is stopping")
        await server.stop(SERVICE_STOP_GRACE_MS / 1000)
        self._read_threads.shutdown()
        self._normalize_threads.shutdown()
        self._compress_threads.shutdown(wait=False, cancel_futures=True)

    async def Describe(  # noqa: N802 - the RPC's name
        self, request: pb.DescribeRequest, context: Context
    ) -> pb.DescribeResponse:
        """Return what the service is."""
        await admit(context, self._fence.replica_id)
        return self._description

    async def Apply(  # type: ignore[override]  # noqa: N802 - it reads and writes by `context`
        self, request_iterator: Any, context: Context
    ) -> None:
        """Serve one stream of batches."""
        await admit(context, self._fence.replica_id)
        try:
            stream = self._open(await context.read(), context)
            try:
                await self.health.set(READINESS, _SERVING)
                await stream.serve()
            finally:
                await self._close(stream)
        except StreamEnded as end:
            logger.warning("an Apply stream was ended", extra=fields(reason=end.message))
            await context.abort(end.code, end.message)

    async def Normalize(  # noqa: N802 - the RPC's name
        self, request: pb.NormalizeRequest, context: Context
    ) -> pb.NormalizeResponse:
        """Return the loggable form of payloads."""
        await admit(context, self._fence.replica_id)
        stream = self._stream
        if stream is None or stream.is_installing:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "no Apply stream is open, so there is no state to read"
            )
        assert stream is not None  # abort raises
        try:
            return await self._normalize(stream.machine, request)
        except ApplyError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        except Refusal as refusal:  # as a whole: too much waits already
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal.message)
            raise
        except Exception as error:
            self._fail(error)
            await context.abort(grpc.StatusCode.INTERNAL, "the service is failing")
            raise
        finally:
            stream.log_alarms()

    async def ReadSection(  # noqa: N802 - the RPC's name
        self, request: pb.ReadSectionRequest, context: Context
    ) -> AsyncIterator[pb.ReadSectionResponse]:
        """Serve the section that a cut froze."""
        await admit(context, self._fence.replica_id)
        try:
            reading = self._reading(request)
            async for response in reading.responses():
                yield response
        except StreamEnded as end:
            await context.abort(end.code, end.message)
        except ReadingOvertaken as overtaken:
            await context.abort(grpc.StatusCode.ABORTED, str(overtaken))
        except EntryTooLargeError as error:  # nothing is wrong with the machine
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))
        except Exception as error:
            self._fail(error)
            await context.abort(grpc.StatusCode.INTERNAL, "the service is failing")

    def _reading(self, request: pb.ReadSectionRequest) -> SectionReading:
        """Begin to read a cut, in place of an earlier reading. Raises StreamEnded."""
        stream = self._stream
        if stream is None or not self._fence.serves(request.coordinator_sequence):
            raise StreamEnded(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"coordinator {request.coordinator_sequence} is not served here: "
                "open an Apply stream first",
            )
        freezer = stream.machine.freezer
        frozen = freezer.frozen
        if frozen is None or frozen.generation != request.generation:
            held = "none is" if frozen is None else f"{frozen.generation} is"
            raise StreamEnded(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"generation {request.generation} is not frozen here, {held}",
            )
        self._readings += 1
        number = self._readings
        return SectionReading(
            freezer,
            frozen,
            self._domain.section.version,
            self._compress_threads,
            lambda: (self._readings, self._stream) == (number, stream) and freezer.frozen is frozen,
        )

    async def _normalize(
        self, machine: Machine[Any], request: pb.NormalizeRequest
    ) -> pb.NormalizeResponse:
        plan = machine.normalize(request)
        threads, user = self._normalize_threads, str(request.user_id).encode()
        if not any(part.is_costly for part in plan.parts):
            return await threads.run(None, plan.run)
        parts = [
            asyncio.ensure_future(threads.run(user if part.is_costly else None, part.run))
            for part in plan.parts
        ]
        try:
            return plan.assemble(await asyncio.gather(*parts))
        finally:
            for part in parts:
                part.cancel()  # when one found no place, or the caller has gone

    def _open(self, request: Any, context: Context) -> ApplyStream:
        """Give the machine, empty, to a new stream. Raises StreamEnded if it may not have it."""
        if self.failure.done():
            raise StreamEnded(grpc.StatusCode.UNAVAILABLE, "the service is failing")
        if request is grpc.aio.EOF or request.WhichOneof("kind") != "hello":
            raise StreamEnded(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Hello")
        hello: pb.Hello = request.hello
        refusal = refusal_of(names_of(context), hello.replica_id)
        if refusal:
            raise StreamEnded(grpc.StatusCode.PERMISSION_DENIED, refusal)
        self._fence.admit(hello)
        self._domain.opened(hello.cluster_id)
        if self._stream is not None:
            message = f"coordinator {hello.coordinator_sequence} took over"
            self._stream.end(grpc.StatusCode.FAILED_PRECONDITION, message)
            self._batches += self._stream.batches
        logger.info(
            "an Apply stream is open",
            extra=fields(
                cluster_id=hello.cluster_id.hex(),
                replica_id=hello.replica_id,
                coordinator_sequence=hello.coordinator_sequence,
            ),
        )
        if self._watch is not None:
            self._watch.opened(hello)
        machine: Machine[Any] = Machine(self._domain)
        self._stream = ApplyStream(machine, context, self._read_threads, self._fail, self._watch)
        return self._stream

    async def _close(self, stream: ApplyStream) -> None:
        if self._stream is not stream:
            return  # another one took over
        self._batches += stream.batches
        self._stream = None
        await self.health.set(READINESS, _NOT_SERVING)

    def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            logger.critical("the machine cannot go on", exc_info=error)
            self.failure.set_result(error)
        if self._stream is not None:
            self._stream.end(grpc.StatusCode.INTERNAL, f"the service failed: {error}")


def new_server() -> grpc.aio.Server:
    """Return a gRPC server with the limits of the Apply stream."""
    return grpc_transport.make_server(_OPTIONS)
