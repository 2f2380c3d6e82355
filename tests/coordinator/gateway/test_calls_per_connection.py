"""A connection may have as many calls at once as the gateway announces."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.wire import CallShape, Samples, header_block, keep_in_flight
from coordinator.gateway.server import SERVER_OPTIONS
from viewstamp.limits import STREAMS_PER_CONNECTION_MAX

PATH: Final = "/viewstamp.tests.Together/Answer"
# Whoever comes after others have left must not wait for them.
ALONE_S: Final = 0.3


class Together(grpc.GenericRpcHandler):
    """Answers calls, once the allowed number has come, all in one turn of the loop."""

    def __init__(self) -> None:
        self._came = 0
        self._all = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the one handler."""
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, payload: bytes, context: Any) -> bytes:
        self._came += 1
        if self._came == STREAMS_PER_CONNECTION_MAX:
            self._came = 0
            self._all.set()
            self._all = asyncio.Event()
            return b"answer"
        try:
            async with asyncio.timeout(ALONE_S):
                await self._all.wait()
        except TimeoutError:
            pass
        return b"answer"


async def test_who_keeps_to_what_was_told_is_not_refused() -> None:
    """A caller that opens a call for each answered one never has too many, even while the server
    has yet to release those that it answered together."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((Together(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    samples = Samples(warm_up_s=0.0, duration_s=0.5)
    shape = CallShape(in_flight=STREAMS_PER_CONNECTION_MAX, connections=1)
    try:
        block = header_block(PATH, "localhost")
        await keep_in_flight(f"127.0.0.1:{port}", block, lambda: b"asked", shape, samples)
    finally:
        await server.stop(None)
    assert samples.commands >= STREAMS_PER_CONNECTION_MAX
