"""The door to gRPC: what stands in is asked by everything, and what was before is back afterwards.

Method: a transport that notes what it is asked for, below the client library and a service.
"""

from __future__ import annotations

import socket
from typing import cast

import grpc
import grpc.aio
import pytest

from services.runtime.server import new_server
from testkit.stand_in_transport import stand_in
from viewstamp import grpc_transport
from viewstamp.client.transport import Endpoint
from viewstamp.grpc_transport import GrpcTransport, Options, TlsTexts


class NotingTransport(GrpcTransport):
    """Notes what was asked for, and makes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.channels: list[str] = []
        self.servers = 0

    def channel(self, address: str, options: Options, texts: TlsTexts | None) -> grpc.aio.Channel:
        """Note the address."""
        self.channels.append(address)
        return cast(grpc.aio.Channel, self)

    def server(self, options: Options) -> grpc.aio.Server:
        """Note a server."""
        self.servers += 1
        return cast(grpc.aio.Server, self)


async def test_a_stand_in_is_below_client_and_service() -> None:
    """While a transport stands in, the client library and a service get nothing else."""
    transport = NotingTransport()
    with stand_in(transport):
        Endpoint("nowhere:1").open()
        new_server()
    channel = Endpoint("localhost:1").open()
    await channel.close()
    assert (transport.channels, transport.servers) == (["nowhere:1"], 1)


def test_a_taken_port_is_told_with_its_cause() -> None:
    """A port that somebody else has is refused with the words of the operating system."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            grpc_transport.check_is_free("127.0.0.1", port)
