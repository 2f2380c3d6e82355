"""The world's network, as callers see it on either transport: cuts, deaths and keepalive.

Method: a server that echoes, and a caller on another machine who notes what comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from testkit.world.schedule import NS_PER_MS
from testkit.world.world import World
from tests.testkit.world.passing import pass_ms, started
from viewstamp import grpc_transport
from viewstamp.transports import GRPCIO, WIRE

ADDRESS = "10.0.0.1:7000"


@pytest.fixture(params=[GRPCIO, WIRE])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Give a world of either transport that is below everything."""
    world = World(7, request.param)
    with world.running():
        yield world


async def serve() -> None:
    """Echo on a stream, for ever."""

    async def echo(_: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    handlers: Any = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server = grpc_transport.make_server((("grpc.keepalive_time_ms", 60_000),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", handlers),))
    server.add_insecure_port(ADDRESS)
    await server.start()
    await asyncio.Event().wait()


class EchoCaller:
    """Sends numbers over one stream, and notes what comes back and how it ends."""

    def __init__(self, world: World, keepalive_ms: int | None = None) -> None:
        self.heard: list[int] = []
        self.ended: grpc.StatusCode | None = None
        self.ended_ns = 0
        self._world = world
        each = None if keepalive_ms is None else keepalive_ms // 2
        self._options = (
            ()
            if each is None
            else (("grpc.keepalive_time_ms", each), ("grpc.keepalive_timeout_ms", each))
        )

    async def run(self) -> None:
        """Call until the stream ends."""
        async with grpc_transport.open_channel(ADDRESS, self._options) as channel:
            call: Any = channel.stream_stream("/Test/Echo")(wait_for_ready=True)
            try:
                await self._talk(call)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self.ended, self.ended_ns = await call.code(), self._world.schedule.now_ns

    async def _talk(self, call: Any) -> None:
        number = 0
        while True:
            await call.write(str(number).encode())
            self.heard.append(int(await call.read()))
            number += 1
            await asyncio.sleep(0.005)


def test_a_cut_delays_and_loses_nothing(world: World) -> None:
    """A stream over a link that is cut for a while goes on afterwards, in order."""
    started(world, "10.0.0.1", serve)
    caller = EchoCaller(world)
    started(world, "10.0.0.2", caller.run)
    pass_ms(world, 100)
    world.network.cut("10.0.0.1", "10.0.0.2")
    pass_ms(world, 10)
    count = len(caller.heard)
    pass_ms(world, 1_000)
    assert len(caller.heard) == count
    world.network.heal("10.0.0.1", "10.0.0.2")
    pass_ms(world, 1_000)
    assert len(caller.heard) > count
    assert caller.heard == list(range(len(caller.heard)))
    assert caller.ended is None


def test_keepalive_ends_a_silent_connection(world: World) -> None:
    """A caller with keepalive gives a cut connection up after that time; it is not told before."""
    started(world, "10.0.0.1", serve)
    caller = EchoCaller(world, keepalive_ms=400)
    started(world, "10.0.0.2", caller.run)
    pass_ms(world, 100)
    cut_ns = world.schedule.now_ns
    world.network.cut("10.0.0.2", "10.0.0.1")
    pass_ms(world, 2_000)
    assert caller.ended is grpc.StatusCode.UNAVAILABLE
    assert 400 * NS_PER_MS <= caller.ended_ns - cut_ns <= 600 * NS_PER_MS


def test_a_death_is_heard_of_at_once(world: World) -> None:
    """The machine of a killed process closes its connections, so callers need no keepalive."""
    server = started(world, "10.0.0.1", serve)
    caller = EchoCaller(world)
    started(world, "10.0.0.2", caller.run)
    pass_ms(world, 100)
    server.kill()
    pass_ms(world, 500)
    assert caller.ended is grpc.StatusCode.UNAVAILABLE


def test_a_death_behind_a_cut_is_heard_of_later(world: World) -> None:
    """News of a death wait for the end of the cut like everything else."""
    server = started(world, "10.0.0.1", serve)
    caller = EchoCaller(world)
    started(world, "10.0.0.2", caller.run)
    pass_ms(world, 100)
    world.network.cut("10.0.0.1", "10.0.0.2")
    server.kill()
    pass_ms(world, 1_000)
    assert caller.ended is None
    world.network.heal("10.0.0.1", "10.0.0.2")
    pass_ms(world, 1_000)
    assert caller.ended is grpc.StatusCode.UNAVAILABLE


def test_a_paused_server_answers_when_it_goes_on(world: World) -> None:
    """A process that stands still loses nothing that was sent to it."""
    server = started(world, "10.0.0.1", serve)
    caller = EchoCaller(world)
    started(world, "10.0.0.2", caller.run)
    pass_ms(world, 100)
    server.pause()
    pass_ms(world, 300)  # what was under way has arrived
    count = len(caller.heard)
    pass_ms(world, 1_000)
    assert len(caller.heard) == count
    server.resume()
    pass_ms(world, 500)
    assert len(caller.heard) > count
    assert caller.heard == list(range(len(caller.heard)))


def test_a_lost_connection_ends_calls_at_both_ends(world: World) -> None:
    """A connection that a router forgets ends its calls, and the next call gets another one."""
    started(world, "10.0.0.1", serve)
    first, second = EchoCaller(world), EchoCaller(world)
    started(world, "10.0.0.2", first.run)
    pass_ms(world, 100)
    world.network.lose_connections("10.0.0.1", "10.0.0.2")
    pass_ms(world, 100)
    started(world, "10.0.0.2", second.run)
    pass_ms(world, 200)
    assert first.ended is grpc.StatusCode.UNAVAILABLE
    assert second.heard and second.ended is None
