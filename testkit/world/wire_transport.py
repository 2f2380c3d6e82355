"""Our own transport in a world: as it ships, on sockets of the world."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from testkit.world.byte_streams import ListeningSocket
from testkit.world.grpc_transport import is_taken
from testkit.world.replica import CLIENT_PORT
from viewstamp.grpc_transport import Options, TlsTexts
from viewstamp.wire.transport import WireTransport

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess
    from testkit.world.world import World

_CLIENT_PORT: Final = f":{CLIENT_PORT}"


class WorldWireTransport(WireTransport):
    """Makes channels and servers of the running process."""

    def __init__(self, world: World) -> None:
        super().__init__(self._listen)
        self._world = world

    def channel(self, address: str, options: Options, texts: TlsTexts | None) -> Any:
        """Return a new channel; clients trust the authority of the world, if there is one."""
        authority = self._world.authority
        if texts is None and authority is not None and address.endswith(_CLIENT_PORT):
            texts = TlsTexts(authority)
        return super().channel(address, options, texts)

    def check_is_free(self, host: str, port: int) -> None:
        """Raise OSError if a live process has the address."""
        if is_taken(self._world, host, port):
            raise OSError("Address already in use")

    def _listen(self, address: str) -> Sequence[socket.socket]:
        process: WorldProcess | None = self._world.current
        assert process is not None, "no process runs"
        listening: Any = ListeningSocket(process, address)
        return [cast(socket.socket, listening)]
