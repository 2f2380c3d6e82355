"""Our own transport in a world: as it ships, on sockets of the world."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from testkit.world.byte_streams import ListeningSocket
from testkit.world.grpc_transport import is_taken
from viewstamp.wire.transport import WireTransport

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.world import World


class WorldWireTransport(WireTransport):
    """Makes channels and servers of the running process. Nothing is encrypted."""

    def __init__(self, world: World) -> None:
        super().__init__(self._listen)
        self._world = world

    def check_is_free(self, host: str, port: int) -> None:
        """Raise OSError if a live process has the address."""
        if is_taken(self._world, host, port):
            raise OSError("Address already in use")

    def _listen(self, address: str) -> Sequence[socket.socket]:
        process: WorldProcess | None = self._world.current
        assert process is not None, "no process runs"
        listening: Any = ListeningSocket(process, address)
        return [cast(socket.socket, listening)]
