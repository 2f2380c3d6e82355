"""`python -m tests.foreign.server TRANSPORT AUTHORITY CERTIFICATE KEY`: a service of all kinds of
calls.

It prints its two addresses, the second one with TLS, and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc

from tests.viewstamp.wire.echo import SERVICE, Echo
from viewstamp import event_loop, grpc_transport, transports
from viewstamp.grpc_transport import TlsTexts
from viewstamp.limits import MIB

OPTIONS: Final = (
    ("grpc.max_receive_message_length", 4 * MIB),
    ("grpc.max_send_message_length", 4 * MIB),
    ("grpc.max_concurrent_streams", 1_000),
)
DRAINED: Final = 5
PAUSE_S: Final = 0.1
GRACE_S: Final = 10


class DrainedEcho(Echo):
    """The service, and a call during which its server begins to stop."""

    def __init__(self, servers: list[Any]) -> None:
        super().__init__()
        self._servers = servers
        self._stops: list[asyncio.Task[None]] = []

    async def drain(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Begin to stop the servers, and go on answering."""
        yield b"before"
        self._stops += [asyncio.create_task(each.stop(GRACE_S)) for each in self._servers]
        for number in range(DRAINED):
            await asyncio.sleep(PAUSE_S)
            yield b"%d" % number

    def drain_handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of that call."""
        drain: Any = self.drain
        return grpc.method_handlers_generic_handler(
            SERVICE, {"Drain": grpc.unary_stream_rpc_method_handler(drain)}
        )


async def serve(texts: TlsTexts) -> None:
    """Serve until the input ends."""
    servers = [grpc_transport.make_server(OPTIONS) for _ in range(2)]
    echo = DrainedEcho(servers)
    for each in servers:
        each.add_generic_rpc_handlers((echo.drain_handler(), echo.handlers()))
    plain = servers[0].add_insecure_port("127.0.0.1:0")
    encrypted = grpc_transport.add_tls_port(servers[1], "127.0.0.1:0", lambda: texts)
    for each in servers:
        await each.start()
    print(f"127.0.0.1:{plain}", f"127.0.0.1:{encrypted}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main(transport: str, *files: str) -> None:
    """Serve with a transport and the files of a certificate."""
    transports.use(transport)
    event_loop.run(serve(TlsTexts(*(Path(file).read_bytes() for file in files))))


if __name__ == "__main__":
    main(*sys.argv[1:])
