"""The client while streams break, sessions end, tokens expire and the cluster is busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import viewstamp
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client import (
    CannotConnect,
    Client,
    Endpoint,
    OutcomeUnknown,
    RawSession,
    TimedOut,
    link,
    lookout,
)
from viewstamp.client.transport import HINTS_IN_A_ROW_MAX, Endpoints
from viewstamp.errors import Refusal
from viewstamp.framing import frame


def create(name: str) -> streams_pb2.CreateStreamRequest:
    """Return a request to create a stream."""
    return streams_pb2.CreateStreamRequest(name=name)


def refuse_times(times: int, refusal: Refusal) -> Callable[[Any], Refusal | None]:
    """Return a fault that refuses so many times, then no more."""
    left = [times]

    def decide(_: Any) -> Refusal | None:
        left[0] -= 1
        return refusal if left[0] >= 0 else None

    return decide


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("fault", ["drop_before", "drop_after"])
async def test_broken_stream_loses_and_repeats_nothing(
    client: Client, gateway: FakeGateway, fault: str, number: int
) -> None:
    """Whether a request was lost or its answer was, each command takes effect exactly once."""
    getattr(gateway, fault).append(number)
    batches = [[create(f"{batch}-{index}") for index in range(3)] for batch in range(12)]
    results = await asyncio.gather(*(client.batch(batch) for batch in batches))
    ids = [result.stream_id for batch in results for result in batch]  # type: ignore[union-attr]
    assert ids == list(range(1, 37))
    assert len(gateway.applied) == 36
    assert gateway.streams_opened == 2
    assert len(gateway.sessions) == 1


async def test_many_breaks_in_a_row_lose_nothing(client: Client, gateway: FakeGateway) -> None:
    """Packed calls survive a stream that breaks again and again, each exactly once."""
    gateway.drop_after = [1, 2, 3, 4]
    gateway.drop_before = [2, 3, 5]
    rounds = [
        await asyncio.gather(*(client.streams.create(f"{step}-{n}") for n in range(40)))
        for step in range(4)
    ]
    assert sorted(r.stream_id for responses in rounds for r in responses) == list(range(1, 161))
    assert len(gateway.applied) == 160


async def test_reads_are_asked_again_after_a_break(client: Client, gateway: FakeGateway) -> None:
    """A read whose stream broke is answered over the next one."""
    gateway.gate.clear()
    read = asyncio.ensure_future(client.users.who_am_i())
    await gateway.until(lambda: bool(gateway.reads))
    gateway.break_streams()
    gateway.gate.set()
    assert (await read).username == "root"


async def test_busy_cluster_is_asked_again_under_the_same_number(
    client: Client, gateway: FakeGateway
) -> None:
    """A request refused for now, and those after it that found a gap, are sent again in order."""
    gateway.refuse = refuse_times(2, Refusal(Reason.REASON_OVERLOADED, "try again"))
    results = await asyncio.gather(*(client.batch([create(f"s{index}")]) for index in range(10)))
    assert [result[0].stream_id for result in results] == list(range(1, 11))  # type: ignore[union-attr]
    assert len(gateway.applied) == 10
    assert gateway.streams_opened == 1


async def test_a_told_delay_is_kept(client: Client, gateway: FakeGateway) -> None:
    """A delayed request comes again under its number, not earlier nor elsewhere."""
    quota = Refusal(Reason.REASON_QUOTA_EXCEEDED, "too much", retry_delay_ms=200)
    gateway.refuse = refuse_times(2, quota)
    clock = asyncio.get_running_loop().time
    began_s = clock()
    assert (await client.streams.create("patient")).stream_id == 1
    assert clock() - began_s >= 0.4
    assert (gateway.streams_opened, {r.number for r in gateway.received}) == (1, {1})


async def test_read_waits_for_a_restarting_domain(client: Client, gateway: FakeGateway) -> None:
    """A read that is refused for now is asked again until it is answered."""
    gateway.refuse = refuse_times(3, Refusal(Reason.REASON_DOMAIN_RESTARTING, "restarting"))
    assert (await client.users.who_am_i()).username == "root"
    assert len(gateway.reads) == 4


async def test_request_refused_for_good_leaves_no_gap(client: Client, gateway: FakeGateway) -> None:
    """A refused request's number is used by the next one, so those behind it are not stuck."""

    def refuse_marked(request: Any) -> Refusal | None:
        is_marked = any(b"unwanted" in span.items for span in request.spans)
        return Refusal(Reason.REASON_NO_SPACE, "disk is full") if is_marked else None

    gateway.refuse = refuse_marked
    names = ["a", "unwanted-1", "b", "unwanted-2", "c", "d"]
    results = await asyncio.gather(
        *(client.batch([create(name)]) for name in names), return_exceptions=True
    )
    refused = [name for name, r in zip(names, results, strict=True) if isinstance(r, Refusal)]
    assert refused == ["unwanted-1", "unwanted-2"]
    assert list(gateway.domain.streams) == ["a", "b", "c", "d"]
    assert (await client.streams.create("e")).stream_id == 5
    assert len(gateway.sessions) == 1


async def test_one_bad_command_does_not_spoil_its_neighbours(
    client: Client, gateway: FakeGateway
) -> None:
    """If a packed request is refused for its content, each call is tried by itself."""

    def refuse_marked(request: Any) -> Refusal | None:
        is_marked = any(b"unwanted" in span.items for span in request.spans)
        return Refusal(Reason.REASON_UNIMPLEMENTED, "unknown") if is_marked else None

    gateway.refuse = refuse_marked
    names = ["a", "b", "unwanted", "c", "d", "e"]
    results = await asyncio.gather(
        *(client.streams.create(name) for name in names), return_exceptions=True
    )
    refused = [name for name, r in zip(names, results, strict=True) if isinstance(r, Refusal)]
    assert refused == ["unwanted"]
    assert gateway.domain.streams.keys() == {"a", "b", "c", "d", "e"}


async def test_ended_session_is_told_and_replaced(client: Client, gateway: FakeGateway) -> None:
    """A call on an ended session is refused as not applied; the next one has a new session."""
    old = client.session_id
    gateway.evict_all()
    with pytest.raises(Refusal) as caught:
        await client.streams.create("a")
    assert caught.value.name == "SESSION_EVICTED"
    assert "outcome" not in caught.value.details
    assert (await client.streams.create("b")).stream_id == 1
    assert client.session_id not in (0, old)


async def test_session_that_ends_during_a_break_leaves_the_outcome_unknown(
    client: Client, gateway: FakeGateway
) -> None:
    """A command sent before its session ended may have taken effect, and the refusal says so."""
    gateway.gate.clear()
    sent = asyncio.ensure_future(client.streams.create("a"))
    await gateway.until(lambda: bool(gateway.received))
    gateway.evict_all()
    gateway.break_streams()
    with pytest.raises(Refusal, match="request number 1") as caught:
        await sent
    assert caught.value.name == "SESSION_EVICTED"
    assert caught.value.details["outcome"] == "unknown"
    gateway.gate.set()
    assert (await client.streams.create("b")).stream_id == 2


async def test_registration_is_repeated_with_the_same_nonce(gateway: FakeGateway) -> None:
    """If the answer to a registration is lost, repeating it yields the same session."""
    gateway.drop_registrations = 2
    async with await viewstamp.connect(
        gateway.address, username="root", password=PASSWORD
    ) as client:
        assert list(gateway.sessions) == [client.session_id]


async def test_expired_token_is_renewed(client: Client, gateway: FakeGateway) -> None:
    """When the token is refused, the client logs in again and goes on in the same session."""
    session_id = client.session_id
    gateway.valid_token = "access-1"
    gateway.break_streams()
    assert (await client.streams.create("a")).stream_id == 1
    assert gateway.logins == 2
    assert client.session_id == session_id


async def test_token_that_cannot_be_renewed_fails_calls(gateway: FakeGateway) -> None:
    """Without credentials, calls are refused once the token is, instead of waiting for ever."""
    async with await viewstamp.connect(gateway.address, access_token="access-0") as client:
        gateway.valid_token = "access-1"
        gateway.break_streams()
        for _ in range(2):
            with pytest.raises(Refusal) as caught:
                await client.users.who_am_i()
            assert caught.value.name == "UNAUTHENTICATED"


async def test_deadline_before_sending_changed_nothing(
    client: Client, gateway: FakeGateway
) -> None:
    """A call that timed out unsent says that it changed nothing, and is not sent later."""
    gateway.gate.clear()
    window = [asyncio.ensure_future(client.batch([create(f"s{n}")])) for n in range(8)]
    await gateway.until(lambda: len(gateway.received) == 8)
    with pytest.raises(TimedOut, match="changed nothing"):
        await client.call(create("late"), timeout_s=0.01)
    gateway.gate.set()
    await asyncio.gather(*window)
    await client.streams.create("after")
    assert "late" not in gateway.domain.streams


async def test_deadline_after_sending_names_the_request(
    client: Client, gateway: FakeGateway
) -> None:
    """A call that timed out after it was sent names session and request; others go on."""
    gateway.gate.clear()
    sent = asyncio.ensure_future(client.call(create("a"), timeout_s=0.05))
    with pytest.raises(OutcomeUnknown, match="request number 1") as caught:
        await sent
    assert caught.value.session_id == client.session_id
    assert caught.value.request_number == 1
    gateway.gate.set()
    assert (await client.streams.create("b")).stream_id == 2


async def test_cancelled_call_does_not_disturb_others(client: Client) -> None:
    """A caller that leaves does not affect its neighbours in the same request."""
    calls = [asyncio.ensure_future(client.streams.create(f"s{n}")) for n in range(4)]
    await asyncio.sleep(0)
    calls[1].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [
        False,
        True,
        False,
        False,
    ]


async def test_answer_that_cannot_be_read_fails_the_call(
    client: Client, gateway: FakeGateway
) -> None:
    """Results that do not match the calls are an error of the protocol, never a wrong result."""
    original = gateway.span
    gateway.span = lambda method, items: original(method, items[:-1])  # type: ignore[method-assign]
    with pytest.raises(viewstamp.client.ProtocolError, match="0 results answer 1"):
        await client.streams.create("a")


async def test_raw_session_gets_the_same_bytes_twice(gateway: FakeGateway) -> None:
    """A request sent twice under one number, even over two streams, has byte-equal answers."""
    endpoint = Endpoint(gateway.address)
    span = submit_pb2.Span(code=200, count=1, items=frame(create("a").SerializeToString()))
    async with RawSession(endpoint, "access-0") as session:
        first = await session.submit_request(1, 0, [span])
        again = await session.submit_request(1, 0, [span])
    async with RawSession(endpoint, "access-0", session_id=session.session_id) as reopened:
        assert reopened.last_request_number == 1
        later = await reopened.submit_request(1, 0, [span])
    assert first.encoded == again.encoded == later.encoded
    assert len(gateway.applied) == 1


async def test_silent_replica_is_left_for_another(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary cut off from its backups answers nothing: the same request goes to another one."""
    monkeypatch.setattr(link, "STALL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(link, "STALL_CHECK_S", 0.01)
    monkeypatch.setattr(link, "LOOK_ELSEWHERE_S", 1000)
    async with FakeGateway() as other:
        other.sessions, other.nonces = gateway.sessions, gateway.nonces
        addresses = (gateway.address, other.address)
        async with await viewstamp.connect(addresses, username="root", password=PASSWORD) as client:
            gateway.gate.clear()
            sent = asyncio.ensure_future(client.streams.create("orders"))
            await other.until(lambda: other.streams_opened > 0)
            monkeypatch.setattr(link, "STALL_TIMEOUT_S", 1000)  # this one may be slow
            await sent
            assert [len(replica.received) for replica in (gateway, other)] == [1, 1]
            gateway.gate.set()


def not_primary(address: str) -> Refusal:
    """Return the hint of a backup that takes another replica for the primary."""
    return Refusal(Reason.REASON_NOT_PRIMARY, "send commands there", address=address)


async def test_a_replaced_stream_is_opened_again_at_the_same_replica(gateway: FakeGateway) -> None:
    """The primary says so, of a request or of a stream: there is no reason to ask others for it."""
    replaced = Refusal(Reason.REASON_STREAM_REPLACED, "a newer stream was opened")
    async with FakeGateway() as other:
        addresses = (gateway.address, other.address)
        async with await viewstamp.connect(addresses, username="root", password=PASSWORD) as client:
            gateway.refuse = refuse_times(1, replaced)
            gateway.refuse_next_streams = [replaced]
            assert (await client.streams.create("orders")).stream_id == 1
            assert (gateway.streams_opened, other.streams_opened) == (3, 0)


async def test_silent_replica_is_left_at_once_if_another_one_leads(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary that was cut off is left once its successor says that it leads."""
    monkeypatch.setattr(link, "STALL_CHECK_S", 0.01)
    monkeypatch.setattr(link, "LOOK_ELSEWHERE_S", 0.05)
    monkeypatch.setattr(link, "STALL_TIMEOUT_S", 1000)
    async with FakeGateway() as backup, FakeGateway() as successor:
        backup.refuse_streams = not_primary(gateway.address)
        successor.sessions, successor.nonces = gateway.sessions, gateway.nonces
        addresses = (gateway.address, backup.address, successor.address)
        async with await viewstamp.connect(addresses, username="root", password=PASSWORD) as client:
            gateway.gate.clear()
            sent = asyncio.ensure_future(client.streams.create("orders"))
            await gateway.until(lambda: len(gateway.received) > 0)
            gateway.refuse_streams = not_primary(successor.address)  # that one may be slow, too
            await sent
            assert [len(each.received) for each in (gateway, backup, successor)] == [1, 0, 1]
            gateway.gate.set()


async def test_slow_primary_is_not_left(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no other replica leads, a slow primary's answer is awaited, and nothing is sent
    again."""
    monkeypatch.setattr(link, "STALL_CHECK_S", 0.01)
    monkeypatch.setattr(link, "LOOK_ELSEWHERE_S", 0.05)
    monkeypatch.setattr(link, "STALL_TIMEOUT_S", 1000)
    async with FakeGateway() as backup:
        backup.refuse_streams = not_primary(gateway.address)
        addresses = (gateway.address, backup.address)
        async with await viewstamp.connect(addresses, username="root", password=PASSWORD) as client:
            gateway.gate.clear()
            sent = asyncio.ensure_future(client.streams.create("orders"))
            await backup.until(lambda: backup.streams_opened > 2)
            gateway.gate.set()
            await sent
            assert (gateway.streams_opened, len(gateway.received)) == (1, 1)


async def test_slow_primary_is_not_left_for_one_that_was_cut_off(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that answers no linearizable read could wrongly say that the session has ended."""
    monkeypatch.setattr(link, "STALL_CHECK_S", 0.01)
    monkeypatch.setattr(link, "LOOK_ELSEWHERE_S", 0.05)
    monkeypatch.setattr(link, "STALL_TIMEOUT_S", 1000)
    monkeypatch.setattr(lookout, "LOOK_TIMEOUT_S", 0.2)
    async with FakeGateway() as former:
        former.has_quorum = False
        addresses = (gateway.address, former.address)
        async with await viewstamp.connect(addresses, username="root", password=PASSWORD) as client:
            gateway.gate.clear()
            sent = asyncio.ensure_future(client.streams.create("orders"))
            await former.until(lambda: former.streams_opened > 2)
            gateway.gate.set()
            await sent
            assert (gateway.streams_opened, len(gateway.received)) == (1, 1)


async def test_two_replicas_that_name_each_other_are_left(gateway: FakeGateway) -> None:
    """Backups that were cut off at different times name each other as the primary for ever."""
    async with FakeGateway() as first, FakeGateway() as second:
        first.refuse_streams = not_primary(second.address)
        second.refuse_streams = not_primary(first.address)
        for other in (first, second):
            other.sessions, other.nonces = gateway.sessions, gateway.nonces
        addresses = (first.address, second.address, gateway.address)
        async with await viewstamp.connect(addresses, username="root", password=PASSWORD) as client:
            await client.streams.create("orders")
            assert [len(each.applied) for each in (first, second, gateway)] == [0, 0, 1]


def test_hints_that_led_to_a_primary_do_not_count() -> None:
    """After two hints in a row the client returns to the list, unless a stream opened between."""
    endpoints = Endpoints(["first:1", "second:1"])
    for _ in range(2 * HINTS_IN_A_ROW_MAX):
        endpoints.advance("named:1")
        assert endpoints.current.address == "named:1"
        endpoints.reached()
    for address in [*(HINTS_IN_A_ROW_MAX * ["named:1"]), "second:1"]:
        endpoints.advance("named:1")
        assert endpoints.current.address == address


async def test_a_primary_that_cannot_be_reached_is_named(gateway: FakeGateway) -> None:
    """If a replica names an unreachable primary, the error says so, not only that nobody
    answers."""
    gateway.refuse_streams = not_primary("127.0.0.1:1")
    with pytest.raises(CannotConnect, match=r"the primary is at 127\.0\.0\.1:1, .*nothing listens"):
        await viewstamp.connect(
            gateway.address, username="root", password=PASSWORD, connect_timeout_s=1
        )
