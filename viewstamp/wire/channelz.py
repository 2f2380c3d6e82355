"""Channelz of our own transport: its servers, channels and connections, and what they carried.

The library's service knows the library's connections alone. This one answers the same messages
(`grpc.channelz.v1`), with these differences: a channel has its connections itself, as there are no
subchannels; and a message counts once its reader takes it.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from socket import socket as Listening  # noqa: N812 - it is one that only accepts
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import grpc
import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_channelz.v1 import channelz_pb2 as pb
from grpc_channelz.v1 import channelz_pb2_grpc

from viewstamp.http2 import Role
from viewstamp.wire.channel import WireChannel
from viewstamp.wire.server import WireServer
from viewstamp.wire.socket import Http2Socket, monotonic_ms
from viewstamp.wire.tally import Tally

PAGE_MAX: Final = 100
"""How many one answer lists at most."""
_NS_PER_MS: Final = 1_000_000

Context = grpc.aio.ServicerContext[Any, Any]
Listed = TypeVar("Listed")


class Numbers:
    """Numbers of what was shown, for as long as it exists.

    What exists longer was listed before what is newer, so that numbers ascend in each list.
    """

    def __init__(self) -> None:
        self._last = 0
        self._number: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._of_number: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def of(self, each: object) -> int:
        """Return the number of a thing."""
        number = self._number.get(each)
        if number is None:
            number = self._last = self._last + 1
            self._number[each], self._of_number[number] = number, each
        return number

    def find(self, number: int, kind: type[Listed]) -> Listed | None:
        """Return what has a number, None if there is nothing of this kind."""
        found = self._of_number.get(number)
        return found if isinstance(found, kind) else None

    def page(
        self, all_of_them: Iterable[Listed], first: int, most: int
    ) -> tuple[Sequence[Listed], bool]:
        """Return those with numbers from `first` on, as many as asked for, and whether these are
        the last."""
        size = min(most, PAGE_MAX) if most > 0 else PAGE_MAX
        listed = (each for each in all_of_them if self.of(each) >= first)
        page = list(islice(listed, size))
        return page, next(listed, None) is None


class WireChannelz(channelz_pb2_grpc.ChannelzServicer):
    """Answers about the servers and channels of one process."""

    def __init__(
        self,
        servers: Callable[[], Iterable[WireServer]],
        channels: Callable[[], Iterable[WireChannel]],
    ) -> None:
        self._servers = servers
        self._channels = channels
        self._numbers = Numbers()

    async def GetTopChannels(  # noqa: N802 - the name of the method
        self, request: pb.GetTopChannelsRequest, context: Context
    ) -> pb.GetTopChannelsResponse:
        """List channels."""
        first, most = request.start_channel_id, request.max_results
        page, is_last = self._numbers.page(self._channels(), first, most)
        return pb.GetTopChannelsResponse(channel=map(self._channel, page), end=is_last)

    async def GetChannel(  # noqa: N802
        self, request: pb.GetChannelRequest, context: Context
    ) -> pb.GetChannelResponse:
        """Show a channel."""
        channel = await self._found(context, "channel", request.channel_id, WireChannel)
        return pb.GetChannelResponse(channel=self._channel(channel))

    async def GetSubchannel(  # noqa: N802
        self, request: pb.GetSubchannelRequest, context: Context
    ) -> pb.GetSubchannelResponse:
        """Say that there is none: a channel has its connections itself."""
        await _not_found(context, "subchannel", request.subchannel_id)

    async def GetServers(  # noqa: N802
        self, request: pb.GetServersRequest, context: Context
    ) -> pb.GetServersResponse:
        """List servers."""
        first, most = request.start_server_id, request.max_results
        page, is_last = self._numbers.page(self._servers(), first, most)
        return pb.GetServersResponse(server=map(self._server, page), end=is_last)

    async def GetServer(  # noqa: N802
        self, request: pb.GetServerRequest, context: Context
    ) -> pb.GetServerResponse:
        """Show a server."""
        server = await self._found(context, "server", request.server_id, WireServer)
        return pb.GetServerResponse(server=self._server(server))

    async def GetServerSockets(  # noqa: N802
        self, request: pb.GetServerSocketsRequest, context: Context
    ) -> pb.GetServerSocketsResponse:
        """List the connections of a server."""
        server = await self._found(context, "server", request.server_id, WireServer)
        first, most = request.start_socket_id, request.max_results
        page, is_last = self._numbers.page(server.sockets, first, most)
        return pb.GetServerSocketsResponse(socket_ref=map(self._socket_ref, page), end=is_last)

    async def GetSocket(  # noqa: N802
        self, request: pb.GetSocketRequest, context: Context
    ) -> pb.GetSocketResponse:
        """Show a connection."""
        listening = self._numbers.find(request.socket_id, Listening)
        if listening is not None:
            return pb.GetSocketResponse(socket=self._listening(listening))
        socket = await self._found(context, "socket", request.socket_id, Http2Socket)
        if socket.is_gone:
            await _not_found(context, "socket", request.socket_id)
        return pb.GetSocketResponse(socket=self._socket(socket))

    async def _found(self, context: Context, name: str, number: int, kind: type[Listed]) -> Listed:
        """Return what has a number; end the call with NOT_FOUND if nothing of the kind has it."""
        found = self._numbers.find(number, kind)
        if found is None:
            await _not_found(context, name, number)
        return found

    # --- What is shown ---

    def _server(self, server: WireServer) -> pb.Server:
        shown = pb.Server(
            ref=pb.ServerRef(server_id=self._numbers.of(server)),
            listen_socket=(self._listening(each).ref for each in server.listening),
        )
        _count(shown.data, server.tally)
        return shown

    def _channel(self, channel: WireChannel) -> pb.Channel:
        shown = pb.Channel(
            ref=pb.ChannelRef(channel_id=self._numbers.of(channel), name=channel.address),
            socket_ref=map(self._socket_ref, channel.sockets),
        )
        shown.data.state.state = pb.ChannelConnectivityState.State.Value(channel.get_state().name)
        shown.data.target = channel.address
        _count(shown.data, channel.tally)
        return shown

    def _listening(self, socket: Listening) -> pb.Socket:
        try:
            name = socket.getsockname()
        except OSError:
            name = None  # the server is stopping
        return pb.Socket(
            ref=pb.SocketRef(socket_id=self._numbers.of(socket), name=str(name or "closed")),
            local=_address(name),
        )

    def _socket_ref(self, socket: Http2Socket) -> pb.SocketRef:
        name = str(socket.transport.get_extra_info("peername") or "")
        return pb.SocketRef(socket_id=self._numbers.of(socket), name=name)

    def _socket(self, socket: Http2Socket) -> pb.Socket:
        shown = pb.Socket(
            ref=self._socket_ref(socket),
            data=_carried(socket),
            local=_address(socket.transport.get_extra_info("sockname")),
            remote=_address(socket.transport.get_extra_info("peername")),
        )
        cipher = socket.transport.get_extra_info("cipher")
        if cipher:
            shown.security.tls.standard_name = cipher[0]
        return shown


async def _not_found(context: Context, kind: str, number: int) -> NoReturn:
    await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no {kind} {number}")
    raise AssertionError("abort raises")


def _count(data: pb.ServerData | pb.ChannelData, tally: Tally) -> None:
    data.calls_started = tally.started
    data.calls_succeeded = tally.succeeded
    data.calls_failed = tally.failed
    _tell_start(tally, data.last_call_started_timestamp)


def _tell_start(tally: Tally, shown: Timestamp) -> None:
    """Show when the last call began, and nothing if there was none."""
    if tally.started:
        passed_ms = monotonic_ms() - tally.last_started_ms
        shown.FromNanoseconds(time.time_ns() - passed_ms * _NS_PER_MS)


def _carried(socket: Http2Socket) -> pb.SocketData:
    """Return what a connection carried, and how much its windows still allow."""
    connection, tally = socket.connection, socket.tally
    data = pb.SocketData(
        streams_started=tally.started,
        streams_succeeded=tally.succeeded,
        streams_failed=tally.failed,
        messages_sent=socket.messages_sent,
        messages_received=socket.messages_received,
    )
    if connection.role is Role.CLIENT:
        _tell_start(tally, data.last_local_stream_created_timestamp)
    else:
        _tell_start(tally, data.last_remote_stream_created_timestamp)
    # The words of Channelz: what the remote end has granted to the local one, and the reverse.
    data.local_flow_control_window.value = connection.outgoing.window
    data.remote_flow_control_window.value = connection.incoming.left
    return data


def _address(name: Any) -> pb.Address:
    """Return an address as the operating system tells it: host and port, or a path."""
    if isinstance(name, tuple):
        packed = ipaddress.ip_address(name[0]).packed
        return pb.Address(tcpip_address=pb.Address.TcpIpAddress(ip_address=packed, port=name[1]))
    if name is None:
        return pb.Address()  # the connection was lost before anybody asked
    path = name.decode(errors="replace") if isinstance(name, bytes) else name
    return pb.Address(uds_address=pb.Address.UdsAddress(filename=path))
