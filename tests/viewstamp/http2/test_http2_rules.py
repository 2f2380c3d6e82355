"""The rules of RFC 9113: what breaks one, and what the peer is told.

Method: a table. Each row has the section of the RFC, what a client sends after its settings, and
what the server makes of it: an end of the connection, of a stream, or nothing.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest

from tests.viewstamp.http2.dialogue import (
    REQUEST,
    REQUEST_BLOCK,
    RESPONSE_BLOCK,
    TRAILERS_BLOCK,
    Http2End,
    pair,
)
from viewstamp.http2 import (
    ConnectionFailed,
    ErrorCode,
    FieldsReceived,
    Limits,
    Role,
    StreamReset,
    write_block,
)
from viewstamp.http2.frames import (
    ACK,
    CONNECTION,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MIN,
    HEAD,
    HEAD_BYTES,
    PADDED,
    PREFACE,
    PRIORITY,
    Kind,
    frame,
    reset_frame,
    window_frame,
)

WHOLE = END_HEADERS | END_STREAM


(
    data,
    headers,
    priority,
    rst_stream,
    settings,
    push_promise,
    ping,
    goaway,
    window_update,
    continuation,
) = (partial(frame, kind) for kind in Kind)
OPENED = headers(END_HEADERS, 1, REQUEST_BLOCK)
ENDED = headers(WHOLE, 1, REQUEST_BLOCK)
SETTINGS = settings(0, CONNECTION)


def setting(number: int, value: int) -> bytes:
    """Return settings with one in them."""
    return settings(0, 0, number.to_bytes(2, "big") + value.to_bytes(4, "big"))


def request(*fields: tuple[bytes, bytes], without: bytes = b"") -> bytes:
    """Return a request with other fields."""
    kept = [field for field in REQUEST if field[0] != without]
    return headers(WHOLE, 1, write_block([*kept, *fields]))


def ordered(*fields: tuple[bytes, bytes]) -> bytes:
    """Return a request with these fields alone."""
    return headers(WHOLE, 1, write_block(fields))


class Breach(NamedTuple):
    """What comes, and what is made of it: `of` is the connection (0), a stream, or None."""

    section: str
    what: str
    sent: bytes
    code: ErrorCode | None = None
    of: int | None = CONNECTION


PROTOCOL = ErrorCode.PROTOCOL_ERROR
SIZE = ErrorCode.FRAME_SIZE_ERROR
FLOW = ErrorCode.FLOW_CONTROL_ERROR
CLOSED = ErrorCode.STREAM_CLOSED
COMPRESSION = ErrorCode.COMPRESSION_ERROR
REFUSED = ErrorCode.REFUSED_STREAM
RULES = (
    Breach("4.2", "a frame is too large", data(0, 1, bytes(FRAME_BYTES_MIN + 1)), SIZE),
    Breach("4.3", "a block cannot be read", headers(WHOLE, 1, b"\x80"), COMPRESSION),
    Breach("4.3", "a block is cut off", headers(WHOLE, 1, REQUEST_BLOCK[:-1]), COMPRESSION),
    Breach(
        "4.3", "a table grows beyond what we allow", headers(WHOLE, 1, b"\x3f\xe2\x1f"), COMPRESSION
    ),
    Breach("5.1", "data on an idle stream", data(0, 1, b"x"), PROTOCOL),
    Breach("5.1", "a reset of an idle stream", reset_frame(1, 8), PROTOCOL),
    Breach("5.1", "a window of an idle stream", window_frame(1, 1), PROTOCOL),
    Breach("5.1", "data after the end", ENDED + data(0, 1, b"x"), CLOSED, 1),
    Breach("5.1", "fields after the end", ENDED + ENDED, CLOSED, 1),
    Breach("5.1", "a window after the end", ENDED + window_frame(1, 1), None, None),
    Breach("5.1.1", "a stream of the server's", headers(WHOLE, 2, REQUEST_BLOCK), PROTOCOL),
    Breach("5.1.1", "a stream that was skipped", headers(WHOLE, 3, REQUEST_BLOCK) + ENDED, CLOSED),
    Breach("5.1.2", "one stream too many", OPENED + headers(WHOLE, 3, REQUEST_BLOCK), REFUSED, 3),
    Breach("5.5", "a frame of an unknown kind", frame(0xFB, 0xFF, 7, b"whatever"), None, None),
    Breach("6.1", "data of the connection", data(0, 0, b"x"), PROTOCOL),
    Breach(
        "6.1", "data that are all padding", OPENED + data(PADDED, 1, b"\x02\x00\x00"), None, None
    ),
    Breach("6.1", "more padding than data", OPENED + data(PADDED, 1, b"\x03\x00\x00"), PROTOCOL),
    Breach("6.1", "padding without a length", OPENED + data(PADDED, 1), PROTOCOL),
    Breach("6.2", "fields of the connection", headers(WHOLE, 0, REQUEST_BLOCK), PROTOCOL),
    Breach("6.2", "a block is interrupted", headers(0, 1, b"") + SETTINGS, PROTOCOL),
    Breach("6.2", "a priority is cut off", headers(WHOLE | PRIORITY, 1, b"\0\0\0\0"), SIZE),
    Breach(
        "6.2",
        "a priority before fields",
        headers(WHOLE | PRIORITY, 1, b"\0\0\0\3\x10" + REQUEST_BLOCK),
        None,
        None,
    ),
    Breach("6.3", "a priority of no stream", priority(0, 0, bytes(5)), PROTOCOL),
    Breach("6.3", "a priority of an idle stream", priority(0, 9, bytes(5)), None, None),
    Breach("6.3", "a priority of another size", OPENED + priority(0, 1, bytes(4)), SIZE, 1),
    Breach("6.3", "the same of an idle stream", priority(0, 1, bytes(4)), None, None),
    Breach("6.4", "a reset of no stream", reset_frame(0, 8), PROTOCOL),
    Breach("6.4", "a reset of another size", OPENED + rst_stream(0, 1, bytes(3)), SIZE),
    Breach("6.5", "settings of a stream", settings(0, 1), PROTOCOL),
    Breach("6.5", "settings that are cut off", settings(0, 0, bytes(5)), SIZE),
    Breach("6.5", "an answer to settings with some", settings(ACK, 0, bytes(6)), SIZE),
    Breach("6.5.2", "an unknown setting", setting(0xFFFF, 7), None, None),
    Breach("6.5.2", "push that is neither on nor off", setting(2, 2), PROTOCOL),
    Breach("6.5.2", "a window beyond 31 bits", setting(4, 2**31), FLOW),
    Breach("6.5.2", "frames that are too small", setting(5, 2**14 - 1), PROTOCOL),
    Breach("6.5.2", "frames that are too large", setting(5, 2**24), PROTOCOL),
    Breach("6.6", "a push of a client", OPENED + push_promise(END_HEADERS, 1, bytes(4)), PROTOCOL),
    Breach("6.7", "a ping of a stream", ping(0, 1, bytes(8)), PROTOCOL),
    Breach("6.7", "a ping of another size", ping(0, 0, bytes(7)), SIZE),
    Breach("6.8", "an end of a stream", goaway(0, 1, bytes(8)), PROTOCOL),
    Breach("6.8", "an end that is cut off", goaway(0, 0, bytes(7)), SIZE),
    Breach("6.9", "a window of another size", window_update(0, 0, bytes(3)), SIZE),
    Breach("6.9", "a window grows by nothing", window_frame(0, 0), PROTOCOL),
    Breach("6.9", "a stream's window grows by nothing", OPENED + window_frame(1, 0), PROTOCOL, 1),
    Breach("6.9.1", "a window overflows", window_frame(0, 2**31 - 1), FLOW),
    Breach("6.9.1", "a stream's window overflows", OPENED + window_frame(1, 2**31 - 1), FLOW, 1),
    Breach(
        "6.9.2",
        "settings make a window overflow",
        OPENED + window_frame(1, 2**31 - 1 - 262_144) + setting(4, 262_145),
        FLOW,
    ),
    Breach(
        "6.9.1",
        "more data than a stream's window",
        OPENED + data(0, 1, bytes(16_384)) * 4,
        FLOW,
        1,
    ),
    Breach(
        "6.9.3",
        "as much data as is usual, before the peer can know of a smaller window",
        OPENED + data(0, 1, bytes(16_384)) * 3,
        None,
        None,
    ),
    Breach("6.10", "CONTINUATION of nothing", OPENED + continuation(END_HEADERS, 1), PROTOCOL),
    Breach(
        "6.10",
        "CONTINUATION of another stream",
        headers(0, 1) + continuation(END_HEADERS, 3),
        PROTOCOL,
    ),
    Breach(
        "8.1",
        "trailers that end nothing",
        OPENED + headers(END_HEADERS, 1, TRAILERS_BLOCK),
        PROTOCOL,
        1,
    ),
    Breach("8.1", "trailers", OPENED + headers(WHOLE, 1, TRAILERS_BLOCK), None, None),
    Breach("8.1", "pseudo-fields in trailers", OPENED + ENDED, PROTOCOL, 1),
    Breach("8.1.1", "less than content-length", request((b"content-length", b"5")), PROTOCOL, 1),
    Breach("8.2.1", "a capital letter in a name", request((b"Name", b"x")), PROTOCOL, 1),
    Breach("8.2.1", "a name with a space", request((b"na me", b"x")), PROTOCOL, 1),
    Breach("8.2.1", "an empty name", request((b"", b"x")), PROTOCOL, 1),
    Breach("8.2.1", "a value with a line", request((b"name", b"a\r\nb")), PROTOCOL, 1),
    Breach("8.2.1", "a value with NUL", request((b"name", b"a\0")), PROTOCOL, 1),
    Breach("8.2.1", "white space around a value", request((b"name", b" a ")), None, None),
    Breach("8.2.1", "an empty value", request((b"name", b"")), None, None),
    Breach("8.2.2", "a field of HTTP/1", request((b"connection", b"close")), PROTOCOL, 1),
    Breach(
        "8.2.2", "te with more than trailers", request((b"te", b"gzip"), without=b"te"), PROTOCOL, 1
    ),
    Breach("8.3", "an unknown pseudo-field", ordered((b":new", b"x"), *REQUEST), PROTOCOL, 1),
    Breach(
        "8.3",
        "a pseudo-field behind others",
        request((b":authority", b"x"), without=b":authority"),
        PROTOCOL,
        1,
    ),
    Breach(
        "8.3", "a pseudo-field of a response", ordered((b":status", b"200"), *REQUEST), PROTOCOL, 1
    ),
    Breach("8.3", "a pseudo-field twice", ordered(REQUEST[0], *REQUEST), PROTOCOL, 1),
    Breach("8.3.1", "no method", request(without=b":method"), PROTOCOL, 1),
    Breach("8.3.1", "no scheme", request(without=b":scheme"), PROTOCOL, 1),
    Breach("8.3.1", "no path", request(without=b":path"), PROTOCOL, 1),
    Breach("8.3.1", "an empty path", ordered((b":path", b""), *REQUEST[:2]), PROTOCOL, 1),
    Breach("8.3.1", "no authority", request(without=b":authority"), None, None),
)
LIMITS = Limits(streams_max=1, stream_window_bytes=1_000)


def broken(end: Http2End) -> tuple[ErrorCode | None, int | None]:
    """Return what an end complained of, and the stream; of all, the last."""
    told = end.connection.output()
    code, of = None, None
    while told:
        high, low, kind, _, stream_id = HEAD.unpack_from(told)
        payload, told = told[HEAD_BYTES:][: high << 8 | low], told[HEAD_BYTES + (high << 8 | low) :]
        if kind == Kind.RST_STREAM:
            code, of = ErrorCode(int.from_bytes(payload, "big")), stream_id
        elif kind == Kind.GOAWAY:
            code, of = ErrorCode(int.from_bytes(payload[4:8], "big")), CONNECTION
    return code, of


@pytest.mark.parametrize("rule", RULES, ids=[f"{rule.section} {rule.what}" for rule in RULES])
def test_a_server_keeps_to_the_rules(rule: Breach) -> None:
    """A fault is told with its code, and ends what the RFC says; bytes may come one at a time."""
    for size in (len(rule.sent), 1):
        _, server = pair(server=LIMITS)
        server.connection.output()
        for at in range(0, len(rule.sent), size):
            server.hear(rule.sent[at : at + size])
        assert broken(server) == (rule.code, rule.of)
        assert server.connection.is_over == (rule.of == CONNECTION)
        assert bool(server.told(ConnectionFailed)) == (rule.of == CONNECTION)


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (b"GET / HTTP/1.1\r\n", "this is not HTTP/2"),
        (PREFACE + ping(0, 0, bytes(8)), "the first frame has no settings"),
        (PREFACE + settings(ACK, 0), "the first frame has no settings"),
    ],
)
def test_a_connection_begins_with_settings(begin: bytes, message: str) -> None:
    """Another preface, or another first frame, ends the connection (section 3.4)."""
    server = Http2End(Role.SERVER)
    server.hear(begin)
    assert [failed.message for failed in server.told(ConnectionFailed)] == [message]
    assert server.hear(PREFACE) == []


def test_data_beyond_the_window_of_the_connection_end_it() -> None:
    """What exceeds the sum of all windows is a fault of the connection (section 6.9.1)."""
    _, server = pair(server=Limits(stream_window_bytes=10**6, window_bytes=70_000))
    server.hear(OPENED + data(0, 1, bytes(16_000)) * 5)
    assert [failed.code for failed in server.told(ConnectionFailed)] == [FLOW]


CLIENT_RULES = (
    Breach("6.5.2", "a server that allows to push", setting(2, 1), PROTOCOL),
    Breach("6.6", "a push", push_promise(END_HEADERS, 1, bytes(4)), PROTOCOL),
    Breach("5.1.1", "a stream of the server's own", headers(WHOLE, 2, RESPONSE_BLOCK), PROTOCOL),
    Breach("5.1", "an answer to no question", headers(WHOLE, 3, RESPONSE_BLOCK), PROTOCOL),
    Breach("8.1", "data before the fields", data(0, 1, b"x"), PROTOCOL, 1),
    Breach("8.3.2", "no status", headers(END_HEADERS, 1, TRAILERS_BLOCK), PROTOCOL, 1),
    Breach(
        "8.3.2",
        "a status of letters",
        headers(END_HEADERS, 1, write_block([(b":status", b"ok")])),
        PROTOCOL,
        1,
    ),
    Breach(
        "8.1",
        "an informational answer at the end",
        headers(WHOLE, 1, write_block([(b":status", b"100")])),
        PROTOCOL,
        1,
    ),
)


@pytest.mark.parametrize("rule", CLIENT_RULES, ids=[rule.what for rule in CLIENT_RULES])
def test_a_client_keeps_to_the_rules(rule: Breach) -> None:
    """A fault of the server ends the stream, or the connection, and is told to the caller."""
    client, _ = pair()
    client.connection.open(REQUEST_BLOCK)
    client.connection.output()
    client.hear(rule.sent)
    assert broken(client) == (rule.code, rule.of)
    assert bool(client.told(StreamReset)) == (rule.of == 1)


def test_an_informational_answer_is_followed_by_another() -> None:
    """A response of 1xx is told, and the next section is the response."""
    client, _ = pair()
    client.connection.open(REQUEST_BLOCK)
    early = write_block([(b":status", b"103")])
    client.hear(headers(END_HEADERS, 1, early))
    client.hear(headers(END_HEADERS, 1, RESPONSE_BLOCK))
    client.hear(headers(WHOLE, 1, TRAILERS_BLOCK))
    parts = [told.section.part.value for told in client.told(FieldsReceived)]
    assert parts == ["response", "response", "trailers"]
    assert client.told(StreamReset) == []
