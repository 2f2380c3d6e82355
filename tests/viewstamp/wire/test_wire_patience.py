"""How long our transport waits: for handshakes, for settings, for a use of a connection; and what
it does again unseen.

Method: one end is ours, over a real socket; the other one writes frames by hand, or is silent.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
import uvloop

from tests.coordinator.peers.certificates import Authority
from tests.viewstamp.wire.echo import ECHO, SUM, Echo
from tests.viewstamp.wire.tls_ends import NAMED, SERVER, asked, our_channel, texts_of
from viewstamp.grpc_transport import Options
from viewstamp.http2 import ErrorCode, write_block
from viewstamp.http2.frames import (
    CONNECTION,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    PREFACE,
    Kind,
    Setting,
    frame,
    goaway_frame,
    reset_frame,
    settings_frame,
    window_frame,
)
from viewstamp.limits import MIB
from viewstamp.wire import acceptor
from viewstamp.wire.channel import WireChannel
from viewstamp.wire.messages import prefixed
from viewstamp.wire.options import MEANINGLESS, UnknownOption, WireOptions
from viewstamp.wire.server import WireServer
from viewstamp.wire.socket import Http2Socket
from viewstamp.wire.tls import ALPN

PATIENCE_S: Final = 20
SOON_MS: Final = 100


@asynccontextmanager
async def serving(options: Options, texts: Any = None) -> AsyncIterator[tuple[str, WireServer]]:
    """Give the address of a server of ours, and the server."""
    server = WireServer(options)
    server.add_generic_rpc_handlers((Echo().handlers(),))
    if texts is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_tls_port("127.0.0.1:0", lambda: texts)
    await server.start()
    yield f"127.0.0.1:{port}", server
    await server.stop(None)


async def opened(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and say nothing."""
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def closed(reader: asyncio.StreamReader) -> None:
    """Wait until the other end has closed."""
    async with asyncio.timeout(PATIENCE_S):
        while await reader.read(65_536):
            pass


async def test_a_client_that_says_nothing_loses_its_place() -> None:
    """Who sends no settings within the time for a handshake is left, and others are served."""
    options = (
        ("grpc.server_handshake_timeout_ms", SOON_MS),
        ("grpc.max_allowed_incoming_connections", 1),
    )
    async with serving(options) as (address, _):
        reader, writer = await opened(address)
        await closed(reader)
        assert await asked(WireChannel(address, ())) == b"hello"
        writer.close()


async def test_a_client_that_shakes_no_hands_loses_its_place(tmp_path: Path) -> None:
    """The same for who never begins with TLS; it never counts as a connection."""
    authority = Authority.create(tmp_path / "authority")
    options = (("grpc.server_handshake_timeout_ms", SOON_MS),)
    async with serving(options, texts_of(authority.issue(SERVER))) as (address, server):
        reader, writer = await opened(address)
        await closed(reader)
        assert server.connections == 0
        writer.close()


async def test_many_silent_clients_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit of handshakes the oldest ones end, each once, and whoever shakes hands gets
    in."""
    monkeypatch.setattr(acceptor, "HANDSHAKES_MAX", 3)
    monkeypatch.setattr(acceptor, "HANDSHAKE_UNDISTURBED_S", 0.0)
    authority = Authority.create(tmp_path / "authority")
    caller = texts_of(authority.issue("caller.test"))
    async with serving((), texts_of(authority.issue(SERVER))) as (address, _):
        silent = [await opened(address) for _ in range(9)]
        for reader, _ in silent[:6]:
            await closed(reader)
        assert await asked(our_channel(address, caller, NAMED)) == b"hello"
        await closed(silent[6][0])
        assert [reader.at_eof() for reader, _ in silent[7:]] == [False, False]
        for _, writer in silent:
            writer.close()


async def test_handshakes_that_are_young_are_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While all handshakes are young another client waits, and is served once one of them ends."""
    monkeypatch.setattr(acceptor, "HANDSHAKES_MAX", 2)
    monkeypatch.setattr(acceptor, "HANDSHAKE_UNDISTURBED_S", 60.0)
    authority = Authority.create(tmp_path / "authority")
    caller = texts_of(authority.issue("caller.test"))
    async with serving((), texts_of(authority.issue(SERVER))) as (address, _):
        silent = [await opened(address) for _ in range(2)]
        waiting = asyncio.create_task(asked(our_channel(address, caller, NAMED)))
        await asyncio.sleep(SOON_MS / 1_000)
        assert not waiting.done()
        silent[1][1].close()
        assert await waiting == b"hello"
        assert not silent[0][0].at_eof()
        silent[0][1].close()


async def test_who_does_not_say_goodbye_keeps_no_server(tmp_path: Path) -> None:
    """A client that never answers the end of TLS is left, and the server stops."""
    authority = Authority.create(tmp_path / "authority")
    caller = authority.issue("caller.test")
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(caller.certificate, caller.key)
    context.set_alpn_protocols([ALPN])

    def greeted(port: int) -> ssl.SSLSocket:
        connected = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        made = context.wrap_socket(connected, server_hostname=SERVER)
        made.sendall(PREFACE + settings_frame({}))
        return made

    options = (("grpc.max_connection_idle_ms", SOON_MS),)
    async with serving(options, texts_of(authority.issue(SERVER))) as (address, server):
        rude = await asyncio.to_thread(greeted, int(address.rpartition(":")[2]))
        await asyncio.sleep(3 * SOON_MS / 1_000)
        async with asyncio.timeout(PATIENCE_S):
            await server.stop(None)
        rude.close()


async def test_an_unused_connection_is_closed() -> None:
    """A connection without calls is closed; the next call has another one, and notices nothing."""
    options = (("grpc.max_connection_idle_ms", SOON_MS),)
    async with serving(options) as (address, server):
        reader, writer = await opened(address)
        writer.write(PREFACE + settings_frame({}))
        await closed(reader)
        writer.close()
        async with WireChannel(address, ()) as channel:
            echo = channel.unary_unary(ECHO)
            assert await echo(b"first", timeout=PATIENCE_S) == b"first"
            await asyncio.sleep(2 * SOON_MS / 1_000)
            assert await echo(b"second", timeout=PATIENCE_S) == b"second"
        assert server.connections <= 1


async def test_a_connection_is_unused_from_the_end_of_its_last_call_on() -> None:
    """However long a call was, its connection stays for the whole time after it."""
    options = (("grpc.max_connection_idle_ms", 10 * SOON_MS),)
    async with serving(options) as (address, server), WireChannel(address, ()) as channel:
        call = channel.stream_unary(SUM)()
        await call.write(b"x")
        await asyncio.sleep(15 * SOON_MS / 1_000)
        await call.done_writing()
        assert await call == b"1 1"
        await asyncio.sleep(2 * SOON_MS / 1_000)
        assert server.connections == 1


async def test_a_connection_in_use_is_not_closed() -> None:
    """A call of ten times that length keeps its connection."""
    options = (("grpc.max_connection_idle_ms", SOON_MS // 5),)
    async with serving(options) as (address, _), WireChannel(address, ()) as channel:
        call = channel.stream_unary(SUM)()
        for _ in range(10):
            await call.write(b"x")
            await asyncio.sleep(SOON_MS / 5_000)
        await call.done_writing()
        assert await call == b"10 10"


async def test_no_connection_outlasts_its_age() -> None:
    """A call that its caller never finishes keeps a connection up to its age, and no longer."""
    options = (
        ("grpc.max_connection_idle_ms", SOON_MS),
        ("grpc.max_connection_age_ms", 3 * SOON_MS),
    )
    async with serving(options) as (address, _), WireChannel(address, ()) as channel:
        call = channel.stream_unary(SUM)()
        await call.write(b"x")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(grpc.aio.AioRpcError):
                await call


# --- Again, unseen ---


async def next_request(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the stream and all data of the next request that is whole."""
    data = b""
    while True:
        high, low, kind, flags, stream_id = HEAD.unpack(await reader.readexactly(HEAD_BYTES))
        payload = await reader.readexactly(high << 8 | low)
        if kind == Kind.DATA:
            data += payload
            if flags & END_STREAM:
                return stream_id, data


def answer(stream_id: int) -> bytes:
    """Return a whole answer."""
    begin = write_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
    end = write_block([(b"grpc-status", b"0")])
    return (
        frame(Kind.HEADERS, END_HEADERS, stream_id, begin)
        + frame(Kind.DATA, 0, stream_id, prefixed(b"served"))
        + frame(Kind.HEADERS, END_HEADERS | END_STREAM, stream_id, end)
    )


@asynccontextmanager
async def refusing(
    refuses: Callable[[int], bytes], times: int
) -> AsyncIterator[tuple[Any, list[bytes], list[Any]]]:
    """Give a channel to a server that refuses so many requests, what it was asked, and a task for
    each connection."""
    heard: list[bytes] = []
    meetings: list[Any] = []

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        meetings.append(asyncio.current_task())
        writer.write(settings_frame({Setting.INITIAL_WINDOW_SIZE: MIB}))
        writer.write(window_frame(CONNECTION, MIB))
        await reader.readexactly(len(PREFACE))
        try:
            while True:
                stream_id, data = await next_request(reader)
                heard.append(data)
                is_refused = len(heard) <= times
                writer.write(refuses(stream_id) if is_refused else answer(stream_id))
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with WireChannel(f"127.0.0.1:{port}", ()) as channel:
        yield channel, heard, meetings
    server.close()
    await asyncio.wait(meetings, timeout=PATIENCE_S)


def refused_stream(stream_id: int) -> bytes:
    return reset_frame(stream_id, ErrorCode.REFUSED_STREAM)


def goodbye(stream_id: int) -> bytes:
    return goaway_frame(0, ErrorCode.NO_ERROR, "")


@pytest.mark.parametrize("refuses", [refused_stream, goodbye])
async def test_a_call_that_was_not_served_is_made_again(refuses: Callable[[int], bytes]) -> None:
    """A server that has begun nothing is asked again, here or on another connection, with the same
    messages."""
    async with refusing(refuses, 1) as (channel, heard, meetings):
        assert await channel.unary_unary(ECHO)(b"hello", timeout=PATIENCE_S) == b"served"
        assert heard == [prefixed(b"hello")] * 2
        # Our end closes a connection on which nothing more can be asked.
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*meetings[:-1])


async def test_a_call_that_waits_for_a_server_waits_again() -> None:
    """A call that is not served by one server, and waits in spite of failures, is served by the
    next one, which comes later."""

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings_frame({}))
        await reader.readexactly(len(PREFACE))
        await next_request(reader)
        leaving.close()
        writer.write(goaway_frame(0, ErrorCode.NO_ERROR, ""))
        await reader.read()
        writer.close()

    leaving = await asyncio.start_server(leave, "127.0.0.1", 0)
    port = leaving.sockets[0].getsockname()[1]
    options = (("grpc.initial_reconnect_backoff_ms", SOON_MS),)
    async with WireChannel(f"127.0.0.1:{port}", options) as channel:
        call = channel.unary_unary(ECHO)(b"hello", timeout=PATIENCE_S, wait_for_ready=True)
        await asyncio.sleep(3 * SOON_MS / 1_000)
        server = WireServer(())
        server.add_generic_rpc_handlers((Echo().handlers(),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        assert await call == b"hello"
        await server.stop(None)


async def test_a_stream_that_was_not_served_is_made_again() -> None:
    """All messages that were written are sent again, and those that come after."""
    async with refusing(refused_stream, 1) as (channel, heard, _):
        call = channel.stream_unary(SUM)()
        for number in range(3):
            await call.write(b"%d" % number)
        await call.done_writing()
        assert await call == b"served"
    assert heard == [b"".join(prefixed(b"%d" % number) for number in range(3))] * 2


async def test_a_call_is_made_again_once() -> None:
    """Who refuses again is believed."""
    async with refusing(refused_stream, 2) as (channel, heard, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(ECHO)(b"hello", timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(heard) == 2


async def test_large_requests_are_not_kept() -> None:
    """What would take too much memory to keep is not sent again; the caller decides."""
    async with refusing(refused_stream, 1) as (channel, heard, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(ECHO)(bytes(300_000), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(heard) == 1


# --- Options ---


def test_options_mean_what_the_library_says() -> None:
    """Each name sets its field, names without a meaning here change nothing, and -1 is no limit."""
    unlimited = ("grpc.max_send_message_length", -1)
    given = (("grpc.keepalive_time_ms", 7), unlimited, *((name, 1) for name in MEANINGLESS))

    found = WireOptions.of(given)

    assert found == WireOptions(keepalive_ms=7, sent_bytes_max=2**31 - 1)


def test_the_shorter_patience_for_a_ping_counts() -> None:
    """The library has two names for it, of which the shorter one ends a connection."""
    names = ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    for shorter, longer in (names, names[::-1]):
        assert WireOptions.of(((shorter, 5), (longer, 9))).silence_ms == 5


def test_an_unknown_option_is_refused() -> None:
    """An option that nobody reads is an error, and not lost without a word."""
    with pytest.raises(UnknownOption, match="no_such_option"):
        WireServer((("grpc.no_such_option", 1),))


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_no_end_waits_for_more_bytes_before_it_sends(
    loops: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends send what is ready at once, and do not wait for acknowledgements of the peer's
    system (RFC 896)."""
    found: list[int] = []
    made = Http2Socket.connection_made

    def connection_made(self: Http2Socket, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        plain = transport.get_extra_info("socket")
        found.append(plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def call() -> None:
        server = WireServer(())
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with WireChannel(f"127.0.0.1:{port}", ()) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="Method not found"):
                await channel.unary_unary("/Test/Nothing")(b"")
        await server.stop(None)

    monkeypatch.setattr(Http2Socket, "connection_made", connection_made)
    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(call())
    assert found == [1, 1]
