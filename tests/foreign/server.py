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

from tests.viewstamp.wire.echo import DETAILS_KEY, SERVICE, Echo
from viewstamp import event_loop, grpc_transport, transports
from viewstamp.grpc_transport import TlsTexts
from viewstamp.limits import MIB

OPTIONS: Final = (
    ("grpc.max_receive_message_length", 4 * MIB),
    ("grpc.max_send_message_length", 4 * MIB),
    ("grpc.max_concurrent_streams", 1_000),
)
DRAINED: Final = 5
FALTERED: Final = 3
PAUSE_S: Final = 0.1
SLOW_S: Final = 0.005
GRACE_S: Final = 10
TRAILING: Final = ((DETAILS_KEY, b"\x00\xff"), ("plain", "words"))


class ForeignEcho(Echo):
    """The service, and what clients in other languages call beside it."""

    def __init__(self, servers: list[Any]) -> None:
        super().__init__()
        self._servers = servers
        self._stops: list[asyncio.Task[None]] = []
        self._counted = asyncio.Condition()
        self._cancelled = 0

    async def sleep(self, request: bytes, context: Any) -> bytes:
        """Wait until it is cancelled, and count that."""
        try:
            return await super().sleep(request, context)
        except asyncio.CancelledError:
            async with self._counted:
                self._cancelled += 1
                self._counted.notify_all()
            raise

    async def seen(self, request: bytes, context: Any) -> bytes:
        """Answer once so many sleeping calls were cancelled."""
        async with self._counted:
            await self._counted.wait_for(lambda: self._cancelled >= int(request))
        return request

    async def slow(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Answer with how many messages and bytes came, and take time for each."""

        async def slowed() -> AsyncIterator[bytes]:
            async for request in requests:
                await asyncio.sleep(SLOW_S)
                yield request

        return await self.sum(slowed(), context)

    async def falter(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Refuse after some answers."""
        for _ in range(FALTERED):
            yield request
        await context.abort(grpc.StatusCode.DATA_LOSS, "after some answers", TRAILING)

    async def halt(self, _: Any, context: Any) -> None:
        """Refuse after one request, while others are on their way."""
        await context.read()
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "after one request", TRAILING)

    async def drain(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Begin to stop the servers, and go on answering."""
        yield b"before"
        self._stops += [asyncio.create_task(each.stop(GRACE_S)) for each in self._servers]
        for number in range(DRAINED):
            await asyncio.sleep(PAUSE_S)
            yield b"%d" % number

    def more_handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of those calls."""
        own: Any = self
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Seen": grpc.unary_unary_rpc_method_handler(own.seen),
                "Slow": grpc.stream_unary_rpc_method_handler(own.slow),
                "Falter": grpc.unary_stream_rpc_method_handler(own.falter),
                "Halt": grpc.stream_stream_rpc_method_handler(own.halt),
                "Drain": grpc.unary_stream_rpc_method_handler(own.drain),
            },
        )


async def serve(texts: TlsTexts) -> None:
    """Serve until the input ends."""
    servers = [grpc_transport.make_server(OPTIONS) for _ in range(2)]
    echo = ForeignEcho(servers)
    for each in servers:
        each.add_generic_rpc_handlers((echo.more_handlers(), echo.handlers()))
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
