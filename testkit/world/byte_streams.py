"""TCP in a world: sockets that listen, and transports that carry bytes in order.

Our own transport runs on it as it ships, from the frames of HTTP/2 up. What a write sends arrives
in pieces, and pieces that wait for the same turn arrive as one. The systems below hold a bounded
number of bytes for a process that does not read; more stays with the writer, who is told to pause.
Bytes, and the news that no more come, keep their order; news of a death may overtake them.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from asyncio.sslproto import SSLProtocol
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from testkit.world.network import Dialling, End, Listening, Pipe, WorldConnection, place_of
from testkit.world.schedule import NS_PER_MS, NS_PER_S, NS_PER_US
from viewstamp.limits import KIB

if TYPE_CHECKING:
    from testkit.world.process import WorldProcess

# What the systems at both ends hold of one direction.
SYSTEM_BYTES: Final = 256 * KIB
# A writer pauses when more than the first waits for its system, and goes on at the second.
PAUSE_BYTES: Final = 64 * KIB
RESUME_BYTES: Final = 16 * KIB
# A reader's system tells of what was read once it is so much.
_TOLD_BYTES: Final = 32 * KIB
# One write in so many arrives in two pieces.
_ONE_SPLIT_IN: Final = 6
_PIECE_BYTES_MAX: Final = 64 * KIB
# A system gives up to connect after so long.
_CONNECT_NS: Final = 127 * NS_PER_S
_LOOKUP_NS: Final = (50 * NS_PER_US, 5 * NS_PER_MS)
_FIRST_FREE_PORT: Final = 32_768
_LAST_PORT: Final = 60_999

Factory = Callable[[], asyncio.BaseProtocol]


class _Sign:
    """What travels in the place of bytes."""

    def __init__(self, meaning: str) -> None:
        self._meaning = meaning

    def __repr__(self) -> str:
        return self._meaning


_END: Final = _Sign("no more bytes come")
_RESET: Final = _Sign("nobody reads any more")


class ByteTransport(asyncio.Transport):
    """One end of a connection, in the shape of asyncio."""

    def __init__(self, connection: WorldConnection, end: End) -> None:
        super().__init__()
        self._connection = connection
        self.end = end
        self._loop = end.process.loop
        self._far: ByteTransport | None = None
        self.pipe: Pipe | None = None
        self._protocol: Any = None
        self._arrived: deque[bytes | _Sign] = deque()
        self._is_take_due = False
        self._under_way_bytes = 0
        self._untold_bytes = 0
        self._is_closing = self._is_over = self._is_paused = False
        self._is_reading = True
        end.broken = self._broken

    def face(self, far: ByteTransport) -> None:
        """Send to another end from now on."""
        self._far = far
        self.pipe = Pipe(self.end, far.end, far.arrive, self._unheard)

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the connection to a protocol, which gets what has arrived already."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self.end.is_broken:
            self._loop.call_soon(self._broken, "Connection reset by peer")
        self._take_soon()

    # --- In the shape of asyncio ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address of the other end."""
        if name != "peername" or self._far is None:
            return default
        port = self._connection.serial % (_LAST_PORT - _FIRST_FREE_PORT) + _FIRST_FREE_PORT
        return self._far.end.process.machine.host, port

    def write(self, data: Any) -> None:
        """Let bytes arrive, in one or more pieces."""
        if self._is_closing or self.end.is_broken or not data:
            return
        assert self.pipe is not None, "it faces its other end"
        self._under_way_bytes += len(data)
        for piece in self._pieces(bytes(data)):
            self.pipe.send(piece)
        if not self._is_paused and self.get_write_buffer_size() > PAUSE_BYTES:
            self._is_paused = True
            self._protocol.pause_writing()

    def _pieces(self, data: bytes) -> list[bytes]:
        draw = self.end.network.world.schedule.draw
        if len(data) > 1 and draw(1, _ONE_SPLIT_IN) == 1:
            at = draw(1, len(data) - 1)
            return [*_cut(data[:at]), *_cut(data[at:])]
        return _cut(data)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the system has not taken."""
        return max(0, self._under_way_bytes - SYSTEM_BYTES)

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        return self._is_closing

    def close(self) -> None:
        """Take no more bytes, and be over once the system has those that wait."""
        if not self._is_closing:
            self._is_closing = True
            self._leave_when_sent()

    def abort(self) -> None:
        """Be over at once."""
        self._is_closing = True
        self._leave()

    def _force_close(self, _: BaseException | None) -> None:
        """Be over at once, as TLS of asyncio says it."""
        self.abort()

    # --- Ends ---

    def _leave_when_sent(self) -> None:
        if self.get_write_buffer_size() == 0:
            self._leave()

    def _leave(self) -> None:
        """Say that no more comes, and read nothing more."""
        if self.end.is_broken:
            return
        assert self.pipe is not None, "it faces its other end"
        self.pipe.send(_END)
        self._connection.leave(self.end)
        self._loop.call_soon(self._over, None)

    def _broken(self, why: str) -> None:
        self._over(ConnectionResetError(errno.ECONNRESET, why))

    def _over(self, error: Exception | None) -> None:
        if self._is_over or self._protocol is None:
            return
        self._is_over = self._is_closing = True
        self._arrived.clear()
        self._protocol.connection_lost(error)

    def _unheard(self, item: bytes | _Sign) -> None:
        """Learn that the other end is closed: its system answers bytes by a reset, in order."""
        far = self._far
        if isinstance(item, bytes) and far is not None and far.pipe is not None:
            far.pipe.send_from_system(_RESET)

    # --- Bytes ---

    def pause_reading(self) -> None:
        """Give the protocol nothing for now."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Give the protocol what has come."""
        self._is_reading = True
        self._take_soon()

    def arrive(self, item: bytes | _Sign) -> None:
        """Keep what came until the process takes it."""
        self._arrived.append(item)
        self._take_soon()

    def _take_soon(self) -> None:
        is_wanted = self._is_reading and self._protocol is not None
        if self._arrived and not self._is_take_due and is_wanted:
            self._is_take_due = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        """Give the protocol all bytes that are there, as one read does."""
        self._is_take_due = False
        if not self._is_reading:
            return
        pieces: list[bytes] = []
        while self._arrived and isinstance(self._arrived[0], bytes):
            pieces.append(self._arrived.popleft())  # type: ignore[arg-type]  # it was looked at
        if pieces and not self._is_closing:
            data = b"".join(pieces)
            self._tell_of(len(data))
            self._give(data)
        elif self._arrived:
            self._take_sign(self._arrived.popleft())
        self._take_soon()

    def _give(self, data: bytes) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            _fill(self._protocol, data)
        else:
            self._protocol.data_received(data)

    def _take_sign(self, sign: bytes | _Sign) -> None:
        if sign is _RESET:
            self.end.break_now("Connection reset by peer")
            self._connection.leave(self.end)
        elif sign is _END and not self._protocol.eof_received():
            self.close()

    def _tell_of(self, size: int) -> None:
        """Have the writer know of what was read, once it is much."""
        self._untold_bytes += size
        if self._untold_bytes >= _TOLD_BYTES and self._far is not None:
            told, self._untold_bytes = self._untold_bytes, 0
            network, far = self.end.network, self._far
            delay_ns = network.delay_ns(self.end, far.end)
            told_now = partial(far.end.process.loop.call_soon, far.was_read, told)
            arrive = partial(network.pass_through, self.end, far.end, told_now)
            network.world.schedule.after(delay_ns, arrive)

    def was_read(self, size: int) -> None:
        """Learn how much the other end's process has read."""
        self._under_way_bytes -= size
        if self._is_over:
            return
        if self._is_paused and self.get_write_buffer_size() <= RESUME_BYTES:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._leave_when_sent()


def _fill(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give bytes to a protocol that has buffers of its own."""
    view = memoryview(data)
    while view:
        buffer = memoryview(protocol.get_buffer(len(view)))
        size = min(len(buffer), len(view))
        buffer[:size] = view[:size]
        protocol.buffer_updated(size)
        view = view[size:]


def _cut(data: bytes) -> list[bytes]:
    return [data[at : at + _PIECE_BYTES_MAX] for at in range(0, len(data), _PIECE_BYTES_MAX)]


class AcceptedSocket:
    """A connection that has a server's process, and no protocol yet."""

    def __init__(self, transport: ByteTransport) -> None:
        self.transport = transport

    def close(self) -> None:
        """Close it."""
        self.transport.abort()

    def shutdown(self, _: int) -> None:
        """Close it."""
        self.transport.abort()


class ListeningSocket:
    """A socket that clients connect to; the system takes them before its process does."""

    def __init__(self, process: WorldProcess, address: str) -> None:
        """Raises OSError if another process listens there."""
        self._process = process
        self._network = process.world.network
        self._place = place_of(process.machine.host, address)
        taken = self._network.listeners.get(self._place)
        is_taken = taken is not None and taken.process.is_alive
        if is_taken and not address.startswith("unix:"):
            raise OSError(errno.EADDRINUSE, f"Address already in use: {self._place}")
        self._waiting: deque[AcceptedSocket] = deque()
        self._came: asyncio.Future[None] | None = None
        self._listening = Listening(process, None, self, self._connected)
        self._network.listeners[self._place] = self._listening

    def setblocking(self, flag: bool) -> None:
        """Do nothing: it never blocks."""

    def getsockname(self) -> tuple[str, int]:
        """Return host and port."""
        host, _, port = self._place.rpartition(":")
        return host, int(port)

    def close(self) -> None:
        """Listen no more; who was not accepted is turned away."""
        if self._network.listeners.get(self._place) is self._listening:
            del self._network.listeners[self._place]
        while self._waiting:
            self._waiting.popleft().close()

    async def accept(self) -> tuple[AcceptedSocket, Any]:
        """Return the next connection."""
        while not self._waiting:
            self._came = self._process.loop.create_future()
            await self._came
        accepted = self._waiting.popleft()
        return accepted, accepted.transport.get_extra_info("peername")

    def _connected(self, connection: WorldConnection) -> None:
        """Put a connection into the queue."""
        near = ByteTransport(connection, connection.server)
        far = ByteTransport(connection, connection.client)
        connection.client_transport = far
        near.face(far)
        far.face(near)
        self._waiting.append(AcceptedSocket(near))
        self._process.loop.call_soon(self._ring)

    def _ring(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)


async def look_up(process: WorldProcess, host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """Return where a name leads, in the shape of `getaddrinfo`."""
    found: asyncio.Future[str] = process.loop.create_future()

    def answer() -> None:
        if not found.done():
            found.set_result(process.world.network.names.get(host, host))

    schedule = process.world.schedule
    schedule.after(schedule.draw(*_LOOKUP_NS), process.loop.call_soon, answer)
    return [(0, 0, 0, "", (await found, port))]


async def connect(
    process: WorldProcess,
    address: str,
    factory: Factory,
    context: ssl.SSLContext | None = None,
    server_name: str | None = None,
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """Connect to an address, encrypted if there is a context. Raises OSError."""
    told: asyncio.Future[WorldConnection] = process.loop.create_future()

    def hear(connection: WorldConnection | None, why: str) -> None:
        if told.done():
            if connection is not None:
                connection.client_transport.abort()
        elif connection is None:
            told.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, why))
        else:
            told.set_result(connection)

    place = place_of(process.machine.host, address)
    end_ns = process.world.schedule.now_ns + _CONNECT_NS
    dialling = Dialling(process, place, None, end_ns, hear)
    process.world.network.dial(dialling)
    try:
        connection = await told
    except asyncio.CancelledError:
        dialling.call_off()
        if told.done() and not told.cancelled() and told.exception() is None:
            told.result().client_transport.abort()
        raise
    if context is None:
        return await begin(process, connection.client_transport, factory)
    return await begin_encrypted(
        process, connection.client_transport, factory, context, server_hostname=server_name
    )


async def begin_encrypted(
    process: WorldProcess,
    transport: ByteTransport,
    factory: Factory,
    context: ssl.SSLContext,
    **options: Any,
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """Shake hands with what `SSLProtocol` knows. Raises OSError.

    The protocol is told of its own transport. The one that is returned is below it.
    """
    shaken: asyncio.Future[None] = process.loop.create_future()
    protocol = factory()
    tls = SSLProtocol(process.loop, protocol, context, shaken, **options)
    try:
        await begin(process, transport, lambda: tls)
        await shaken
    except BaseException:
        transport.abort()
        raise
    return transport, protocol


async def begin(
    process: WorldProcess, transport: ByteTransport, factory: Factory
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """Give a connection to a new protocol, at a turn of its own, and return both."""
    protocol = factory()
    begun: asyncio.Future[None] = process.loop.create_future()

    def tell() -> None:
        if not begun.done():
            transport.begin(protocol)
            begun.set_result(None)

    process.loop.call_soon(tell)
    try:
        await begun
    except asyncio.CancelledError:
        transport.abort()
        raise
    return transport, protocol
