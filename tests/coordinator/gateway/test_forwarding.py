"""Calls that a backup forwards: their deadlines, and primaries that fall silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest

from coordinator.gateway import forwarding as forwarding_module
from coordinator.gateway.forwarding import CHANNEL_OPTIONS, FORWARD_DEADLINE_MS, Forwarding
from coordinator.gateway.server import SERVER_OPTIONS
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

PATH = "/test.Service/Method"
PREFACE_BYTES = 24
FRAME_HEADER_BYTES = 9
PING, ACK = 6, 1
# The server allows two pings that come too early, and ends the connection at the next. The library
# sends at most one in a second.
PINGS = 5
PINGING = "grpc.keepalive_time_ms"
WAITING = "grpc.http2.ping_timeout_ms"
ALLOWING = "grpc.http2.min_ping_interval_without_data_ms"

Answer = Callable[[grpc.aio.ServicerContext[Any, Any]], Awaitable[bytes]]


class ForwardedCaller:
    """The call of a client, as the gateway sees it; `seconds_left` is None without a deadline."""

    def __init__(self, seconds_left: float | None = None) -> None:
        """Be called."""
        self._seconds_left = seconds_left

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return none."""
        return ()

    def time_remaining(self) -> float | None:
        """Return the metadata that was sent."""
        return self._seconds_left

    async def abort(self, code: grpc.StatusCode, *_: object, **__: object) -> NoReturn:
        """Nobody aborts a call when the primary said nothing about it."""
        raise AssertionError(code)


@contextlib.asynccontextmanager
async def primary(
    answer: Answer, options: tuple[tuple[str, int], ...] = SERVER_OPTIONS
) -> AsyncIterator[int]:
    """Serve one method as a gateway does, and yield the port."""

    class Handlers(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            async def serve(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
                return await answer(context)

            return grpc.unary_unary_rpc_method_handler(serve)

    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


class ForwardingWire:
    """The link between backup and primary: it counts pings, and can lose all that is sent."""

    def __init__(self, port: int) -> None:
        """Connect to the primary at `port`."""
        self.is_cut = False
        self.pings = 0
        self.enough_pings = asyncio.Event()
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen, and yield the address."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._begin(self._pass_on(to_reader, writer, lambda _: None))
        self._begin(self._pass_on(reader, to_writer, Frames(self._saw).take))

    def _begin(self, work: Any) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        look: Callable[[bytes], None],
    ) -> None:
        while data := await reader.read(65_536):
            look(data)
            if not self.is_cut:
                writer.write(data)
        writer.close()

    def _saw(self, kind: int, flags: int) -> None:
        if kind == PING and not flags & ACK:
            self.pings += 1
            if self.pings >= PINGS:
                self.enough_pings.set()


class Frames:
    """Reads the heads of HTTP/2 frames behind a client's preface."""

    def __init__(self, saw: Callable[[int, int], None]) -> None:
        """Report kind and flags of each frame to `saw`."""
        self._saw = saw
        self._data = bytearray()
        self._skip_bytes = PREFACE_BYTES

    def take(self, data: bytes) -> None:
        """Take what the client sends next."""
        self._data += data
        while len(self._data) >= self._skip_bytes + FRAME_HEADER_BYTES:
            del self._data[: self._skip_bytes]
            self._saw(self._data[3], self._data[4])
            self._skip_bytes = FRAME_HEADER_BYTES + int.from_bytes(self._data[:3], "big")


def sooner(
    options: tuple[tuple[str, int], ...], keys: tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
    """Return options whose times under `keys` are a tenth, so that a test takes no minute."""
    return tuple((key, value // 10 if key in keys else value) for key, value in options)


@contextlib.asynccontextmanager
async def passing_on(address: str) -> AsyncIterator[Forwarding]:
    """Forward calls to `address`."""
    forwarding = Forwarding(lambda: address)
    try:
        yield forwarding
    finally:
        await forwarding.close()


@pytest.mark.parametrize(
    ("seconds_left", "waited_ms"),
    [(None, FORWARD_DEADLINE_MS), (3_600.0, FORWARD_DEADLINE_MS), (10.0, 10_000)],
)
async def test_every_call_has_a_deadline(seconds_left: float | None, waited_ms: int) -> None:
    """A forwarded call has its caller's deadline, or the gateway's if the caller has none or a
    longer."""
    remaining: list[float] = []

    async def answer(context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        left = context.time_remaining()
        remaining.append(float("inf") if left is None else left)
        return b"answer"

    async with primary(answer) as port, passing_on(f"127.0.0.1:{port}") as forwarding:
        assert await forwarding.forward(PATH, b"", ForwardedCaller(seconds_left)) == b"answer"  # type: ignore[arg-type]
    # The deadline is rounded up on the wire.
    assert waited_ms / 2 < remaining[0] * 1000 < waited_ms + 1_000


async def test_no_answer_in_time_is_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller without a deadline is told to send the same number again, or to look."""
    monkeypatch.setattr(forwarding_module, "FORWARD_DEADLINE_MS", 50)
    never = asyncio.Event()

    async def answer(_: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        await never.wait()
        return b""

    async with primary(answer) as port, passing_on(f"127.0.0.1:{port}") as forwarding:
        with pytest.raises(Refusal, match="under its request number") as caught:
            await forwarding.forward(PATH, b"", ForwardedCaller())  # type: ignore[arg-type]
    assert caught.value.reason == Reason.REASON_OUTCOME_UNKNOWN
    assert caught.value.details == {"deadline_ms": "50", "outcome": "unknown"}


async def test_a_read_without_an_answer_has_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that gets no answer changed nothing, so its caller may simply ask again."""
    monkeypatch.setattr(forwarding_module, "FORWARD_DEADLINE_MS", 50)
    never = asyncio.Event()

    async def answer(_: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        await never.wait()
        return b""

    async with primary(answer) as port, passing_on(f"127.0.0.1:{port}") as forwarding:
        with pytest.raises(Refusal, match="could not be asked") as caught:
            await forwarding.forward(PATH, b"", ForwardedCaller(), changes=False)  # type: ignore[arg-type]
    assert (caught.value.name, caught.value.details) == ("VIEW_CHANGE", {})


async def test_a_call_that_never_left_has_no_outcome() -> None:
    """Nothing is sent where nobody listens, so even a command may simply be sent again."""
    async with primary(_never) as port:
        pass  # closed at once
    async with passing_on(f"127.0.0.1:{port}") as forwarding:
        with pytest.raises(Refusal, match="could not be asked") as caught:
            await forwarding.forward(PATH, b"", ForwardedCaller())  # type: ignore[arg-type]
    assert (caught.value.name, caught.value.details) == ("VIEW_CHANGE", {})


async def _never(_: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    raise AssertionError("nobody asks")


async def test_a_primary_whose_machine_vanished_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a connection falls silent without an end, pings notice it before the deadline."""
    options = sooner(CHANNEL_OPTIONS, (PINGING, WAITING))
    monkeypatch.setattr(forwarding_module, "CHANNEL_OPTIONS", options)
    monkeypatch.setattr(forwarding_module, "FORWARD_DEADLINE_MS", 5_000)
    wires: list[ForwardingWire] = []
    never = asyncio.Event()

    async def answer(_: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        wires[0].is_cut = True
        await never.wait()
        return b""

    async with primary(answer) as port:
        wires.append(ForwardingWire(port))
        async with wires[0].listening() as address, passing_on(address) as forwarding:
            with pytest.raises(Refusal, match="could not be asked") as caught:
                await forwarding.forward(PATH, b"", ForwardedCaller())  # type: ignore[arg-type]
    assert caught.value.reason == Reason.REASON_OUTCOME_UNKNOWN
    assert caught.value.details == {"outcome": "unknown"}


@pytest.mark.long
async def test_the_gateway_allows_these_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long call survives, because the backup does not ping too often."""
    options = sooner(CHANNEL_OPTIONS, (PINGING,))
    monkeypatch.setattr(forwarding_module, "CHANNEL_OPTIONS", options)
    wires: list[ForwardingWire] = []

    async def answer(_: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        await wires[0].enough_pings.wait()
        return b"answer"

    async with primary(answer, sooner(SERVER_OPTIONS, (ALLOWING,))) as port:
        wires.append(ForwardingWire(port))
        async with wires[0].listening() as address, passing_on(address) as forwarding:
            assert await forwarding.forward(PATH, b"", ForwardedCaller()) == b"answer"  # type: ignore[arg-type]
    assert wires[0].pings >= PINGS
