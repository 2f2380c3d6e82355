"""Random answers to our client, random requests to our server: a call ends, and the next is good.

Method: one end is ours, over a real socket; the other one writes whole frames, with fields, data
and ends that make sense only now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.viewstamp.wire.careful_runner import CarefulRunner
from tests.viewstamp.wire.echo import ECHO, serving_echo
from viewstamp.http2 import Field, write_block
from viewstamp.http2.frames import (
    CONNECTION,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    PREFACE,
    Kind,
    frame,
    goaway_frame,
    reset_frame,
    settings_frame,
    window_frame,
)
from viewstamp.wire.messages import prefixed
from viewstamp.wire.transport import WireTransport

EXAMPLES: Final = 300
EXAMPLES_OF_ALL: Final = 10_000
PATIENCE_S: Final = 20
ATTEMPTS: Final = 3
CANCEL: Final = 8
WHOLE: Final = END_HEADERS | END_STREAM
GOOD_ANSWER: Final = [(b":status", b"200"), (b"content-type", b"application/grpc")]
GOOD_REQUEST: Final = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", ECHO.encode()),
    (b"content-type", b"application/grpc"),
]

ENDS: Final = st.sampled_from([END_HEADERS, WHOLE])
IDS: Final = st.sampled_from([1, 1, 1, 1, 3])
VALUES: Final = st.one_of(
    st.sampled_from([b"", b"0", b"5", b"16", b"99", b"x", b"200", b"404", b"503", b"103", b"%zz"]),
    st.sampled_from([b"application/grpc", b"text/html", b"gzip", b"trailers", b"1S", b"POST"]),
    st.sampled_from([b"/", ECHO.encode(), b"http", b"AAE", b"==", b"5n"]),
    st.binary(max_size=12),
)
NAMES: Final = st.one_of(
    st.sampled_from([b":status", b"content-type", b"grpc-status", b"grpc-message"]),
    st.sampled_from([b":method", b":path", b":scheme", b":authority", b"te", b"grpc-timeout"]),
    st.sampled_from(
        [b"grpc-encoding", b"grpc-status-details-bin", b"x-any-bin", b"content-length"]
    ),
    st.binary(max_size=6),
)
STATUSES: Final = st.sampled_from([b"", b"0", b"5", b"16", b"17", b"99", b"100", b"-1", b"x"])
FIELDS: Final = st.lists(st.tuples(NAMES, VALUES), max_size=6)
# What is looked at in a request that is good otherwise.
EXTRAS: Final = st.one_of(
    st.tuples(
        st.just(b"grpc-timeout"),
        st.sampled_from([b"1S", b"5n", b"99999999H", b"", b"x", b"123456789S", b"1"]),
    ),
    st.tuples(st.just(b"grpc-encoding"), st.sampled_from([b"gzip", b"identity"])),
)
DATA: Final = st.one_of(
    st.binary(max_size=20),
    st.binary(max_size=20).map(prefixed),
    st.sampled_from([b"\1\0\0\0\0", b"\0\xff\xff\xff\xff", b"\0\0", b""]),
)


def header_frame(stream_id: int, flags: int, fields: list[Field]) -> bytes:
    """Return a frame with a whole block."""
    return frame(Kind.HEADERS, flags, stream_id, write_block(fields))


def data_frame(stream_id: int, flags: int, data: bytes) -> bytes:
    """Return a frame with data."""
    return frame(Kind.DATA, flags, stream_id, data)


def headers(good: list[Field]) -> st.SearchStrategy[bytes]:
    """Return fields of any kind, or good ones with some more."""
    with_extra = EXTRAS.map(lambda extra: [*good, extra])
    fields = st.one_of(FIELDS, with_extra, with_extra, FIELDS.map(lambda more: good + more))
    return st.builds(header_frame, IDS, ENDS, fields)


OTHERS: Final = st.one_of(
    st.builds(header_frame, IDS, ENDS, STATUSES.map(lambda status: [(b"grpc-status", status)])),
    st.builds(data_frame, IDS, st.sampled_from([0, END_STREAM]), DATA),
    st.builds(reset_frame, IDS, st.integers(0, 20)),
    st.builds(window_frame, st.sampled_from([CONNECTION, 1]), st.integers(0, 70_000)),
    st.builds(lambda last: goaway_frame(last, 0, ""), st.sampled_from([0, 1, 3])),
)


def said(good: list[Field]) -> st.SearchStrategy[bytes]:
    """Return what a strange end says: often fields first."""
    parts = st.lists(st.one_of(headers(good), OTHERS), max_size=6)
    return st.builds(
        lambda first, rest: first + b"".join(rest), headers(good) | st.just(b""), parts
    )


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Return kind, stream and payload of a frame. Raises IncompleteReadError at the end."""
    high, low, kind, _, stream_id = HEAD.unpack(await reader.readexactly(HEAD_BYTES))
    return kind, stream_id, await reader.readexactly(high << 8 | low)


# --- Answers ---


class StrangeServer:
    """Says something strange to the first call of all, and serves the others."""

    def __init__(self, first_answer: bytes) -> None:
        self._first_answer = first_answer

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        writer.write(settings_frame({}))
        try:
            await reader.readexactly(len(PREFACE))
            while True:
                kind, stream_id, _ = await next_frame(reader)
                if kind == Kind.HEADERS:
                    writer.write(self._answer(stream_id))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, stream_id: int) -> bytes:
        strange, self._first_answer = self._first_answer, b""
        if strange:
            return strange + reset_frame(stream_id, CANCEL)
        return (
            header_frame(stream_id, END_HEADERS, GOOD_ANSWER)
            + data_frame(stream_id, 0, prefixed(b"fine"))
            + header_frame(stream_id, WHOLE, [(b"grpc-status", b"0")])
        )


async def bears_answer(strange: bytes, begin: Callable[[Any], Awaitable[object]]) -> None:
    """Have a first call end somehow, and a later one well."""
    server = await asyncio.start_server(StrangeServer(strange).meet, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    channel: Any = WireTransport().channel(address, (), None)
    async with asyncio.timeout(PATIENCE_S / 2):
        with contextlib.suppress(grpc.aio.AioRpcError):  # of any code, even that of a deadline
            await begin(channel)
    assert await answered(channel) == b"fine"
    await channel.close()
    server.close()


async def answered(channel: Any) -> bytes:
    """Return the answer of a later call: its connection may be about to end."""
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            answer: bytes = await channel.unary_unary(ECHO)(b"", timeout=PATIENCE_S)
        except grpc.aio.AioRpcError:
            if not attempts_left:
                raise
        else:
            return answer
    raise AssertionError("the last attempt returns or raises")


async def unary(channel: Any) -> None:
    """Make a call with one answer."""
    await channel.unary_unary(ECHO)(b"", timeout=PATIENCE_S)


async def streaming(channel: Any) -> None:
    """Make a call with a stream of answers, and read all."""
    call = channel.stream_stream(ECHO)(timeout=PATIENCE_S)
    await call.write(b"one")
    async for _ in call:
        pass


# --- Requests ---


async def bears_request(strange: bytes) -> None:
    """Have a connection with a strange request answer a good one, or end; and serve another."""
    async with serving_echo(WireTransport()) as (server, port), asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE + settings_frame({}) + strange)
        writer.write(header_frame(5, END_HEADERS, GOOD_REQUEST))
        writer.write(data_frame(5, END_STREAM, prefixed(b"fine")))
        assert await last_words(reader) in (prefixed(b"fine"), b"")
        writer.close()
        channel = WireTransport().channel(f"127.0.0.1:{port}", (), None)
        assert await channel.unary_unary(ECHO)(b"fine") == b"fine"
        await channel.close()
        while server.connections:  # noqa: ASYNC110 - thousands of examples have no time to sleep
            await asyncio.sleep(0)
    assert server.tally.started == server.tally.succeeded + server.tally.failed


async def last_words(reader: asyncio.StreamReader) -> bytes:
    """Return the data of the good request's answer, or nothing if the connection ended first."""
    try:
        while True:
            kind, stream_id, payload = await next_frame(reader)
            if (kind, stream_id) == (Kind.DATA, 5):
                return payload
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


# --- Tests ---


@pytest.fixture(scope="module")
def runner() -> Iterator[CarefulRunner]:
    """Give an event loop."""
    made = CarefulRunner()
    yield made
    made.close()


HOW_MANY: Final = pytest.mark.parametrize(
    "examples", [EXAMPLES, pytest.param(EXAMPLES_OF_ALL, marks=pytest.mark.exhaustive)]
)


@HOW_MANY
@pytest.mark.parametrize("begin", [unary, streaming])
def test_a_strange_answer_ends_its_call_alone(
    runner: CarefulRunner, examples: int, begin: Callable[[Any], Awaitable[object]]
) -> None:
    """Whatever a server says, the call ends before its deadline, and the next one is answered."""

    @settings(max_examples=examples)
    @given(said(GOOD_ANSWER))
    def bears(strange: bytes) -> None:
        runner.run(bears_answer(strange, begin))

    bears()


@HOW_MANY
def test_a_strange_request_harms_no_other(runner: CarefulRunner, examples: int) -> None:
    """Whatever a client says, another request of its connection is answered unless the connection
    ends, others are answered anyway, and of each call it is known how it ended."""

    @settings(max_examples=examples)
    @given(said(GOOD_REQUEST))
    def bears(strange: bytes) -> None:
        runner.run(bears_request(strange))

    bears()
