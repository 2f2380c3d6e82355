"""Builds with different texts of refusals: their replicas have the same state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc.aio
import pytest
from google.protobuf.message import Message

from tests.replicas import odd_texts
from tests.replicas.odd_texts import PREFIX
from tests.replicas.snapshotting import all_restart_from, snapshot
from tests.replicas.trial import STREAM, ReplicasTrial, agree, lead, trial, unary
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client.identifiers import identifier
from viewstamp.cluster import Program
from viewstamp.errors import Refusal, reason_name
from viewstamp.status import refusal_of

pytestmark = pytest.mark.long

ODD: Final = 2
# Versions of Python quote this name differently: only newer ones know a character as printable.
NAME: Final = "caf\u00e9 \U0001fae8 'quoted'"
MISSING: Final = identifier(NAME)

# A refused command of each domain and of the sessions stage, with its reason.
REFUSED: Final[tuple[tuple[Message, Reason.ValueType], ...]] = (
    (streams_pb2.DeleteStreamRequest(stream=MISSING), Reason.REASON_STREAM_NOT_FOUND),
    (streams_pb2.CreateStreamRequest(name=STREAM), Reason.REASON_STREAM_EXISTS),
    (users_pb2.DeleteUserRequest(user=MISSING), Reason.REASON_USER_NOT_FOUND),
    (users_pb2.CreateUserRequest(username="x"), Reason.REASON_INVALID_PASSWORD),
    (
        groups_pb2.DeleteConsumerGroupRequest(
            stream=identifier(STREAM), topic=identifier("t"), group=MISSING
        ),
        Reason.REASON_GROUP_NOT_FOUND,
    ),
    (
        snapshots_pb2.DeleteSnapshotRequest(generation=4_711),
        Reason.REASON_SNAPSHOT_NOT_FOUND,
    ),
)


def adapt(replica: int, program: Program) -> Program:
    """Give one replica's programs other texts."""
    if replica != ODD:
        return program
    words = list(program.command)
    words.insert(words.index("-m") + 1, odd_texts.__name__)
    return replace(program, command=tuple(words))


async def refuse_all(made: ReplicasTrial) -> list[Refusal]:
    """Send the refused commands in one request, whose reply is kept, and return the refusals."""
    results = await made.clients[1].batch([request for request, _ in REFUSED])
    refusals = [result for result in results if isinstance(result, Refusal)]
    assert [refusal.name for refusal in refusals] == [reason_name(why) for _, why in REFUSED]
    return refusals


async def words_of(made: ReplicasTrial, replica: int) -> str:
    """Return a replica's refusal of a read of something missing."""
    request = streams_pb2.GetStreamRequest(stream=MISSING)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(made.replicas, made.replicas.addresses[replica], request, stale=True)
    refusal = refusal_of(caught.value)
    assert refusal is not None and refusal.details["stream"] == NAME
    return refusal.message


@pytest.mark.exhaustive
async def test_builds_with_other_texts(tmp_path: Path) -> None:
    """Digests, snapshots and restarts agree; a caller gets the texts of the answering replica."""
    async with trial(tmp_path, callers=1, adapt=adapt) as made:
        topic = streams_pb2.CreateTopicRequest(
            stream=identifier(STREAM), name="t", partitions_count=1
        )
        await made.admin.call(topic)
        for is_odd in (False, True):
            await lead(made, ODD, leads=is_odd)
            refusals = await refuse_all(made)
            assert {refusal.message.startswith(PREFIX) for refusal in refusals} == {is_odd}
            await agree(made)
            cut = await snapshot(made.admin)
            await all_restart_from(made, cut.generation)
        assert [(await words_of(made, replica)).startswith(PREFIX) for replica in range(3)] == [
            replica == ODD for replica in range(3)
        ]
        await refuse_all(made)  # in the log after the snapshot, for a replay
        for replica in (ODD, 0):
            restarted = made.replicas.replicas[replica]
            await restarted.stop()
            await restarted.start()
            await made.replicas.wait_ready()
        await agree(made)
        last = await snapshot(made.admin)
        await all_restart_from(made, last.generation)
        assert [alarm for status in await made.settled() for alarm in status.alarms] == []
