"""Streams between two ends: requests, answers, data beyond all windows, and the end of it.

Method: both ends are ours, or one is that of the h2 library; bytes are carried by hand.
"""

from __future__ import annotations

import pytest

from tests.viewstamp.http2.dialogue import (
    REQUEST,
    REQUEST_BLOCK,
    RESPONSE_BLOCK,
    TRAILERS,
    TRAILERS_BLOCK,
    Foreign,
    Http2End,
    converse,
    exchange,
    joined,
    pair,
)
from viewstamp.http2 import (
    DataReceived,
    ErrorCode,
    FieldsReceived,
    GoingAway,
    Limits,
    MessagePart,
    PingAnswered,
    QueueEmptied,
    Role,
    StreamClosed,
    StreamReset,
    write_block,
)

LARGE = bytes(range(256)) * 4_000
"""More than a window of a stream, and than the first window of a connection."""


def test_a_call_is_a_request_and_an_answer_with_trailers() -> None:
    """Fields and data arrive as they were sent, and nothing is kept of the stream."""
    client, server = pair()
    stream_id = client.connection.open(REQUEST_BLOCK)
    client.connection.send_data(stream_id, b"question", is_end=True)
    exchange(client, server)
    request, question = server.events[-2:]
    assert isinstance(request, FieldsReceived)
    assert request.section.pseudo == dict(REQUEST[:4])
    assert request.section.fields == REQUEST[4:]
    assert question == DataReceived(stream_id, b"question", is_end=True)
    server.connection.send_fields(stream_id, RESPONSE_BLOCK)
    server.connection.send_data(stream_id, b"answer")
    server.connection.send_trailers(stream_id, TRAILERS_BLOCK)
    exchange(client, server)
    response, answer, trailers = client.events[-3:]
    assert isinstance(response, FieldsReceived)
    assert isinstance(trailers, FieldsReceived)
    assert (response.section.part, response.is_end) == (MessagePart.RESPONSE, False)
    assert answer == DataReceived(stream_id, b"answer", is_end=False)
    assert (trailers.section.fields, trailers.is_end) == (TRAILERS, True)
    assert client.connection.streams == server.connection.streams == {}


def test_equal_blocks_are_one_section() -> None:
    """A request that is sent again is not decoded again."""
    client, server = pair()
    for _ in range(2):
        client.connection.open(REQUEST_BLOCK, is_end=True)
    exchange(client, server)
    first, second = (event.section for event in server.told(FieldsReceived))
    assert first is second


def test_data_wait_for_windows() -> None:
    """A megabyte passes as its receiver uses it, and never more than a window of it is unused."""
    limits = Limits(stream_window_bytes=10_000, window_bytes=70_000)
    client, server = pair(server=limits)
    stream_id = client.connection.open(REQUEST_BLOCK)
    assert not client.connection.send_data(stream_id, LARGE, is_end=True)
    used = 0
    while used < len(LARGE):
        exchange(client, server)
        unused = len(joined(server.told(DataReceived))) - used
        assert 0 < unused <= 10_000
        server.connection.give_back(stream_id, unused)
        used += unused
    assert joined(server.told(DataReceived)) == LARGE
    assert client.told(QueueEmptied) == [QueueEmptied(stream_id)]
    assert client.connection.waiting_bytes(stream_id) == 0


def test_streams_take_turns() -> None:
    """A small message does not wait for a large one that fills the window of the connection."""
    client, server = pair(server=Limits(stream_window_bytes=10**6, window_bytes=65_535))
    large, small = client.connection.open(REQUEST_BLOCK), client.connection.open(REQUEST_BLOCK)
    client.connection.send_data(large, LARGE)
    exchange(client, server)
    client.connection.send_data(small, b"small", is_end=True)
    exchange(client, server)
    assert server.told(DataReceived)[-1].stream_id == large
    server.connection.give_back(large, 40_000)
    exchange(client, server)
    assert DataReceived(small, b"small", is_end=True) in server.events
    assert client.connection.waiting_bytes(large) > 0


def test_a_reset_ends_a_stream_and_frees_what_waits() -> None:
    """The peer is told, frames under way are dropped, and their bytes may be sent again."""
    client, server = pair(server=Limits(stream_window_bytes=10_000))
    stream_id = client.connection.open(REQUEST_BLOCK)
    client.connection.send_data(stream_id, LARGE)
    server.hear(client.connection.output())
    server.connection.reset(stream_id, ErrorCode.CANCEL)
    server.connection.reset(stream_id, ErrorCode.CANCEL)
    exchange(client, server)
    assert client.told(StreamReset) == [StreamReset(stream_id, ErrorCode.CANCEL, True, "")]
    assert client.connection.streams == server.connection.streams == {}
    with pytest.raises(StreamClosed):
        client.connection.send_data(stream_id, b"more")


def test_a_server_that_goes_away_serves_what_is_under_way() -> None:
    """New streams are dropped in silence; the client learns the last one that is served."""
    client, server = pair()
    first = client.connection.open(REQUEST_BLOCK)
    exchange(client, server)
    server.connection.refuse_new()
    second = client.connection.open(REQUEST_BLOCK, is_end=True)
    exchange(client, server)
    assert client.told(GoingAway) == [GoingAway(first, ErrorCode.NO_ERROR, b"")]
    assert [event.stream_id for event in client.told(StreamReset)] == [second]
    client.connection.send_data(first, b"goes on", is_end=True)
    exchange(client, server)
    assert server.told(DataReceived) == [DataReceived(first, b"goes on", is_end=True)]
    assert len(server.told(FieldsReceived)) == 1


def test_a_ping_is_answered() -> None:
    """The payload of a ping comes back."""
    client, server = pair()
    client.connection.ping(b"12345678")
    exchange(client, server)
    assert client.told(PingAnswered) == [PingAnswered(b"12345678")]


def test_fields_longer_than_a_frame_arrive() -> None:
    """A block that needs three frames is read as one."""
    client, server = pair()
    field = (b"large", b"x" * 60_000)
    client.connection.open(write_block([*REQUEST, field]), is_end=True)
    exchange(client, server)
    assert field in server.told(FieldsReceived)[0].section.fields


# --- With another implementation ---


@pytest.mark.parametrize("message", [b"", b"question", LARGE], ids=["none", "small", "large"])
def test_a_foreign_client_is_served(message: bytes) -> None:
    """A client of h2 sends a message beyond its windows, and reads one back."""
    client, server = Foreign(is_client=True), Http2End(Role.SERVER)
    converse(server, client)
    client.connection.send_headers(1, REQUEST)
    left = message
    while left:
        size = min(client.connection.local_flow_control_window(1), 16_384, len(left))
        client.connection.send_data(1, left[:size])
        left = left[size:]
        used = len(server.told(DataReceived))
        converse(server, client)
        for part in server.told(DataReceived)[used:]:
            server.connection.give_back(1, len(part.data))
        converse(server, client)
    client.connection.end_stream(1)
    converse(server, client)
    assert joined(server.told(DataReceived)) == message
    server.connection.send_fields(1, RESPONSE_BLOCK)
    server.connection.send_data(1, message)
    server.connection.send_trailers(1, TRAILERS_BLOCK)
    acknowledged = 0
    while not client.told("StreamEnded"):
        converse(server, client)
        for part in client.told("DataReceived")[acknowledged:]:
            client.connection.acknowledge_received_data(part.flow_controlled_length, 1)
            acknowledged += 1
    assert joined(client.told("DataReceived")) == message
    assert [tuple(field) for field in client.told("TrailersReceived")[0].headers] == list(TRAILERS)


def test_a_foreign_server_answers() -> None:
    """Our client calls a server of h2, whose blocks fill a table and change it."""
    client, server = Http2End(Role.CLIENT), Foreign(is_client=False)
    converse(client, server)
    for number in range(20):
        stream_id = client.connection.open(REQUEST_BLOCK)
        client.connection.send_data(stream_id, b"question", is_end=True)
        converse(client, server)
        own = (b"number", b"%d" % (number % 7))
        server.connection.send_headers(stream_id, [(b":status", b"200"), own])
        server.connection.send_data(stream_id, b"answer")
        server.connection.send_headers(stream_id, [*TRAILERS, own], end_stream=True)
        converse(client, server)
        response, trailers = client.told(FieldsReceived)[-2:]
        assert response.section.fields == (own,)
        assert trailers.section.fields == (*TRAILERS, own)
    assert len(client.told(DataReceived)) == 20
    assert client.connection.streams == {}
