"""What ends while a request is on its way: its stream, its session's stream, or room for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from coordinator.gateway.unary import UnaryCalls
from coordinator.replica.batcher import AnsweredSpan, Reply
from tests.coordinator.gateway.test_admission import CREATE_USER
from tests.coordinator.gateway.test_cluster_stage import (
    DIGESTS,
    GET_STATUS,
    ClusterStageTrial,
)
from tests.coordinator.gateway.test_stream_fences import Face, turns
from tests.coordinator.gateway.test_unary_deadline import (
    OF_A_SESSION,
    Nothing,
    UnaryCall,
    unary_calls,
)
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.limits import STATUS_DIGESTS_PER_USER_MAX

SUFFIX = b"for the caller alone"


async def test_a_request_whose_stream_ends_meanwhile_is_not_taken() -> None:
    """It was prepared for the log when this side ended the stream, whose client does not read."""
    face = Face()
    async with face.stream() as stream:
        face.world.normalized.clear()
        stream.may_write.clear()
        stream.send(0)  # it is refused, and the answer is not read
        await turns()
        stream.send(1, code=CREATE_USER)
        await turns()
        face.streams.end_all(Refusal(Reason.REASON_VIEW_CHANGE, "moved"))
        face.world.normalized.set()
        await turns()
        assert face.logged == []
        stream.may_write.set()
        await turns()
        assert stream.ended_with == "VIEW_CHANGE"


class AnsweringLog(Nothing):
    """A log that answers at once."""

    async def admit(self, *_: object) -> Any:
        """Return the reply, and what only the caller may see."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        future.set_result(Reply(1, 2, 3, (AnsweredSpan(frame(b""), ()),)))
        return SimpleNamespace(future=future, suffixes=({0: SUFFIX},))


async def test_a_command_of_a_session_is_answered_without_a_stream() -> None:
    """Its reply ends with what the log does not hold."""
    calls: UnaryCalls = unary_calls(AnsweringLog())
    call: Any = UnaryCall(OF_A_SESSION)
    answer = await calls.serve("/test.Service/Method", b"", call)
    assert answer.endswith(SUFFIX)


async def test_digests_beyond_a_share_are_refused_at_once() -> None:
    """They do not wait with those that are walked for."""
    world = ClusterStageTrial()
    for _ in range(STATUS_DIGESTS_PER_USER_MAX):
        assert world.ask(GET_STATUS, DIGESTS).deferred
    refused = world.ask(GET_STATUS, DIGESTS)
    assert not refused.deferred
    (error,) = refused.errors
    assert errors_pb2.Error.FromString(error.error).reason == Reason.REASON_QUOTA_EXCEEDED
