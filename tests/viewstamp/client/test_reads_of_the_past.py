"""Reads of the past: they never hold up those of the present, and show their revision or fail."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

import viewstamp
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency, at
from viewstamp.client.errors import ProtocolError
from viewstamp.client.methods import method_of
from viewstamp.client.packing import PendingCall
from viewstamp.client.reads import PAST_READS_IN_FLIGHT_MAX, READS_IN_FLIGHT_MAX, ClientReads
from viewstamp.client.verdicts import RETRIES_BEFORE_MOVING, RetryVerdict
from viewstamp.errors import Refusal
from viewstamp.framing import frame

DEADLINE_S: Final = 1e9
PATIENCE_S: Final = 20.0
REVISION: Final = 9
KINDS: Final = {"the present": LINEARIZABLE, "the past": at(REVISION)}


def add(
    reads: ClientReads, consistency: Consistency
) -> asyncio.Future[streams_pb2.GetStreamResponse]:
    """Queue a read, and return its result."""
    request = streams_pb2.GetStreamRequest()
    future = asyncio.get_running_loop().create_future()
    framed = frame(request.SerializeToString())
    reads.add(PendingCall(method_of(request), framed, future, DEADLINE_S), consistency)
    return future


def answer(asked: submit_pb2.SubmitRequest, revision: int) -> submit_pb2.ReadReply:
    """Return an answer at a revision."""
    results = frame(streams_pb2.GetStreamResponse().SerializeToString())
    return submit_pb2.ReadReply(
        read_id=asked.read.read_id,
        header=common_pb2.ResponseHeader(revision=revision),
        spans=[submit_pb2.SpanReply(results=results)],
    )


def overloaded(**details: object) -> Refusal:
    """Return a refusal that asks to try again."""
    return Refusal(Reason.REASON_OVERLOADED, "too much is under way", **details)


async def test_the_revision_that_was_asked_for() -> None:
    """An answer at the revision is delivered; an older build's, at another one, is an error."""
    reads = ClientReads()
    then, now = add(reads, at(REVISION)), add(reads, LINEARIZABLE)
    past, present = reads.next_requests()
    assert reads.on_reply(answer(past, REVISION + 1)) is None
    assert reads.on_reply(answer(present, REVISION + 1)) is None
    with pytest.raises(ProtocolError, match="asked for revision 9 it answered at 10"):
        await then
    assert (await now).header.revision == REVISION + 1
    then = add(reads, at(REVISION))
    (past,) = reads.next_requests()
    reads.on_reply(answer(past, REVISION))
    assert (await then).header.revision == REVISION


async def test_an_older_build_shows_no_present_as_the_past() -> None:
    """A build that knows no reads of the past answers at the newest revision: the caller hears."""
    async with (
        FakeGateway() as gateway,
        await viewstamp.connect(gateway.address, username="root", password=PASSWORD) as client,
    ):
        created = await client.streams.create("orders")
        revision = created.header.revision
        assert [each.name async for each in client.at(revision).streams.list()] == ["orders"]
        await client.streams.create("payments")
        with pytest.raises(ProtocolError, match="has no reads of the past"):
            await client.at(revision).streams.get("payments")


async def test_neither_kind_waits_for_the_other() -> None:
    """So many reads of the past as there may be leave room for all of the present."""
    reads = ClientReads()
    for revision in range(1, PAST_READS_IN_FLIGHT_MAX + 3):
        add(reads, at(revision))
    assert len(reads.next_requests()) == PAST_READS_IN_FLIGHT_MAX
    for _ in range(2 * READS_IN_FLIGHT_MAX):
        add(reads, LINEARIZABLE)
        reads.next_requests()
    # A break frees both windows.
    reads.detach()
    kinds = [request.read.consistency.WhichOneof("level") for request in reads.next_requests()]
    assert kinds.count("at_revision") == PAST_READS_IN_FLIGHT_MAX
    assert kinds.count("linearizable") > 0


@pytest.mark.parametrize("kind", KINDS)
async def test_silence_about_the_past_is_no_stall(kind: str) -> None:
    """The past may be long in coming, which does not mean that the replica is cut off."""
    reads = ClientReads()
    add(reads, KINDS[kind])
    reads.next_requests()
    assert reads.is_waiting is (kind == "the present")


async def test_an_answer_makes_room_for_its_kind() -> None:
    """Each answer about the past lets one more be asked."""
    reads = ClientReads()
    for revision in range(1, PAST_READS_IN_FLIGHT_MAX + 2):
        add(reads, at(revision))
    first, *_ = reads.next_requests()
    assert reads.is_past(first.read.read_id)
    reads.on_reply(answer(first, 1))
    (next_one,) = reads.next_requests()
    assert next_one.read.consistency.at_revision == PAST_READS_IN_FLIGHT_MAX + 1


@pytest.mark.parametrize(("paused", "other"), [tuple(KINDS), tuple(reversed(KINDS))])
async def test_a_pause_is_of_one_kind(paused: str, other: str) -> None:
    """What is refused for now about one kind pauses that kind alone, until it is resumed."""
    reads = ClientReads()
    add(reads, KINDS[paused])
    (asked,) = reads.next_requests()
    reply = submit_pb2.ReadReply(read_id=asked.read.read_id, error=overloaded().to_answer())
    assert reads.on_reply(reply) is RetryVerdict.RETRY
    add(reads, KINDS[other])
    (asked,) = reads.next_requests()
    assert reads.is_past(asked.read.read_id) is (other == "the past")
    reads.resume(is_past=other == "the past")
    assert reads.next_requests() == []
    reads.resume(is_past=paused == "the past")
    assert len(reads.next_requests()) == 1


def refuses_the_past(gateway: FakeGateway, refusal: Refusal, times: int) -> None:
    """Have the gateway refuse the next reads of the past."""
    left = [refusal] * times

    def refuse(request: Any) -> Refusal | None:
        is_read = isinstance(request, submit_pb2.ReadRequest)
        return left.pop() if left and is_read and request.consistency.at_revision else None

    gateway.refuse = refuse


async def test_an_overloaded_past_delays_no_present() -> None:
    """While the past is refused with a long delay, reads and commands of the present go on."""
    async with FakeGateway() as gateway, asyncio.timeout(PATIENCE_S):
        refuses_the_past(gateway, overloaded(retry_delay_ms=30_000), 1)
        async with await viewstamp.connect(
            gateway.address, username="root", password=PASSWORD
        ) as client:
            then = asyncio.ensure_future(client.at(1).streams.get("orders"))
            await gateway.until(lambda: bool(gateway.reads))
            await client.streams.create("orders")
            assert (await client.streams.get("orders")).name == "orders"
            assert not then.done()
            then.cancel()


async def test_an_overloaded_past_is_asked_again_there() -> None:
    """However often it is refused, the stream stays, since others would build it anew."""
    async with FakeGateway() as gateway, asyncio.timeout(PATIENCE_S):
        refuses_the_past(gateway, overloaded(), RETRIES_BEFORE_MOVING + 1)
        async with await viewstamp.connect(
            [gateway.address, "127.0.0.1:1"], username="root", password=PASSWORD
        ) as client:
            created = await client.streams.create("orders")
            then = client.at(created.header.revision)
            assert (await then.streams.get("orders")).name == "orders"
        assert gateway.streams_opened == 1


async def test_a_stream_of_answers_has_no_past() -> None:
    """Files of snapshots, say, are those of the present, so a client at a revision opens none."""
    async with (
        FakeGateway() as gateway,
        await viewstamp.connect(gateway.address, username="root", password=PASSWORD) as client,
    ):
        with pytest.raises(ValueError, match="about the present"):
            client.at(1).snapshots.verify()
