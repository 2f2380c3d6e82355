"""The world's gRPC does what the library does, as far as callers and handlers can see.

Method: each conversation runs twice, over the library on a real port and in a world, and both have
to give the same account of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest

from testkit.world.schedule import NS_PER_S
from testkit.world.world import World
from viewstamp import grpc_transport
from viewstamp.transports import GRPCIO, WIRE

Account = list[object]

FLOOD_BYTES = 100_000


@dataclass
class Conversation:
    """A server with one service, a channel to it, and what both sides have seen."""

    address: str
    seen: Account = field(default_factory=list)
    handled: Account = field(default_factory=list)
    """What handlers saw: whether that comes before what the caller sees is chance."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Conversation:
        """Serve, and open the channel."""
        self.server = grpc_transport.make_server(())
        self.server.add_generic_rpc_handlers((self._handlers(),))
        self.server.add_insecure_port(self.address)
        await self.server.start()
        self.channel = grpc_transport.open_channel(self.address, ())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close both."""
        await self.channel.close()
        await self.server.stop(None)

    def unary(self, name: str, **options: Any) -> Any:
        """Return a call of a unary method."""
        method: Any = self.channel.unary_unary(f"/Test/{name}")
        return method(name.encode(), **options)

    def stream(self, name: str) -> Any:
        """Return a stream in both directions."""
        return self.channel.stream_stream(f"/Test/{name}")()

    async def told(self, call: Awaitable[Any]) -> None:
        """Note the answer of a call, or how it failed."""
        try:
            self.seen.append(await call)
        except grpc.aio.AioRpcError as error:
            self.seen.append((error.code(), error.details(), tuple(error.trailing_metadata())))

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary = {
            "Echo": self._echo,
            "Refuse": self._refuse,
            "Raise": self._raise,
            "Hang": self._hang,
        }
        streams = {
            "EchoAll": self._echo_all,
            "AbortLate": self._abort_late,
            "Wait": self._wait,
            "Flood": self._flood,
        }
        handlers: dict[str, Any] = {
            **{name: grpc.unary_unary_rpc_method_handler(one) for name, one in unary.items()},
            **{name: grpc.stream_stream_rpc_method_handler(one) for name, one in streams.items()},
        }
        return grpc.method_handlers_generic_handler("Test", handlers)

    async def _echo(self, request: bytes, context: Any) -> bytes:
        found = dict(context.invocation_metadata())
        return request + str(found.get("colour", "")).encode()

    async def _refuse(self, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "not here", (("why-bin", b"\x01"),))
        return b""

    async def _raise(self, request: bytes, context: Any) -> bytes:
        raise ValueError("a defect")

    async def _hang(self, request: bytes, context: Any) -> bytes:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.handled.append("the handler was cancelled")
            self.ended.set()
            raise
        return b""

    async def _echo_all(self, _: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    async def _abort_late(self, _: Any, context: Any) -> None:
        await context.write(b"one")
        await context.write(b"two")
        await context.abort(grpc.StatusCode.DATA_LOSS, "then nothing")

    async def _flood(self, _: Any, context: Any) -> None:
        self.begun.set()
        try:
            while True:
                await context.write(bytes(FLOOD_BYTES))
        finally:
            self.ended.set()

    async def _wait(self, _: Any, context: Any) -> None:
        await context.read()
        await context.write(b"begun")
        try:
            await asyncio.Event().wait()
        finally:
            self.handled.append("the stream's handler ended")
            self.ended.set()


async def answers(talk: Conversation) -> None:
    """Metadata arrive, and the answer comes back."""
    await talk.told(talk.unary("Echo", metadata=(("colour", "blue"),)))


async def refusals(talk: Conversation) -> None:
    """An abort carries its code, words and metadata."""
    await talk.told(talk.unary("Refuse"))


async def defects(talk: Conversation) -> None:
    """A handler's exception is UNKNOWN, with its words."""
    await talk.told(talk.unary("Raise"))


async def unknown_methods(talk: Conversation) -> None:
    """A method that nobody serves is refused."""
    await talk.told(talk.unary("Nothing"))


async def deadlines(talk: Conversation) -> None:
    """A call that nobody answers ends with its deadline."""
    await talk.told(talk.unary("Hang", timeout=0.2))
    talk.handled.clear()  # the deadline may have passed before the handler began


async def cancelled_calls(talk: Conversation) -> None:
    """A caller who is cancelled takes the handler along."""
    waiting = asyncio.ensure_future(talk.told(talk.unary("Hang")))
    await talk.begun.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await talk.ended.wait()


async def echoes(talk: Conversation) -> None:
    """A stream carries messages both ways, in order, until it is closed."""
    call = talk.stream("EchoAll")
    for number in range(3):
        await call.write(str(number).encode())
        talk.seen.append(await call.read())
    await call.done_writing()
    talk.seen += [await call.read() is grpc.aio.EOF, await call.code()]


async def late_aborts(talk: Conversation) -> None:
    """What was written before an abort is read before it."""
    call = talk.stream("AbortLate")
    for _ in range(3):
        await talk.told(call.read())
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"too late")


async def cancelled_streams(talk: Conversation) -> None:
    """A stream that its caller cancels ends at the server, too."""
    call = talk.stream("Wait")
    await call.write(b"begin")
    talk.seen.append(await call.read())
    call.cancel()
    await talk.ended.wait()
    talk.seen.append(call.cancelled())


async def closed_channels(talk: Conversation) -> None:
    """A channel that is closed cancels its calls."""
    call = talk.stream("Wait")
    await call.write(b"begin")
    talk.seen.append(await call.read())
    await talk.channel.close()
    await talk.ended.wait()
    talk.seen.append(await call.code())


async def stopped_servers(talk: Conversation) -> None:
    """A server that stops without grace ends the handlers, and then nobody listens."""
    call = talk.stream("Wait")
    await call.write(b"begin")
    talk.seen.append(await call.read())
    await talk.server.stop(None)
    await talk.ended.wait()
    talk.seen.append(await call.code())
    try:
        await talk.unary("Echo")
    except grpc.aio.AioRpcError as error:
        begins = (error.details() or "").startswith("failed to connect to all addresses")
        talk.seen.append((error.code(), begins))


async def stopped_answers(talk: Conversation) -> None:
    """A call that waits for its answer when the server stops learns that nobody serves it."""
    call = talk.unary("Hang")
    await talk.begun.wait()
    await talk.server.stop(0.1)
    await talk.ended.wait()
    talk.seen.append(await call.code())


async def stopped_writers(talk: Conversation) -> None:
    """A caller for whom answers wait when the server stops learns that nobody serves it."""
    call = talk.stream("Flood")
    await talk.begun.wait()
    await asyncio.sleep(0.2)
    await talk.server.stop(0.1)
    await talk.ended.wait()
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    talk.seen.append(await call.code())


async def stopping_servers(talk: Conversation) -> None:
    """A server that waits for calls before it stops takes no new ones, also on a connection that
    it has."""
    call = talk.stream("Wait")
    await call.write(b"begin")
    talk.seen.append(await call.read())
    stopping = asyncio.create_task(talk.server.stop(1))
    await asyncio.sleep(0.1)
    try:
        await talk.unary("Echo")
    except grpc.aio.AioRpcError as error:
        talk.seen.append(error.code())
    await stopping
    await talk.ended.wait()


CONVERSATIONS: list[Callable[[Conversation], Coroutine[Any, Any, None]]] = [
    answers,
    refusals,
    defects,
    unknown_methods,
    deadlines,
    cancelled_calls,
    echoes,
    late_aborts,
    cancelled_streams,
    closed_channels,
    stopped_servers,
    stopped_answers,
    stopped_writers,
    stopping_servers,
]


async def account_of(
    conversation: Callable[[Conversation], Coroutine[Any, Any, None]], address: str
) -> Account:
    """Return what both sides saw of a conversation."""
    async with Conversation(address) as talk:
        await conversation(talk)
        return [*talk.seen, *talk.handled]


def in_a_world(transport: str, work: Callable[[], Coroutine[Any, Any, Account]]) -> Account:
    """Run a coroutine as the only process of a world; return its result."""
    world = World(1, transport)
    results: list[Account] = []

    async def main() -> None:
        results.append(await work())

    with world.running():
        process = world.process("both", world.machine("10.0.0.1"))
        process.run(main)
        assert world.run(lambda: not process.is_alive, 60 * NS_PER_S), "it hangs"
    assert results, list(world.schedule.transcript)
    return results[0]


@pytest.mark.parametrize("transport", [GRPCIO, WIRE])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_a_world_and_the_library_tell_the_same(
    conversation: Callable[[Conversation], Coroutine[Any, Any, None]], transport: str
) -> None:
    """Callers and handlers see the same in a world, on either transport, as over a real connection
    of the library."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    real = asyncio.run(account_of(conversation, f"127.0.0.1:{port}"))
    simulated = in_a_world(transport, lambda: account_of(conversation, "10.0.0.1:7000"))
    assert real, "a conversation says something"
    assert simulated == real
