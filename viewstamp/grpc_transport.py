"""The only maker of gRPC channels and servers: all of the asynchronous library are made here.

Tests may replace `transport`, below everything that opens channels or serves. The other transport
must raise `grpc.aio.AioRpcError` as the library does.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio

Options: TypeAlias = Sequence[tuple[str, Any]]


class Transport(Protocol):
    """What makes channels and servers, in the shape of `grpc.aio`."""

    def channel(
        self, address: str, options: Options, credentials: grpc.ChannelCredentials | None
    ) -> grpc.aio.Channel:
        """Return a new channel to an address, encrypted if there are credentials."""
        ...

    def server(self, options: Options) -> grpc.aio.Server:
        """Return a new server, which is bound to no address yet."""
        ...

    def check_is_free(self, host: str, port: int) -> None:
        """Raise OSError or OverflowError, with the cause, if a server cannot be bound there."""
        ...


class GrpcTransport:
    """The library itself."""

    def channel(
        self, address: str, options: Options, credentials: grpc.ChannelCredentials | None
    ) -> grpc.aio.Channel:
        """Return a new channel."""
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    def server(self, options: Options) -> grpc.aio.Server:
        """Return a new server."""
        return grpc.aio.server(options=options)

    def check_is_free(self, host: str, port: int) -> None:
        """Bind the port for a moment: the library writes the cause only to its own log."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()


transport: Transport = GrpcTransport()
"""What makes all channels and servers of this process."""


def open_channel(
    address: str, options: Options, credentials: grpc.ChannelCredentials | None = None
) -> grpc.aio.Channel:
    """Return a new channel to an address, encrypted if there are credentials."""
    return transport.channel(address, options, credentials)


def make_server(options: Options) -> grpc.aio.Server:
    """Return a new server, which is bound to no address yet."""
    return transport.server(options)


def check_is_free(host: str, port: int) -> None:
    """Raise OSError or OverflowError, with the cause, if a server cannot be bound there."""
    transport.check_is_free(host, port)
