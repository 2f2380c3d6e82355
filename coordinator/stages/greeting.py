"""The beginning of an Apply stream: a coordinator says who it is, and a service takes it or not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from viewstamp import limits
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2


@dataclass(frozen=True, slots=True)
class CoordinatorIdentity:
    """Who this coordinator is, for the services to fence older ones."""

    cluster_id: bytes
    replica_id: int
    coordinator_sequence: int


def hello_of(identity: CoordinatorIdentity) -> bytes:
    """Return the first message of a stream."""
    hello = domain_pb2.Hello(
        cluster_id=identity.cluster_id,
        replica_id=identity.replica_id,
        coordinator_sequence=identity.coordinator_sequence,
    )
    return domain_pb2.ApplyRequest(hello=hello).SerializeToString()


async def read_hello_reply(call: Any) -> None:
    """Read the answer to the hello. `wait_for` would lose a cancellation that comes with it."""
    async with asyncio.timeout(limits.STAGE_TIMEOUT_MS / 1000):
        message = await call.read()
    if message is grpc.aio.EOF:
        # Reading the status raises the error with which the service ended the stream.
        await call.read()
        raise TimeoutError
