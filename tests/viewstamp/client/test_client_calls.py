"""The client against a real gRPC server: the callers' results, and the bytes on the wire."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.message import Message

import viewstamp
from tests.viewstamp.client.fake_gateway import (
    CLUSTER_ID,
    PASSWORD,
    PERSONAL_TOKEN,
    VIEW,
    FakeGateway,
)
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import STALE, CannotConnect, Client, ClientClosed, at_least
from viewstamp.client.identifiers import identifier
from viewstamp.client.link import PACKED_BYTES_MAX
from viewstamp.client.packing import CALLS_PER_REQUEST_MAX
from viewstamp.errors import Refusal


async def test_response_carries_its_header(client: Client, gateway: FakeGateway) -> None:
    """A lone call is one request of one command, answered with ids and position in the log."""
    response = await client.streams.create("orders")
    assert response.stream_id == 1
    assert response.header.cluster_id == CLUSTER_ID == client.cluster_id
    assert response.header.view == VIEW
    assert response.header.revision == client.session_id + 1
    assert [len(request.spans) for request in gateway.received] == [1]


async def test_concurrent_calls_are_packed_in_order(client: Client, gateway: FakeGateway) -> None:
    """Many calls become few messages, and keep the order in which they were made."""
    names = [f"stream-{index}" for index in range(300)]
    responses = await asyncio.gather(*(client.streams.create(name) for name in names))
    assert [response.stream_id for response in responses] == list(range(1, 301))
    revisions = [response.header.revision for response in responses]
    assert revisions == list(range(revisions[0], revisions[0] + 300))
    assert list(gateway.domain.streams) == names
    counts = [request.spans[0].count for request in gateway.received]
    assert sum(counts) == 300
    assert max(counts) <= CALLS_PER_REQUEST_MAX
    assert len(counts) <= 8


async def test_neighbours_of_one_method_share_a_span(client: Client, gateway: FakeGateway) -> None:
    """A span holds consecutive calls of one method; another method begins another span."""
    creations: list[Message] = [streams_pb2.CreateStreamRequest(name=name) for name in "abcd"]
    deletions: list[Message] = [
        streams_pb2.DeleteStreamRequest(stream=identifier(name)) for name in "abc"
    ]
    await client.batch(creations + deletions + creations[:1])
    shapes = [[(span.code, span.count) for span in r.spans] for r in gateway.received]
    assert shapes == [[(200, 4), (202, 3), (200, 1)]]
    assert gateway.domain.streams.keys() == {"a", "d"}


async def test_window_is_kept_and_answers_acknowledged(
    client: Client, gateway: FakeGateway
) -> None:
    """At most 8 requests are out, and each acknowledges the answers so far."""
    gateway.gate.clear()
    batches = [
        asyncio.ensure_future(client.batch([streams_pb2.CreateStreamRequest(name=f"s{index}")]))
        for index in range(20)
    ]
    await gateway.until(lambda: len(gateway.received) >= 8)
    # A ninth request would have gone before this read.
    read = asyncio.ensure_future(client.users.who_am_i())
    await gateway.until(lambda: bool(gateway.reads))
    assert [request.number for request in gateway.received] == list(range(1, 9))
    gateway.gate.set()
    await asyncio.gather(read, *batches)
    assert [request.number for request in gateway.received] == list(range(1, 21))
    assert all(r.number <= r.acked + 8 for r in gateway.received)
    assert gateway.received[-1].acked >= 12


async def test_requests_that_are_ready_together_share_a_message(
    client: Client, gateway: FakeGateway
) -> None:
    """Batches made at once are requests of their own in two messages, and so are their answers."""
    batches = [
        client.batch([streams_pb2.CreateStreamRequest(name=f"s{index}")]) for index in range(5)
    ]
    results = await asyncio.gather(*batches)
    assert gateway.packed_sizes == [3, 2]
    assert [request.number for request in gateway.received] == [1, 2, 3, 4, 5]
    assert list(gateway.domain.streams) == [f"s{index}" for index in range(5)]
    assert [len(responses) for responses in results] == [1, 1, 1, 1, 1]


async def test_large_requests_do_not_share_a_message(client: Client, gateway: FakeGateway) -> None:
    """A packed message stays below a size, whatever waits."""
    large = streams_pb2.CreateStreamRequest(name="x" * (PACKED_BYTES_MAX // 2))
    await asyncio.gather(*(client.batch([large]) for _ in range(3)))
    assert gateway.packed_sizes == [1, 1, 1]


async def test_errors_reach_the_caller_they_belong_to(client: Client, gateway: FakeGateway) -> None:
    """Of packed calls only the refused one raises, with reason and details."""
    names = ["a", "b", "a", "c"]
    results = await asyncio.gather(
        *(client.streams.create(name) for name in names), return_exceptions=True
    )
    refused = [index for index, result in enumerate(results) if isinstance(result, Refusal)]
    assert refused == [2]
    refusal = results[2]
    assert isinstance(refusal, Refusal)
    assert refusal.name == "STREAM_EXISTS"
    assert refusal.details["stream"] == "a"


async def test_secret_suffix_is_merged(client: Client) -> None:
    """The part of a result that only its caller may see is part of the response."""
    created = await asyncio.gather(*(client.tokens.create(f"token-{n}") for n in range(5)))
    assert [response.token for response in created] == [f"secret of token-{n}" for n in range(5)]


async def test_batch_is_one_request(client: Client, gateway: FakeGateway) -> None:
    """A batch travels whole; each of its commands succeeds or is refused by itself."""
    requests = [streams_pb2.CreateStreamRequest(name=f"s{index % 999}") for index in range(1000)]
    results = await client.batch(requests)
    assert [request.spans[0].count for request in gateway.received] == [1000]
    assert [index for index, result in enumerate(results) if isinstance(result, Refusal)] == [999]
    assert await client.batch([]) == []


async def test_batch_that_never_fits_is_refused_here(client: Client) -> None:
    """A batch beyond the limits is refused with numbers, and nothing is sent."""
    request = streams_pb2.CreateStreamRequest(name="x")
    with pytest.raises(Refusal, match="8190 commands") as caught:
        await client.batch([request] * 8191)
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
    with pytest.raises(Refusal, match="bytes"):
        await client.call(streams_pb2.CreateStreamRequest(name="x" * 300_000))
    with pytest.raises(TypeError, match="is a read"):
        await client.batch([streams_pb2.ListStreamsRequest()])
    with pytest.raises(TypeError, match="not the request"):
        await client.call(streams_pb2.CreateStreamResponse())


async def test_transaction_returns_responses_of_its_parts(
    client: Client, gateway: FakeGateway
) -> None:
    """A transaction is one command; its parts' responses share its header."""
    created, deleted = await client.transact(
        [
            streams_pb2.CreateStreamRequest(name="a"),
            streams_pb2.DeleteStreamRequest(stream=identifier("a")),
        ]
    )
    assert created.stream_id == 1
    assert created.header == deleted.header
    assert created.header.revision > 0
    assert sum(span.count for request in gateway.received for span in request.spans) == 1


async def test_transactions_share_no_span(client: Client, gateway: FakeGateway) -> None:
    """Concurrent transactions may share a request, but each has a span of its own."""
    parts = [[streams_pb2.CreateStreamRequest(name=f"s{index}")] for index in range(10)]
    await asyncio.gather(*(client.transact(part) for part in parts))
    counts = [span.count for request in gateway.received for span in request.spans]
    assert counts == [1] * len(parts)


async def test_reads_of_one_consistency_share_a_message(
    client: Client, gateway: FakeGateway
) -> None:
    """Reads are packed, too, never with another consistency, and return their revision."""
    created = await client.streams.create("orders")
    revision = created.header.revision
    levels = [STALE, at_least(revision)] * 20
    streams = await asyncio.gather(
        *(client.streams.get("orders", consistency=level) for level in levels)
    )
    assert {stream.id for stream in streams} == {1}
    kinds = [read.consistency.WhichOneof("level") for read in gateway.reads]
    assert set(kinds) == {"stale", "at_least_revision"}
    assert len(kinds) <= 16
    response = await client.call(streams_pb2.GetStreamRequest(stream=identifier(1)))
    assert response.header.revision == revision
    assert gateway.reads[-1].consistency.linearizable


async def test_reads_raise_their_own_errors(client: Client) -> None:
    """Of packed reads only the refused one raises."""
    await client.streams.create("orders")
    found, missing = await asyncio.gather(
        client.streams.get(1), client.streams.get("nothing"), return_exceptions=True
    )
    assert not isinstance(found, BaseException)
    assert isinstance(missing, Refusal)
    assert missing.name == "STREAM_NOT_FOUND"


async def test_lists_go_through_all_pages(client: Client, gateway: FakeGateway) -> None:
    """An iteration over a list fetches page after page."""
    await client.batch([streams_pb2.CreateStreamRequest(name=f"s{n}") for n in range(25)])
    names = [stream.name async for stream in client.streams.list(page_size=10)]
    assert names == [f"s{n}" for n in range(25)]
    assert sum(span.count for read in gateway.reads for span in read.spans) == 3


async def test_three_ways_to_prove_identity(gateway: FakeGateway) -> None:
    """Password, personal access token and access token all open a client."""
    ways = (
        {"username": "root", "password": PASSWORD},
        {"personal_access_token": PERSONAL_TOKEN},
        {"access_token": gateway.valid_token},
    )
    for way in ways:
        async with await viewstamp.connect(gateway.address, **way) as client:  # type: ignore[arg-type]
            assert (await client.users.who_am_i()).username == "root"
    assert gateway.logins == 2


async def test_wrong_password_is_told_at_once(gateway: FakeGateway) -> None:
    """Connecting with wrong credentials raises the cluster's refusal, without retrying."""
    with pytest.raises(Refusal) as caught:
        await viewstamp.connect(gateway.address, username="root", password="wrong")
    assert caught.value.name == "INVALID_CREDENTIALS"
    with pytest.raises(ValueError, match="exactly one"):
        await viewstamp.connect(gateway.address)


async def test_nobody_there_is_said_with_the_address() -> None:
    """If nothing listens, connecting fails in time and names the address."""
    with pytest.raises(CannotConnect, match=r"127\.0\.0\.1:1 "):
        await viewstamp.connect("127.0.0.1:1", access_token="x", connect_timeout_s=0.3)


async def test_close_ends_the_session(gateway: FakeGateway) -> None:
    """Closing ends the session after the outstanding calls; later calls are refused."""
    client = await viewstamp.connect(gateway.address, username="root", password=PASSWORD)
    outstanding = asyncio.ensure_future(client.streams.create("orders"))
    await asyncio.sleep(0)
    await client.close()
    assert (await outstanding).stream_id == 1
    assert isinstance(gateway.domain.requests[-1], sessions_pb2.EndSessionRequest)
    with pytest.raises(ClientClosed):
        await client.streams.create("late")


async def test_session_may_wait_for_the_first_command(gateway: FakeGateway) -> None:
    """With register_session False, reads need no session and the first command registers one."""
    async with await viewstamp.connect(
        gateway.address, username="root", password=PASSWORD, register_session=False
    ) as client:
        assert [stream async for stream in client.streams.list()] == []
        assert client.session_id == 0
        assert not gateway.sessions
        await client.streams.create("orders")
        assert client.session_id in gateway.sessions
