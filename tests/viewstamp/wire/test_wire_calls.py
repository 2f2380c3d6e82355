"""Calls of every kind between our transport and the gRPC library: neither can tell the difference.

Method: a server and a client in one process, over real sockets, in every combination of the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from tests.viewstamp.wire.echo import (
    BREAK,
    CHAT,
    COUNT,
    DETAILS_KEY,
    ECHO,
    REFUSE,
    SLEEP,
    SUM,
    TELL,
    Echo,
)
from viewstamp import event_loop
from viewstamp.grpc_transport import GrpcTransport, Transport
from viewstamp.limits import MIB
from viewstamp.wire.transport import WireTransport

TRANSPORTS: Final[dict[str, Transport]] = {"ours": WireTransport(), "library": GrpcTransport()}
PAIRS: Final = [
    pytest.param((client, server), id=f"{client}-to-{server}")
    for client in TRANSPORTS
    for server in TRANSPORTS
]
OPTIONS: Final = (
    ("grpc.max_receive_message_length", 4 * MIB),
    ("grpc.max_send_message_length", 4 * MIB),
    ("grpc.max_concurrent_streams", 1_000),
)
# More than anything takes on the slowest machine.
PATIENCE_S: Final = 20


class Line:
    """A channel to a server, and what the server does."""

    def __init__(self, channel: Any, echo: Echo, address: str) -> None:
        self.channel = channel
        self.echo = echo
        self.address = address

    async def unary(self, path: str, request: bytes, **options: Any) -> Any:
        """Call, and return the answer."""
        return await self.channel.unary_unary(path)(request, timeout=PATIENCE_S, **options)


@pytest.fixture(params=PAIRS)
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    """Give a channel of each kind to a server of each kind."""
    client, server_kind = request.param
    server, echo = TRANSPORTS[server_kind].server(OPTIONS), Echo()
    server.add_generic_rpc_handlers((echo.handlers(),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    channel = TRANSPORTS[client].channel(address, OPTIONS, None)
    yield Line(channel, echo, address)
    await channel.close()
    await server.stop(None)


@pytest.mark.parametrize("size", [0, 1, 16_384, 300_000, 4 * MIB - 1_024])
async def test_a_message_comes_back(line: Line, size: int) -> None:
    """A message of any size goes to and fro, beyond frames and windows."""
    message = bytes(range(256)) * (size // 256 + 1)
    assert await line.unary(ECHO, message[:size]) == message[:size]


async def test_many_calls_share_a_connection(line: Line) -> None:
    """Two hundred calls at once are answered, each with its own message."""
    messages = [b"%d" % number * number for number in range(200)]
    answers = await asyncio.gather(*(line.unary(ECHO, message) for message in messages))
    assert list(answers) == messages


async def test_more_calls_wait_than_a_peer_takes_untold(line: Line) -> None:
    """A hundred and fifty calls that wait keep no other one from its answer."""
    waiting = [line.channel.unary_unary(SLEEP)(b"", timeout=PATIENCE_S) for _ in range(150)]
    assert await line.unary(ECHO, b"beside them") == b"beside them"
    for call in waiting:
        call.cancel()


async def test_answers_that_nobody_reads_keep_no_others_away(line: Line) -> None:
    """After 6 MB that were sent and never read, another call is answered."""
    for _ in range(20):
        call = line.channel.unary_stream(COUNT)(b"3 100000", timeout=PATIENCE_S)
        await call.read()
        await asyncio.sleep(0.01)
        call.cancel()
    assert await line.unary(ECHO, bytes(100_000)) == bytes(100_000)


async def test_two_ends_with_much_to_say_go_on(line: Line) -> None:
    """Both sides send more than any buffer holds, at once, and neither waits for the other."""

    async def chat() -> int:
        call = line.channel.stream_stream(CHAT)(timeout=PATIENCE_S)
        sending = asyncio.create_task(say(call))
        answers = [await call.read() for _ in range(20)]
        await sending
        call.cancel()
        return sum(map(len, answers))

    async def say(call: Any) -> None:
        for _ in range(20):
            await call.write(bytes(200_000))

    assert await asyncio.gather(*(chat() for _ in range(8))) == [20 * 200_000] * 8


async def test_a_stream_of_answers(line: Line) -> None:
    """A thousand answers come in order, and then the end."""
    call = line.channel.unary_stream(COUNT)(b"1000 2000", timeout=PATIENCE_S)
    answers = [answer async for answer in call]
    assert [answer[0] for answer in answers] == [number % 256 for number in range(1_000)]
    assert {len(answer) for answer in answers} == {2_000}
    assert await call.code() == grpc.StatusCode.OK


async def test_a_stream_of_requests(line: Line) -> None:
    """All requests arrive before the one answer."""

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(500):
            yield bytes(3_000)

    answer = await line.channel.stream_unary(SUM)(requests(), timeout=PATIENCE_S)
    assert answer == b"500 1500000"


async def test_messages_go_to_and_fro(line: Line) -> None:
    """A conversation goes on until the client has nothing more to say."""
    call = line.channel.stream_stream(CHAT)(timeout=PATIENCE_S)
    for number in range(100):
        message = bytes([number]) * (1 + number * 500)
        await call.write(message)
        assert await call.read() == message
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() == grpc.StatusCode.OK


async def test_a_refusal_has_a_status(line: Line) -> None:
    """Code, words and metadata of a refusal arrive as they were given."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await line.unary(REFUSE, "nöt 100 %\n".encode())
    error = caught.value
    assert (error.code(), error.details()) == (grpc.StatusCode.ALREADY_EXISTS, "nöt 100 %\n")
    trailing = dict(error.trailing_metadata())
    assert trailing[DETAILS_KEY] == b"\x00\xff"
    assert trailing["plain"] == "words"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (BREAK, grpc.StatusCode.UNKNOWN),
        ("/test.Echo/Nothing", grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_what_fails_has_a_status(line: Line, path: str, code: grpc.StatusCode) -> None:
    """A handler that raises, and a method that nobody has, are told apart."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await line.unary(path, b"")
    assert caught.value.code() == code


async def test_metadata_pass_both_ways(line: Line) -> None:
    """Metadata of the request reach the handler; those of the answer come first and last."""
    metadata = (("x-plain", "words"), ("x-data-bin", b"\x00\x01\xfe"))
    call = line.channel.unary_unary(TELL)(b"", metadata=metadata, timeout=PATIENCE_S)
    told = (await call).decode()
    assert told == repr(([("x-data-bin", b"\x00\x01\xfe"), ("x-plain", "words")], True, "ipv4"))
    assert dict(await call.initial_metadata())["initial-bin"] == b"\x01"
    assert dict(await call.trailing_metadata())["trailing"] == "last"


async def test_a_deadline_ends_a_call(line: Line) -> None:
    """The caller is told that its time is over, and the handler is cancelled."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await line.channel.unary_unary(SLEEP)(b"", timeout=0.1)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(PATIENCE_S):
        await line.echo.cancelled.wait()


async def test_a_call_that_was_cancelled_gives_no_more_answers(line: Line) -> None:
    """Answers that have come already are not read once the caller has cancelled."""
    call = line.channel.unary_stream(COUNT)(b"100000 1000", timeout=PATIENCE_S)
    await call.read()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.read()


async def test_a_caller_who_leaves_cancels_the_handler(line: Line) -> None:
    """Cancelling the call, or the task that waits for it, ends the handler."""
    task = asyncio.ensure_future(line.unary(SLEEP, b""))
    await line.unary(ECHO, b"")
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(PATIENCE_S):
        await line.echo.cancelled.wait()


async def test_a_message_that_is_too_large_is_refused(line: Line) -> None:
    """Its caller is told so, and the connection goes on."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await line.unary(ECHO, bytes(4 * MIB + 1))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await line.unary(ECHO, b"on") == b"on"


@pytest.mark.parametrize("client", TRANSPORTS)
async def test_nobody_there_is_unavailable(client: str, tmp_path: Path) -> None:
    """A call to an address where nobody listens fails, and does not wait for ever."""
    channel: Any = TRANSPORTS[client].channel(f"unix:{tmp_path / 'nobody'}", OPTIONS, None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(ECHO)(b"", timeout=PATIENCE_S)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    await channel.close()


@pytest.mark.parametrize("pair", PAIRS)
async def test_a_unix_socket_carries_calls(pair: tuple[str, str], tmp_path: Path) -> None:
    """A server at a path is reached by it, and its end is told to who waits."""
    client, server_kind = pair
    server, address = TRANSPORTS[server_kind].server(OPTIONS), f"unix:{tmp_path / 'socket'}"
    server.add_generic_rpc_handlers((Echo().handlers(),))
    assert server.add_insecure_port(address) == 1
    await server.start()
    channel: Any = TRANSPORTS[client].channel(address, OPTIONS, None)
    assert await channel.unary_unary(ECHO)(b"here", timeout=PATIENCE_S) == b"here"
    waiting = channel.unary_unary(SLEEP)(b"", timeout=PATIENCE_S)
    await channel.unary_unary(ECHO)(b"", timeout=PATIENCE_S)
    await server.stop(0.1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await waiting
    assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    await channel.close()


def test_calls_on_the_loop_of_the_product() -> None:
    """Both ends work on uvloop, too, whose transports are of other classes."""

    async def main() -> bytes:
        transport = WireTransport()
        server = transport.server(OPTIONS)
        server.add_generic_rpc_handlers((Echo().handlers(),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        async with transport.channel(address, OPTIONS, None) as channel:
            answer: bytes = await channel.unary_unary(ECHO)(bytes(100_000), timeout=PATIENCE_S)
        await server.stop(None)
        return answer

    assert event_loop.run(main()) == bytes(100_000)
