"""Linearizable reads of real backups: each answers itself, and no answer is outdated."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from coordinator.gateway.forwarding import FORWARDED_KEY
from testkit.oracles.history import Operation
from tests.replicas.trial import KEYS, STREAM, ReplicasTrial, token_of, trial, under_load
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import Endpoint
from viewstamp.client.identifiers import identifier
from viewstamp.client.methods import method_of
from viewstamp.client.transport import bearer
from viewstamp.cluster.local import COORDINATOR
from viewstamp.errors import reason_name
from viewstamp.status import refusal_of

pytestmark = pytest.mark.long

READS: Final = 150
CALL_TIMEOUT_S: Final = 20
# These callers read at one replica; others are part of the load.
CALLERS_FROM: Final = 100


class Reader:
    """Reads topics at one replica, which must not forward the reads."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        # A forwarded call is not forwarded again: so the replica must answer itself.
        self._metadata = (*bearer(token), (FORWARDED_KEY, "1"))
        self._channel = channel

    async def exists(self, key: str) -> tuple[bool, int | None]:
        """Return whether a topic exists, and at which revision this is so. Raises AioRpcError."""
        request = streams_pb2.GetTopicRequest(stream=identifier(STREAM), topic=identifier(key))
        method = method_of(request)
        stub: Any = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            found = await stub(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            return False, None
        return True, found.header.revision


@asynccontextmanager
async def reader_at(made: ReplicasTrial, replica: int) -> AsyncIterator[Reader]:
    """Return a reader of one replica, as root."""
    async with Endpoint(made.replicas.addresses[replica]).open() as channel:
        yield Reader(channel, await token_of(made.replicas, channel))


async def read_on(made: ReplicasTrial, replica: int, reader: Reader, wanted: int) -> None:
    """Read until so many reads were answered, and record each."""
    chosen = random.Random(replica)
    while wanted:
        key = chosen.choice(KEYS)
        called_at = time.monotonic_ns()
        try:
            exists, revision = await reader.exists(key)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error
            await asyncio.sleep(0.05)  # a refusal during a view change
            continue
        operation = Operation(
            *(CALLERS_FROM + replica, "read", key, called_at),
            *(time.monotonic_ns(), exists, revision),
        )
        made.history.append((key, operation))
        wanted -= 1


async def test_reads_of_every_replica_are_linearizable(tmp_path: Path) -> None:
    """Each replica answers its own reads, and one history explains all, even over a step-down."""
    async with trial(tmp_path) as made:
        async with (
            reader_at(made, 0) as first,
            reader_at(made, 1) as second,
            reader_at(made, 2) as third,
            under_load(made),
        ):
            for _ in range(2):
                async with asyncio.TaskGroup() as group:
                    for replica, reader in enumerate((first, second, third)):
                        group.create_task(read_on(made, replica, reader, READS))
                    await made.admin.step_down()
        await made.settled()
        assert made.violations() == []


async def test_a_backup_that_is_alone_says_where_to_read(tmp_path: Path) -> None:
    """Without a quorum there is no read index: the deadline sends the caller to the primary."""
    async with trial(tmp_path, callers=0) as made:
        primary = await made.primary()
        backup = (primary + 1) % 3
        others = [replica for replica in range(3) if replica != backup]
        async with reader_at(made, backup) as reader:
            await reader.exists(KEYS[0])
            for other in others:
                made.replicas.replicas[other].kill(COORDINATOR, signal.SIGSTOP)
            try:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await reader.exists(KEYS[0])
            finally:
                for other in others:
                    made.replicas.replicas[other].kill(COORDINATOR, signal.SIGCONT)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            refusal = refusal_of(caught.value)
            assert refusal is not None
            assert refusal.name == reason_name(Reason.REASON_NOT_PRIMARY)
            assert refusal.details["address"] == made.replicas.addresses[primary]
