"""A read that a replica does not answer in time is asked of another one, if there is one."""

from __future__ import annotations

import asyncio

import pytest

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.consistency import Consistency, at
from viewstamp.client.methods import method_of
from viewstamp.client.packing import PendingCall
from viewstamp.client.reads import ClientReads
from viewstamp.client.verdicts import RetryVerdict
from viewstamp.errors import Refusal
from viewstamp.framing import frame

DEADLINE_S = 1e9


PRESENT = Consistency(linearizable=True)


async def asked(
    *, has_others: bool, consistency: Consistency = PRESENT
) -> tuple[ClientReads, PendingCall]:
    """Return a set of reads with one question, and that question."""
    reads = ClientReads(lambda: has_others)
    request = streams_pb2.GetStreamRequest()
    future = asyncio.get_running_loop().create_future()
    call = PendingCall(method_of(request), frame(request.SerializeToString()), future, DEADLINE_S)
    reads.add(call, consistency)
    assert len(reads.next_requests()) == 1
    return reads, call


def late() -> submit_pb2.ReadReply:
    """Return the answer of a primary that does not hear its backups."""
    refusal = Refusal(Reason.REASON_READ_DEADLINE, "not answered within 5000 ms")
    return submit_pb2.ReadReply(read_id=1, error=refusal.to_answer())


async def test_a_late_read_is_asked_elsewhere() -> None:
    """The replica may be cut off: the read waits for the next connection, to another one."""
    reads, call = await asked(has_others=True)
    assert reads.on_reply(late()) is RetryVerdict.RECONNECT
    assert not call.future.done()
    reads.detach()
    (again,) = reads.next_requests()
    assert again.read.read_id == 2


async def test_a_late_read_of_the_only_replica_has_failed() -> None:
    """Without another replica the late read fails, and its caller decides."""
    reads, call = await asked(has_others=False)
    assert reads.on_reply(late()) is None
    with pytest.raises(Refusal, match="not answered within 5000 ms"):
        await call.future


async def test_a_late_read_of_the_past_has_failed() -> None:
    """Another replica would build that state from the beginning, so it is not asked by itself."""
    reads, call = await asked(has_others=True, consistency=at(7))
    assert reads.on_reply(late()) is None
    with pytest.raises(Refusal, match="not answered within 5000 ms"):
        await call.future


def test_revisions_begin_at_one() -> None:
    """There is no revision before the first command."""
    with pytest.raises(ValueError, match="revisions start at 1"):
        at(0)
    assert at(7).to_proto().at_revision == 7
