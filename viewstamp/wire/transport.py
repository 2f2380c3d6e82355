"""Our transport, in the place of the gRPC library."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import grpc

from viewstamp.grpc_transport import Options, TlsTexts
from viewstamp.wire.binding import bind_sockets
from viewstamp.wire.channel import WireChannel

if TYPE_CHECKING:
    from viewstamp.wire.server import WireServer


class WireTransport:
    """Makes channels and servers that speak HTTP/2 themselves.

    `bind` returns sockets that listen at an address, and raises OSError if it is taken. The
    simulator has sockets of its own.
    """

    def __init__(self, bind: Callable[[str], Sequence[socket.socket]] = bind_sockets) -> None:
        self._bind = bind
        self._numbers = count()
        # In the order in which they were made, for as long as anybody else has them.
        self._channels: WeakValueDictionary[int, WireChannel] = WeakValueDictionary()
        self._servers: WeakValueDictionary[int, WireServer] = WeakValueDictionary()

    def channel(self, address: str, options: Options, texts: TlsTexts | None) -> Any:
        """Return a new channel. Raises UnusableTexts, UnknownOption."""
        made = self._channels[next(self._numbers)] = WireChannel(address, options, texts)
        return made

    def server(self, options: Options) -> Any:
        """Return a new server, which is bound to no address yet."""
        from viewstamp.wire.server import WireServer  # clients, as of the command line, need none

        made = self._servers[next(self._numbers)] = WireServer(options, self._bind)
        return made

    def add_tls_port(self, server: Any, address: str, texts: Callable[[], TlsTexts]) -> int:
        """Bind a server to an address. Raises UnusableTexts, too."""
        port: int = server.add_tls_port(address, texts)
        return port

    def check_is_free(self, host: str, port: int) -> None:
        """Bind the port for a moment."""
        for each in self._bind(f"[{host}]:{port}"):
            each.close()

    def channelz(self) -> Any:
        """Return a service about what was made here."""
        from viewstamp.wire.channelz import WireChannelz  # only servers with that service have it

        return WireChannelz(self._running_servers, self._open_channels)

    def _running_servers(self) -> list[WireServer]:
        return [each for each in self._servers.values() if not each.is_stopped]

    def _open_channels(self) -> list[WireChannel]:
        is_closed = grpc.ChannelConnectivity.SHUTDOWN
        return [each for each in self._channels.values() if each.get_state() is not is_closed]
