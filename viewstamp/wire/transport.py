"""Our transport, in the place of the gRPC library."""

from __future__ import annotations

from typing import Any

import grpc

from viewstamp.grpc_transport import GrpcTransport, Options
from viewstamp.wire.channel import WireChannel
from viewstamp.wire.server import WireServer


class WireTransport:
    """Makes channels and servers that speak HTTP/2 themselves; encrypted ones are the library's."""

    def channel(
        self, address: str, options: Options, credentials: grpc.ChannelCredentials | None
    ) -> Any:
        """Return a new channel."""
        if credentials is not None:
            return GrpcTransport().channel(address, options, credentials)
        return WireChannel(address, options)

    def server(self, options: Options) -> Any:
        """Return a new server, which is bound to no address yet."""
        return WireServer(options)

    def check_is_free(self, host: str, port: int) -> None:
        """Bind the port for a moment."""
        GrpcTransport().check_is_free(host, port)
