"""What stands in for gRPC in a world: channels and servers of the process that runs now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

import grpc.aio

from testkit.world.grpc_calls import WorldChannel
from testkit.world.grpc_server import WorldServer
from viewstamp.grpc_transport import GrpcTransport, Options, TlsTexts

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.world import World


class WorldTransport:
    """Makes channels and servers of the running process. Nothing is encrypted."""

    def __init__(self, world: World) -> None:
        self._world = world

    def channel(self, address: str, options: Options, texts: TlsTexts | None) -> grpc.aio.Channel:
        """Return a new channel."""
        assert texts is None, "a world has no TLS"
        channel: Any = WorldChannel(self._process(), address, options)
        return cast(grpc.aio.Channel, channel)

    def server(self, options: Options) -> grpc.aio.Server:
        """Return a new server."""
        server: Any = WorldServer(self._process(), dict(options))
        return cast(grpc.aio.Server, server)

    def add_tls_port(
        self, server: grpc.aio.Server, address: str, texts: Callable[[], TlsTexts]
    ) -> NoReturn:
        """Refuse."""
        raise AssertionError("a world has no TLS")

    def check_is_free(self, host: str, port: int) -> None:
        """Raise OSError if a live process has the address."""
        if is_taken(self._world, host, port):
            raise OSError("Address already in use")

    def channelz(self) -> Any:
        """Return the library's service, which knows nothing of a world."""
        return GrpcTransport().channelz()

    def _process(self) -> WorldProcess:
        assert self._world.current is not None, "no process runs"
        return self._world.current


def is_taken(world: World, host: str, port: int) -> bool:
    """Return whether a live process has an address."""
    listening = world.network.listeners.get(f"{host}:{port}")
    return listening is not None and listening.process.is_alive
