"""A service with a method of each kind, as bytes: what tests of transports call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio

from viewstamp.grpc_transport import Options, Transport

SERVICE: Final = "test.Echo"
ECHO, COUNT, SUM, CHAT = (f"/{SERVICE}/{name}" for name in ("Echo", "Count", "Sum", "Chat"))
REFUSE, SLEEP, TELL = (f"/{SERVICE}/{name}" for name in ("Refuse", "Sleep", "Tell"))
BREAK, LINGER, WHO = (f"/{SERVICE}/{name}" for name in ("Break", "Linger", "Who"))
DETAILS_KEY: Final = "grpc-status-details-bin"


class Echo:
    """What the methods do, and what became of a call that was cancelled."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.counted = 0
        """How many answers of streams were made."""

    async def echo(self, request: bytes, context: Any) -> bytes:
        """Answer with the request."""
        return request

    async def count(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Answer with as many messages as the request says, of so many bytes."""
        count, size = map(int, request.split())
        for number in range(count):
            self.counted += 1
            yield bytes([number % 256]) * size

    async def sum(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Answer with how many messages and bytes came."""
        sizes = [len(request) async for request in requests]
        return b"%d %d" % (len(sizes), sum(sizes))

    async def chat(self, _: Any, context: Any) -> None:
        """Send back each message."""
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    async def refuse(self, request: bytes, context: Any) -> bytes:
        """End with a status, words and metadata."""
        trailing = ((DETAILS_KEY, b"\x00\xff"), ("plain", "words"))
        await context.abort(grpc.StatusCode.ALREADY_EXISTS, request.decode(), trailing)
        raise AssertionError("abort raises")

    async def sleep(self, request: bytes, context: Any) -> bytes:
        """Wait until it is cancelled."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def tell(self, request: bytes, context: Any) -> bytes:
        """Answer with what is known of the call."""
        remaining = context.time_remaining()
        metadata = sorted(
            (key, value) for key, value in context.invocation_metadata() if key.startswith("x-")
        )
        await context.send_initial_metadata((("initial", "first"), ("initial-bin", b"\x01")))
        context.set_trailing_metadata((("trailing", "last"),))
        peer = context.peer().split(":")[0]
        return repr((metadata, remaining is not None and 0 < remaining < 30, peer)).encode()

    async def who(self, request: bytes, context: Any) -> bytes:
        """Answer with what the caller has proven to be."""
        proven = context.auth_context()
        names = proven.get("x509_subject_alternative_name", [])
        return b" ".join((proven["transport_security_type"][0], b",".join(names)))

    async def linger(self, request: bytes, context: Any) -> bytes:
        """Refuse, and go on as if that had not ended the call."""
        try:
            await context.abort(grpc.StatusCode.ABORTED, "and yet")
        finally:
            await asyncio.sleep(60)
        return b""

    async def fail(self, request: bytes, context: Any) -> bytes:
        """Raise what nobody expects."""
        raise ValueError("as planned")

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all methods."""
        unary: Any = grpc.unary_unary_rpc_method_handler
        chat: Any = self.chat
        streamed: Any = self.count
        summed: Any = self.sum
        methods: dict[str, Any] = {
            "Echo": unary(self.echo),
            "Count": grpc.unary_stream_rpc_method_handler(streamed),
            "Sum": grpc.stream_unary_rpc_method_handler(summed),
            "Chat": grpc.stream_stream_rpc_method_handler(chat),
            "Refuse": unary(self.refuse),
            "Sleep": unary(self.sleep),
            "Tell": unary(self.tell),
            "Break": unary(self.fail),
            "Linger": unary(self.linger),
            "Who": unary(self.who),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)


@asynccontextmanager
async def serving_echo(
    transport: Transport,
    address: str = "127.0.0.1:0",
    *handlers: grpc.GenericRpcHandler,
    options: Options = (),
) -> AsyncIterator[tuple[Any, int]]:
    """Give a server, which has an echo behind other handlers, and its port."""
    server: Any = transport.server(options)
    server.add_generic_rpc_handlers((*handlers, Echo().handlers()))
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(None)
