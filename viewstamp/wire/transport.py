"""Our transport, in the place of the gRPC library."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from viewstamp.grpc_transport import GrpcTransport, Options, TlsTexts
from viewstamp.wire.channel import WireChannel
from viewstamp.wire.server import WireServer, bind_socket


class WireTransport:
    """Makes channels and servers that speak HTTP/2 themselves.

    `bind` returns a socket that listens at an address, and raises OSError if it is taken. The
    simulator has sockets of its own.
    """

    def __init__(self, bind: Callable[[str], socket.socket] = bind_socket) -> None:
        self._bind = bind

    def channel(self, address: str, options: Options, texts: TlsTexts | None) -> Any:
        """Return a new channel. Raises UnusableTexts, UnknownOption."""
        return WireChannel(address, options, texts)

    def server(self, options: Options) -> Any:
        """Return a new server, which is bound to no address yet."""
        return WireServer(options, self._bind)

    def add_tls_port(self, server: Any, address: str, texts: Callable[[], TlsTexts]) -> int:
        """Bind a server to an address. Raises UnusableTexts, too."""
        port: int = server.add_tls_port(address, texts)
        return port

    def check_is_free(self, host: str, port: int) -> None:
        """Bind the port for a moment."""
        GrpcTransport().check_is_free(host, port)
