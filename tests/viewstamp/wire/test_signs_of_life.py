"""A process whose event loop is busy is no dead process: a thread tells its peers.

Method: the server has a loop in a thread of its own, as a process has, so that its handlers may
block it while the client's loop goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
import uvloop

from viewstamp.grpc_transport import Options
from viewstamp.http2 import Connection, FrameReceiver, Limits, Role
from viewstamp.http2.frames import CONNECTION, HEAD_BYTES, PING_BYTES, Kind, frame, settings_frame
from viewstamp.wire import signs_of_life
from viewstamp.wire.channel import WireChannel
from viewstamp.wire.dialler import Dialler
from viewstamp.wire.options import WireOptions
from viewstamp.wire.server import WireServer
from viewstamp.wire.signs_of_life import SIGN
from viewstamp.wire.socket import Http2Socket

LOOK_S: Final = 0.02
SILENCE_MS: Final = 300
"""The patience of clients here, and a fraction of how long a handler blocks its loop."""
BLOCKED_S: Final = 1.0
WATCHED: Final = (
    ("grpc.keepalive_time_ms", SILENCE_MS // 2),
    ("grpc.keepalive_timeout_ms", SILENCE_MS // 2),
)
WAIT_S: Final = 20
REQUEST: Final = b"a request that is never answered"
SLEEP, FLOOD, WAIT = (f"/test.Busy/{name}" for name in ("Sleep", "Flood", "Wait"))


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs_of_life, "LOOK_S", LOOK_S)


def block(seconds: float) -> None:
    """Keep the loop from turning, as a long computation does."""
    time.sleep(seconds)


async def sleep(request: bytes, _: Any) -> bytes:
    """Block the loop."""
    block(float(request))
    return request


async def wait(request: bytes, _: Any) -> bytes:
    """Answer later, and let the loop turn."""
    await asyncio.sleep(float(request))
    return request


async def flood(request: bytes, _: Any) -> AsyncIterator[bytes]:
    """Answer with many messages, and block the loop again and again in between."""
    for number in range(int(request)):
        if number % 50 == 0:
            block(3 * LOOK_S)
        yield number.to_bytes(4) * 1_000


HANDLERS: Final = grpc.method_handlers_generic_handler(
    "test.Busy",
    {
        "Sleep": grpc.unary_unary_rpc_method_handler(sleep),
        "Wait": grpc.unary_unary_rpc_method_handler(wait),
        "Flood": grpc.unary_stream_rpc_method_handler(flood),
    },
)


@contextmanager
def serving(
    address: str, loops: Callable[[], asyncio.AbstractEventLoop], options: Options = ()
) -> Iterator[None]:
    """Serve at an address, on a loop in a thread of its own."""
    loop = loops()
    ready, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        server = WireServer(options)
        server.add_generic_rpc_handlers((HANDLERS,))
        server.add_insecure_port(address)
        await server.start()
        ready.set()
        await over.wait()
        await server.stop(None)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(WAIT_S)
        loop.close()


LOOPS: Final = pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
async def test_a_busy_server_lives(
    tmp_path: Path, loops: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """A call whose handler blocks its loop for much longer than the client bears silence is
    answered, on the connection on which it began."""
    address = f"unix:{tmp_path}/busy.sock"
    with serving(address, loops):
        channel = WireChannel(address, WATCHED)
        assert await channel.unary_unary(SLEEP)(b"0", timeout=WAIT_S) == b"0"
        answer = await channel.unary_unary(SLEEP)(str(BLOCKED_S).encode(), timeout=WAIT_S)
        assert float(answer) == BLOCKED_S
        await channel.close()


async def test_without_signs_it_would_look_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call ends with a timeout of a ping if no thread speaks for the server."""
    monkeypatch.setattr("viewstamp.wire.socket.spoken_for", lambda socket: None)
    address = f"unix:{tmp_path}/busy.sock"
    with serving(address, asyncio.new_event_loop):
        channel = WireChannel(address, WATCHED)
        with pytest.raises(grpc.aio.AioRpcError, match="ping timeout"):
            await channel.unary_unary(SLEEP)(str(BLOCKED_S).encode(), timeout=WAIT_S)
        await channel.close()


@LOOPS
async def test_signs_tear_no_frame(
    tmp_path: Path, loops: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """A stream that is larger than all buffers arrives as it was sent, though its server is busy
    again and again."""
    address = f"unix:{tmp_path}/busy.sock"
    with serving(address, loops):
        channel = WireChannel(address, WATCHED)
        taken = [message async for message in channel.unary_stream(FLOOD)(b"1000", timeout=WAIT_S)]
        assert taken == [number.to_bytes(4) * 1_000 for number in range(1_000)]
        await channel.close()


async def test_a_busy_client_lives(tmp_path: Path) -> None:
    """A client whose own loop was blocked for longer than its patience finds its connection alive,
    and so does its server, which has no more patience."""
    address = f"unix:{tmp_path}/busy.sock"
    with serving(address, asyncio.new_event_loop, WATCHED):
        channel = WireChannel(address, WATCHED)
        call = channel.unary_unary(SLEEP)(b"0.1", timeout=WAIT_S)
        await asyncio.sleep(0.05)
        block(BLOCKED_S)
        assert await call == b"0.1"
        assert await channel.unary_unary(SLEEP)(b"0", timeout=WAIT_S) == b"0"
        await channel.close()


async def test_a_pause_is_no_silence_of_the_peer(tmp_path: Path) -> None:
    """A client whose loop was blocked asks a silent server for a sign of life before it leaves."""
    address = f"unix:{tmp_path}/busy.sock"
    with serving(address, asyncio.new_event_loop):
        channel = WireChannel(address, WATCHED)
        assert await channel.unary_unary(WAIT)(b"0", timeout=WAIT_S) == b"0"
        call = channel.unary_unary(WAIT)(b"2", timeout=WAIT_S)
        await asyncio.sleep(LOOK_S)
        block(BLOCKED_S)
        assert await call == b"2"
        await channel.close()


class Told:
    """A transport whose peer reads, or does not."""

    def __init__(self, waiting_bytes: int) -> None:
        self.waiting_bytes = waiting_bytes
        self.transport: Any = self
        self.aborted = ""

    def get_write_buffer_size(self) -> int:
        """Return how much waits."""
        return self.waiting_bytes

    def abort(self, why: str) -> None:
        """Keep why."""
        self.aborted = why


@pytest.mark.parametrize(
    ("waiting_bytes", "is_blocked", "expected"),
    [(0, True, SIGN), (1, True, b""), (0, False, b"")],
    ids=["a sign", "none while something waits", "none while the loop turns"],
)
async def test_who_is_spoken_for(waiting_bytes: int, is_blocked: bool, expected: bytes) -> None:
    """A sign leaves if the loop has not turned since the last look and nothing waits."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    watch = signs_of_life.LoopWatch(asyncio.get_running_loop())
    watch.speakers[Told(waiting_bytes)] = ours
    watch.look()
    if not is_blocked:
        await asyncio.sleep(0)
    watch.look()
    ours.close()
    assert theirs.recv(HEAD_BYTES + 1) == expected
    theirs.close()


async def test_a_torn_sign_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system takes a part of the frame, nothing sensible can follow: the socket ends."""
    watch = signs_of_life.LoopWatch(asyncio.get_running_loop())
    torn = Told(0)
    ours, theirs = socket.socketpair()
    watch.speakers[torn] = ours
    monkeypatch.setattr(os, "write", lambda descriptor, data: len(data) - 1)
    watch.look()
    watch.look()
    await asyncio.sleep(0)
    assert torn.aborted == "a sign of life was torn"
    ours.close()
    theirs.close()


async def test_a_descriptor_that_is_anothers_now_gets_no_sign(tmp_path: Path) -> None:
    """A file that is opened in the place of a closed socket stays empty."""
    ours, theirs = socket.socketpair()
    watch = signs_of_life.LoopWatch(asyncio.get_running_loop())
    watch.speakers[Told(0)] = ours
    number = ours.fileno()
    ours.close()
    file = os.open(tmp_path / "journal", os.O_CREAT | os.O_WRONLY)
    assert file == number
    watch.look()
    watch.look()
    os.close(file)
    theirs.close()
    assert (tmp_path / "journal").read_bytes() == b""


def test_a_closed_loop_has_nobody_to_speak_for() -> None:
    """Sockets of a loop that was closed while it was busy are forgotten, and get no sign."""
    loop = asyncio.new_event_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    watch = signs_of_life.LoopWatch(loop)
    watch.speakers[Told(0)] = ours

    async def is_busy() -> None:
        watch.look()

    loop.run_until_complete(is_busy())
    watch.look()
    loop.close()
    watch.look()
    assert not watch.speakers
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    ours.close()
    theirs.close()


@LOOPS
def test_a_connection_that_is_given_up_is_not_spoken_for(
    tmp_path: Path,
    loops: Callable[[], asyncio.AbstractEventLoop],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt to connect that is cancelled between the connection and its first use leaves no
    socket for which the thread would speak."""
    address = f"unix:{tmp_path}/busy.sock"
    sockets: list[Http2Socket] = []
    made = Http2Socket.connection_made

    def connection_made(self: Http2Socket, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        if self.connection.role is Role.CLIENT:  # the server's is of another thread
            sockets.append(self)
            task.cancel()

    async def attempt() -> None:
        dialler = Dialler(address, WireOptions(), None)
        with pytest.raises(asyncio.CancelledError):
            await dialler.dial()

    with serving(address, asyncio.new_event_loop), contextlib.closing(loops()) as loop:
        monkeypatch.setattr(Http2Socket, "connection_made", connection_made)
        task = loop.create_task(attempt())
        loop.run_until_complete(task)
        loop.run_until_complete(asyncio.sleep(3 * LOOK_S))
        monkeypatch.undo()
    assert [each.is_gone for each in sockets] == [True]


async def answering(
    said: Callable[[bytes], bytes],
) -> tuple[asyncio.Server, str]:
    """Serve with settings, and with what is said to each packet of a client."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings_frame({}))
        while data := await reader.read(65_536):
            writer.write(said(data))
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_long_pause_makes_a_dead_peer_no_younger(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of ten minutes at whose end the peer was heard, its silence is noticed as soon
    as ever."""
    clock, jump_ns = time.monotonic_ns, 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock() + jump_ns)

    def said(data: bytes) -> bytes:
        nonlocal jump_ns
        if jump_ns or REQUEST not in data:
            return b""
        jump_ns = 600 * 10**9
        return frame(Kind.PING, 0, CONNECTION, bytes(PING_BYTES))

    server, address = await answering(said)
    channel = WireChannel(address, WATCHED)
    with pytest.raises(grpc.aio.AioRpcError, match="ping timeout"):
        await channel.unary_unary(SLEEP)(REQUEST, timeout=WAIT_S)
    assert jump_ns
    await channel.close()
    server.close()


async def test_a_peer_that_was_not_asked_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that is blocked between its decision to ask and the ping waits for the answer."""
    ping, asked = Connection.ping, 0

    def blocked(self: Connection, payload: bytes) -> None:
        nonlocal asked
        asked += 1
        ping(self, payload)
        asyncio.get_running_loop().call_soon(block, 2 * SILENCE_MS / 1_000)

    address = f"unix:{tmp_path}/busy.sock"
    with serving(address, asyncio.new_event_loop):
        channel = WireChannel(address, WATCHED)
        assert await channel.unary_unary(WAIT)(b"0", timeout=WAIT_S) == b"0"
        monkeypatch.setattr(Connection, "ping", blocked)
        assert await channel.unary_unary(WAIT)(b"1", timeout=WAIT_S) == b"1"
        await channel.close()
    assert asked


def test_a_sign_means_nothing() -> None:
    """A connection that gets a sign between frames tells nobody of anything."""
    server = Connection(Role.SERVER, Limits(), 0)
    client = Connection(Role.CLIENT, Limits(), 0)
    client.begin()
    receiver = FrameReceiver(server)
    list(receiver.receive(client.output(), 0))
    assert list(receiver.receive(SIGN, 0)) == []
