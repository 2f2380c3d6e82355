"""Peers that do what no library does: our ends bear it, end what has to end, and lose nothing else.

Method: one end is ours, over a real socket; the other one writes frames by hand.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio
import hpack
import pytest

from tests.viewstamp.wire.echo import CHAT, ECHO, LINGER, SLEEP, Echo
from viewstamp.http2 import ErrorCode, Field, write_block, write_varying
from viewstamp.http2.frames import (
    CONNECTION,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    PREFACE,
    STREAM_ID_MAX,
    WINDOW_BYTES_MAX,
    Kind,
    Setting,
    frame,
    goaway_frame,
    reset_frame,
    settings_frame,
    window_frame,
)
from viewstamp.wire.inbox import HeldBytes, Inbox
from viewstamp.wire.messages import MalformedMessages, prefixed
from viewstamp.wire.metadata import status_fields, status_of
from viewstamp.wire.transport import WireTransport

PATIENCE_S: Final = 20
DEADLINE_EXCEEDED: Final = grpc.StatusCode.DEADLINE_EXCEEDED
WHOLE: Final = END_HEADERS | END_STREAM
HELLO: Final = PREFACE + settings_frame({})


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, Echo, Any]]:
    """Give the port of a server of ours, what it does, and the server."""
    server, echo = WireTransport().server(()), Echo()
    server.add_generic_rpc_handlers((echo.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port, echo, server
    await server.stop(None)


@asynccontextmanager
async def answering(said: Callable[[int], bytes]) -> AsyncIterator[Any]:
    """Give a channel of ours to a server that says something to each connection, by its number."""
    numbers = iter(range(100))

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said(next(numbers)))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    channel: Any = WireTransport().channel(f"127.0.0.1:{port}", (), None)
    yield channel
    await channel.close()
    server.close()


def request(stream_id: int, path: str, *more: Field, flags: int = END_HEADERS) -> bytes:
    """Return the fields of a request."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())]
    block = write_block([*fields, (b"content-type", b"application/grpc"), *more])
    return frame(Kind.HEADERS, flags, stream_id, block)


def message(stream_id: int, text: bytes) -> bytes:
    """Return a message, which is the last one."""
    return frame(Kind.DATA, END_STREAM, stream_id, prefixed(text))


async def heard(reader: asyncio.StreamReader, stream_id: int, kind: Kind) -> bytes:
    """Return the payload of the first frame of this kind on this stream."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            high, low, got, _, of = HEAD.unpack(await reader.readexactly(HEAD_BYTES))
            payload = await reader.readexactly(high << 8 | low)
            if (got, of) == (kind, stream_id):
                return payload


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(request(1, "/no/method") + reset_frame(1, 8), id="unknown, and taken back"),
        pytest.param(request(1, ECHO) + reset_frame(1, 8), id="taken back"),
        pytest.param(
            request(1, ECHO, (b"te", b"trailers")) + frame(Kind.DATA, END_STREAM, 1, b"\1\0\0\0\0"),
            id="compressed",
        ),
        pytest.param(request(1, ECHO, (b"grpc-timeout", b"soon")), id="no timeout"),
        pytest.param(request(1, ECHO, flags=WHOLE), id="without a message"),
        pytest.param(
            frame(
                Kind.HEADERS,
                END_HEADERS,
                1,
                write_block([(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]),
            )
            + frame(Kind.HEADERS, WHOLE, 1, write_block([(b"late", b"trailers")])),
            id="no gRPC, and trailers",
        ),
    ],
)
async def test_a_strange_call_harms_no_other(trouble: bytes) -> None:
    """Whatever comes on one stream, in one packet, the next one is served on the same connection,
    and nothing is kept of the first."""
    async with serving() as (port, _, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HELLO + trouble)
        writer.write(request(3, ECHO) + message(3, b"hello"))
        assert await heard(reader, 3, Kind.DATA) == prefixed(b"hello")
        writer.close()
        async with asyncio.timeout(PATIENCE_S):
            await server.stop(None)


@pytest.mark.parametrize("flags", [END_HEADERS, WHOLE], ids=["still sends", "has sent all"])
async def test_a_client_that_forgets_its_deadline_is_told_of_it(flags: int) -> None:
    """A client that waits beyond the time that it gave gets the status of that, not a reset of the
    stream; and the handler is cancelled."""
    async with serving() as (port, echo, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = CHAT if flags == END_HEADERS else SLEEP
        writer.write(HELLO + request(1, path, (b"grpc-timeout", b"50m")))
        if flags == WHOLE:
            writer.write(message(1, b""))
        block = await heard(reader, 1, Kind.HEADERS)
        told: dict[Any, Any] = dict(hpack.Decoder().decode(block, raw=True))
        assert told[b"grpc-status"] == b"4"
        if flags == WHOLE:
            await asyncio.wait_for(echo.cancelled.wait(), PATIENCE_S)
        writer.close()


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        pytest.param([(b"x-told", b"again")], (b"grpc-status", b"0"), id="served"),
        pytest.param([(b"grpc-timeout", b"50m")], (b"grpc-status", b"4"), id="a deadline"),
        pytest.param([(b"grpc-encoding", b"gzip")], (b"grpc-status", b"12"), id="compressed"),
        pytest.param([(b"content-type", b"text/plain")], (b":status", b"415"), id="no gRPC"),
    ],
)
async def test_fields_behind_a_known_head_count(rest: list[Field], told: Field) -> None:
    """A request that begins as an earlier one is judged by the fields that it has beside."""
    async with serving() as (port, _, __):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = request(1, SLEEP if told == (b"grpc-status", b"4") else ECHO)[HEAD_BYTES:]
        writer.write(HELLO)
        for stream_id, more in ((1, [(b"x-told", b"once")]), (3, rest)):
            block = head + write_varying(more)
            writer.write(frame(Kind.HEADERS, END_HEADERS, stream_id, block))
            writer.write(message(stream_id, b"hello"))
        answers = hpack.Decoder()
        fields: list[Any] = []
        while told not in fields:
            fields += answers.decode(await heard(reader, 3, Kind.HEADERS), raw=True)
        writer.close()


async def test_metadata_behind_a_known_head_arrive() -> None:
    """Calls that differ in what is sent last have each their own metadata, in order."""
    seen: list[Any] = []

    async def note(_: bytes, context: Any) -> bytes:
        seen.append(
            [each for each in context.invocation_metadata() if each[0] in ("a", "traceparent")]
        )
        return b""

    handler: Any = note
    methods: dict[str, Any] = {"Note": grpc.unary_unary_rpc_method_handler(handler)}
    server = WireTransport().server(())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sent = [[("a", "1"), ("traceparent", f"00-{count}"), ("a", "2")] for count in range(3)]
    channel: Any = WireTransport().channel(f"127.0.0.1:{port}", (), None)
    for metadata in sent:
        await channel.unary_unary("/Test/Note")(b"", metadata=metadata, timeout=PATIENCE_S)
    await channel.close()
    await server.stop(None)
    assert seen == [[first, second, trace] for first, trace, second in sent]


async def test_compressed_messages_are_not_taken() -> None:
    """A client that compresses is told that nobody can read it."""
    async with serving() as (port, _, __):
        gzip: Any = grpc.Compression.Gzip
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", compression=gzip) as channel:
            echo: Any = channel.unary_unary(ECHO)
            with pytest.raises(grpc.aio.AioRpcError, match="gzip") as caught:
                await echo(bytes(10_000), timeout=PATIENCE_S)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_messages_are_held_within_limits() -> None:
    """One connection may have four of the largest messages unread, whole or in part; what is read
    or given up makes room."""
    given_back: list[int] = []
    held = HeldBytes(1_000)
    inboxes = [Inbox("SERVER", 1_000, given_back.append, held) for _ in range(5)]
    for inbox in inboxes[:4]:
        assert not inbox.take(prefixed(bytes(1_000))[:995])
    with pytest.raises(MalformedMessages, match="wait for their readers") as caught:
        inboxes[4].take(prefixed(bytes(900)))
    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert sum(given_back) == 4 * 995 + 905
    inboxes[4].release()
    assert inboxes[0].take(bytes(10))
    assert inboxes[0].read() == bytes(1_000)
    inboxes[1].release()
    assert inboxes[2].take(bytes(10) + prefixed(bytes(900)))
    assert (inboxes[2].read(), inboxes[2].read()) == (bytes(1_000), bytes(900))
    assert sum(given_back) == 4 * 995 + 905 + 10 + 10 + 905


async def test_what_comes_after_the_answer_is_given_back() -> None:
    """A client that does not take its answer, and goes on sending, may send as much as before."""
    async with serving() as (port, _, __):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}))
        writer.write(request(1, ECHO) + frame(Kind.DATA, 0, 1, prefixed(b"hello")))
        await heard(reader, 1, Kind.HEADERS)
        for _ in range(15):
            writer.write(frame(Kind.DATA, 0, 1, prefixed(bytes(10_000))))
        assert int.from_bytes(await heard(reader, 1, Kind.WINDOW_UPDATE), "big") > 100_000
        writer.close()


async def test_a_call_that_is_over_is_freed_at_once() -> None:
    """Nothing of a call waits for the collector of garbage, with a deadline or without."""
    async with serving() as (port, _, __):
        channel: Any = WireTransport().channel(f"127.0.0.1:{port}", (), None)
        echo = channel.unary_unary(ECHO)
        await echo(b"")
        gc.collect()
        gc.disable()
        try:
            others = inboxes()  # of other tests
            for timeout_s in (None, PATIENCE_S):
                await echo(b"", timeout=timeout_s)
            await asyncio.sleep(0)
            left = [each for each in inboxes() if all(each is not other for other in others)]
        finally:
            gc.enable()
        await channel.close()
    assert left == []


def inboxes() -> list[Inbox]:
    """Return all that the collector of garbage knows."""
    return [each for each in gc.get_objects() if isinstance(each, Inbox)]


async def test_a_client_that_does_not_read_stops_the_writer() -> None:
    """With windows of 2 GB open, a handler makes no more than buffers hold."""
    async with serving() as (port, echo, _):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: WINDOW_BYTES_MAX}))
        writer.write(window_frame(CONNECTION, WINDOW_BYTES_MAX - 65_535))
        writer.write(request(1, "/test.Echo/Count") + message(1, b"1000 1000000"))
        made = -1
        while made < echo.counted or not made:
            made = echo.counted
            await asyncio.sleep(0.2)
        assert made < 50
        writer.close()


async def test_a_handler_that_goes_on_does_not_keep_a_server() -> None:
    """One that catches the end of its call is cancelled when the server stops."""
    async with serving() as (port, _, server):
        async with WireTransport().channel(f"127.0.0.1:{port}", (), None) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="and yet"):
                await channel.unary_unary(LINGER)(b"", timeout=PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            await server.stop(0.1)


SETTINGS: Final = settings_frame({})
GOODBYE: Final = goaway_frame(STREAM_ID_MAX, 0, "")
WRONG: Final = frame(Kind.PING, 0, 1, bytes(8))


@pytest.mark.parametrize("said", [SETTINGS + GOODBYE, SETTINGS + WRONG, WRONG, b"HTTP/1.1 400\r\n"])
async def test_a_server_that_ends_at_once_is_unavailable(said: bytes) -> None:
    """A call fails, also the next one, if the first packet of a server says goodbye or is wrong."""
    async with answering(lambda _: said) as channel:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(ECHO)(b"", timeout=PATIENCE_S)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_reset_at_the_deadline_is_the_deadline() -> None:
    """A server that resets the stream is heard before our timer, and the deadline has passed."""
    async with answering(lambda _: SETTINGS) as channel:
        assert await channel.unary_unary(ECHO)(b"", timeout=0.01).code() == DEADLINE_EXCEEDED
        call = channel.unary_unary(ECHO)(b"", timeout=0.05)
        await asyncio.sleep(0)
        time.sleep(0.1)  # noqa: ASYNC251 - the loop must be late for its timer
        call.ended_early(ErrorCode.CANCEL, "")
        assert await call.code() == DEADLINE_EXCEEDED


async def test_words_of_a_success_are_not_passed_on() -> None:
    """A server may send words with OK, as grpc-js does; a caller gets none, as of the library."""

    async def say(request: bytes, context: Any) -> bytes:
        context.set_details("OK")
        return request

    said: Any = say
    async with serving() as (port, _, server):
        handlers: dict[str, Any] = {"Say": grpc.unary_unary_rpc_method_handler(said)}
        server.add_registered_method_handlers("test.Words", handlers)
        async with WireTransport().channel(f"127.0.0.1:{port}", (), None) as channel:
            call = channel.unary_unary("/test.Words/Say")(b"", timeout=PATIENCE_S)
            assert (await call, await call.details()) == (b"", "")


async def test_a_second_goodbye_leaves_the_next_connection_alone() -> None:
    """Calls go to a new connection after the first goodbye; the second one changes nothing, and
    the channel closes both."""
    async with serving() as (port, _, server):
        async with WireTransport().channel(f"127.0.0.1:{port}", (), None) as channel:
            waiting = channel.unary_unary(SLEEP)(b"", timeout=PATIENCE_S)
            assert await channel.unary_unary(ECHO)(b"1", timeout=PATIENCE_S) == b"1"
            server.say_goodbye()
            while server.connections < 2:
                assert await channel.unary_unary(ECHO)(b"2", timeout=PATIENCE_S) == b"2"
            server.say_goodbye()
            assert await channel.unary_unary(ECHO)(b"3", timeout=PATIENCE_S) == b"3"
            assert not waiting.done()
        for _ in range(PATIENCE_S * 100):
            if server.connections:
                await asyncio.sleep(0.01)
        assert server.connections == 0


async def test_metadata_that_cannot_be_sent_raise_at_once() -> None:
    """The caller hears of it, and the next call is made."""
    async with (
        serving() as (port, _, __),
        WireTransport().channel(f"127.0.0.1:{port}", (), None) as channel,
    ):
        with pytest.raises(UnicodeEncodeError):
            channel.unary_unary(ECHO)(b"", metadata=(("key", "\xe9"),))
        assert await channel.unary_unary(ECHO)(b"next", timeout=PATIENCE_S) == b"next"


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_status_that_cannot_be_sent_is_internal(refuses: bool) -> None:
    """Metadata of a handler that no field can be end the call, before and behind an answer."""

    async def serve(_: bytes, context: Any) -> bytes:
        stray = (("key", "\xe9"),)
        if refuses:
            await context.abort(grpc.StatusCode.ABORTED, "", stray)
        context.set_trailing_metadata(stray)
        return b""

    server = WireTransport().server(())
    handler: Any = serve
    made: Any = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", {"M": made}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with WireTransport().channel(f"127.0.0.1:{port}", (), None) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/S/M")(b"", timeout=PATIENCE_S)
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == ""
    await server.stop(None)


@pytest.mark.parametrize("details", ["", " words ", "100 %", "line\nline", "\u00e9", "\ud800"])
def test_words_of_a_status_come_back(details: str) -> None:
    """Any text survives, except what no text can be."""
    code = grpc.StatusCode.ABORTED
    expected = details.replace("\ud800", "?")
    assert status_of(status_fields(code, details, ())) == (code, expected)


@pytest.mark.parametrize("number", [b"", b"x", b"99", b"9" * 5_000])
def test_a_status_that_is_none_is_unknown(number: bytes) -> None:
    """A number that no status has is UNKNOWN."""
    assert status_of([(b"grpc-status", number)]) == (grpc.StatusCode.UNKNOWN, "")
