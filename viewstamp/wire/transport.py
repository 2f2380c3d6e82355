"""Our transport, in the place of the gRPC library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from viewstamp.grpc_transport import GrpcTransport, Options, TlsTexts
from viewstamp.wire.channel import WireChannel
from viewstamp.wire.server import WireServer


class WireTransport:
    """Makes channels and servers that speak HTTP/2 themselves."""

    def channel(self, address: str, options: Options, texts: TlsTexts | None) -> Any:
        """Return a new channel. Raises UnusableTexts, UnknownOption."""
        return WireChannel(address, options, texts)

    def server(self, options: Options) -> Any:
        """Return a new server, which is bound to no address yet."""
        return WireServer(options)

    def add_tls_port(self, server: Any, address: str, texts: Callable[[], TlsTexts]) -> int:
        """Bind a server to an address. Raises UnusableTexts, too."""
        port: int = server.add_tls_port(address, texts)
        return port

    def check_is_free(self, host: str, port: int) -> None:
        """Bind the port for a moment."""
        GrpcTransport().check_is_free(host, port)
