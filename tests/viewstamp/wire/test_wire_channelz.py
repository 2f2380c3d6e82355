"""Channelz tells of our servers, channels and connections what the library tells of its own.

Method: the same calls to a server of each kind, and then the same questions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from grpc_channelz.v1 import channelz_pb2 as pb
from grpc_channelz.v1 import channelz_pb2_grpc

from tests.viewstamp.wire.echo import BREAK, COUNT, ECHO, serving_echo
from viewstamp.grpc_transport import GrpcTransport, Transport
from viewstamp.wire.channelz import PAGE_MAX, Numbers
from viewstamp.wire.transport import WireTransport

PATIENCE_S: Final = 20


@contextlib.asynccontextmanager
async def serving(transport: Transport) -> AsyncIterator[str]:
    """Serve calls, and Channelz about them; yield the address."""
    async with serving_echo(transport) as (server, port):
        channelz_pb2_grpc.add_ChannelzServicer_to_server(transport.channelz(), server)
        yield f"127.0.0.1:{port}"


def stub_of(channel: Any) -> Any:
    """Return what asks Channelz over a channel."""
    return channelz_pb2_grpc.ChannelzStub(channel)


async def hold_conversation(channel: Any) -> None:
    """Make three calls that succeed, with seven messages in all, and one that fails."""
    for _ in range(2):
        await channel.unary_unary(ECHO)(b"x", timeout=PATIENCE_S)
    async for _ in channel.unary_stream(COUNT)(b"3 10", timeout=PATIENCE_S):
        pass
    with contextlib.suppress(grpc.aio.AioRpcError):
        await channel.unary_unary(BREAK)(b"x", timeout=PATIENCE_S)


@pytest.mark.parametrize("transport", [WireTransport(), GrpcTransport()], ids=["ours", "library"])
async def test_a_server_shows_its_calls_and_connections(transport: Transport) -> None:
    """Three calls succeeded, one failed, one asks: of the server and of its only connection, whose
    addresses, messages and windows are told, too."""
    async with serving(transport) as address, grpc.aio.insecure_channel(address) as channel:
        await hold_conversation(channel)
        channelz = stub_of(channel)
        servers = await channelz.GetServers(pb.GetServersRequest())
        server = servers.server[-1]
        counted = server.data
        assert (counted.calls_started, counted.calls_succeeded, counted.calls_failed) == (5, 3, 1)
        assert counted.last_call_started_timestamp.seconds > 0
        assert servers.end
        [listening] = server.listen_socket
        shown = await channelz.GetSocket(pb.GetSocketRequest(socket_id=listening.socket_id))
        assert shown.socket.local.tcpip_address.ip_address == bytes((127, 0, 0, 1))

        of_server = pb.GetServerSocketsRequest(server_id=server.ref.server_id)
        sockets = await channelz.GetServerSockets(of_server)
        [reference] = sockets.socket_ref
        answer = await channelz.GetSocket(pb.GetSocketRequest(socket_id=reference.socket_id))
        socket = answer.socket
        assert socket.local.tcpip_address.port == int(address.rpartition(":")[2])
        assert socket.local.tcpip_address.ip_address == bytes((127, 0, 0, 1))
        assert socket.remote.tcpip_address.port not in (0, socket.local.tcpip_address.port)
        carried = socket.data
        assert (carried.streams_started, carried.streams_failed) == (8, 0)
        # The failed call was answered without a message, and the last one is under way.
        assert (carried.messages_received, carried.messages_sent) == (8, 8)
        assert carried.last_remote_stream_created_timestamp.seconds > 0


@pytest.mark.parametrize("transport", [WireTransport(), GrpcTransport()], ids=["ours", "library"])
async def test_a_channel_shows_its_target_and_calls(transport: Transport) -> None:
    """A channel of the process is listed with its target, its state and the calls on it."""
    async with serving(transport) as address:
        channel = transport.channel(address, (), None)
        await hold_conversation(channel)
        channelz = stub_of(channel)
        listed = await channelz.GetTopChannels(pb.GetTopChannelsRequest())
        shown = next(each for each in listed.channel if address in each.data.target)
        assert shown.data.state.state == pb.ChannelConnectivityState.READY
        counted = shown.data
        assert (counted.calls_started, counted.calls_succeeded, counted.calls_failed) == (5, 3, 1)
        again = await channelz.GetChannel(pb.GetChannelRequest(channel_id=shown.ref.channel_id))
        assert again.channel.data.target == counted.target
        await channel.close()


async def test_our_channel_has_its_connection_itself() -> None:
    """The connection of a channel tells which end it is, and how much its windows allow."""
    transport = WireTransport()
    async with serving(transport) as address:
        channel = transport.channel(address, (), None)
        await hold_conversation(channel)
        channelz = stub_of(channel)
        listed = await channelz.GetTopChannels(pb.GetTopChannelsRequest())
        [reference] = listed.channel[0].socket_ref
        answer = await channelz.GetSocket(pb.GetSocketRequest(socket_id=reference.socket_id))
        assert answer.socket.remote.tcpip_address.port == int(address.rpartition(":")[2])
        carried = answer.socket.data
        assert (carried.streams_started, carried.streams_succeeded) == (6, 5)
        assert (carried.messages_sent, carried.messages_received) == (6, 6)
        assert carried.HasField("last_local_stream_created_timestamp")
        assert carried.local_flow_control_window.value > 0
        assert carried.remote_flow_control_window.value > 0
        await channel.close()


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("GetServer", pb.GetServerRequest(server_id=999_999)),
        ("GetServerSockets", pb.GetServerSocketsRequest(server_id=999_999)),
        ("GetSocket", pb.GetSocketRequest(socket_id=999_999)),
        ("GetChannel", pb.GetChannelRequest(channel_id=999_999)),
        ("GetSubchannel", pb.GetSubchannelRequest(subchannel_id=1)),
    ],
)
@pytest.mark.parametrize("transport", [WireTransport(), GrpcTransport()], ids=["ours", "library"])
async def test_what_does_not_exist_is_not_found(
    transport: Transport, method: str, request_: Any
) -> None:
    """A number that nothing of the kind has is NOT_FOUND."""
    async with serving(transport) as address, grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(stub_of(channel), method)(request_)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


class Thing:
    """Something that is listed."""


async def test_what_has_ended_is_not_shown() -> None:
    """A stopped server, a closed channel and a closed connection are gone at once, whatever still
    refers to them."""
    transport = WireTransport()
    async with serving(transport) as address:
        ended = transport.channel(address, (), None)
        await ended.unary_unary(ECHO)(b"x", timeout=PATIENCE_S)
        still_referred_to = ended.sockets
        channel = transport.channel(address, (), None)
        channelz = stub_of(channel)
        before = await channelz.GetTopChannels(pb.GetTopChannelsRequest())
        numbers = [each.socket_id for shown in before.channel for each in shown.socket_ref]
        await ended.close()
        after = await channelz.GetTopChannels(pb.GetTopChannelsRequest())
        assert (len(before.channel), len(after.channel)) == (2, 1)
        assert still_referred_to
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(grpc.aio.AioRpcError, match="there is no socket"):
                while True:  # it ends a moment after its channel
                    await channelz.GetSocket(pb.GetSocketRequest(socket_id=numbers[0]))
        await channel.close()
    async with serving(transport) as address, grpc.aio.insecure_channel(address) as other:
        servers = await stub_of(other).GetServers(pb.GetServersRequest())
        assert len(servers.server) == 1


async def test_a_server_that_accepts_no_more_is_shown() -> None:
    """Where a listening socket is closed and the server not yet stopped, that is what is told."""
    transport = WireTransport()
    server = transport.server(())
    server.add_insecure_port("127.0.0.1:0")
    server.listening[0].close()
    shown = await transport.channelz().GetServers(pb.GetServersRequest(), None)
    assert shown.server[0].listen_socket[0].name == "closed"


def test_a_list_is_read_page_by_page() -> None:
    """Each page has at most so many as were asked for, or a hundred; the last one says so. What
    ends between two pages is left out, and what is new comes last."""
    numbers, things = Numbers(), [Thing() for _ in range(2 * PAGE_MAX)]
    first, is_last = numbers.page(things, 0, 3)
    assert (first, is_last) == (things[:3], False)
    del things[3], first
    things.append(Thing())
    rest, is_last = numbers.page(things, numbers.of(things[2]) + 1, 0)
    assert (rest, is_last) == (things[3 : 3 + PAGE_MAX], False)
    end, is_last = numbers.page(things, numbers.of(rest[-1]) + 1, 1_000)
    assert (end, is_last) == (things[3 + PAGE_MAX :], True)


def test_a_number_is_not_given_again() -> None:
    """What is gone is not found, nor is a thing found as one of another kind."""
    numbers, thing = Numbers(), Thing()
    number = numbers.of(thing)
    assert numbers.find(number, Thing) is thing
    assert numbers.find(number, Numbers) is None
    del thing
    assert numbers.find(number, Thing) is None
    assert numbers.of(Thing()) == number + 1
