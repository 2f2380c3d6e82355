"""A name server for tests: the system's is left alone.

Channels of the gRPC library ask it by `dns://` targets. Ours ask the system, which a stand-in is
for this one name.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any, Final
from unittest import mock

from viewstamp import grpc_transport
from viewstamp.wire.transport import WireTransport

NAME = "replica.test"
HEADER_BYTES = 12
ADDRESS_KIND = 1
ANSWER_FLAGS = 0x8400
NO_SUCH_NAME = 3
LOOK_UP: Final = socket.getaddrinfo
# Longer than a hello may take.
LATE_S: Final = 4.0


class FakeNameServer(asyncio.DatagramProtocol):
    """Knows one name; `address` is where it leads, None if it is unknown."""

    def __init__(self, address: str | None) -> None:
        """Answer with this address at first."""
        self.address = address
        self.loses_first = False
        """Whether the first packet of each question gets no answer, as from a dead first server."""
        self._seen: set[bytes] = set()
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Keep the way to those who ask."""
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Answer one question."""
        if self.loses_first and data not in self._seen:
            self._seen.add(data)
            return
        question = data[HEADER_BYTES : data.index(b"\0", HEADER_BYTES) + 5]
        (kind,) = struct.unpack("!H", question[-4:-2])
        answer = b""
        if self.address is not None and kind == ADDRESS_KIND:
            found = socket.inet_aton(self.address)
            answer = b"\xc0\x0c" + struct.pack("!HHIH", ADDRESS_KIND, 1, 0, len(found)) + found
        flags = ANSWER_FLAGS | (NO_SUCH_NAME if self.address is None else 0)
        header = data[:2] + struct.pack("!HHHHH", flags, 1, bool(answer), 0, 0)
        self._transport.sendto(header + question + answer, addr)

    def look_up(self, host: str, port: int, *arguments: Any, **options: Any) -> list[Any]:
        """Do what `socket.getaddrinfo` does; a lookup whose first packet is lost takes longer."""
        if host != NAME:
            return LOOK_UP(host, port, *arguments, **options)
        if self.loses_first:
            time.sleep(LATE_S)
        if self.address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return LOOK_UP(self.address, port, *arguments, **options)


@contextlib.asynccontextmanager
async def named(address: str | None, port: int) -> AsyncIterator[tuple[FakeNameServer, str]]:
    """Run a name server; yield it, and what a channel to the name at a port is opened with."""
    server = FakeNameServer(address)
    if isinstance(grpc_transport.transport, WireTransport):
        with mock.patch.object(socket, "getaddrinfo", server.look_up):
            yield server, f"{NAME}:{port}"
        return
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: server, local_addr=("127.0.0.1", 0)
    )
    asked_at = transport.get_extra_info("sockname")[1]
    try:
        yield server, f"dns://127.0.0.1:{asked_at}/{NAME}:{port}"
    finally:
        transport.close()
