"""TCP of the world: bytes keep their order, writers wait for readers, and ends are heard of.

Method: two protocols that note everything, on two machines of a world.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from typing import cast

import pytest

from testkit.world.byte_streams import PAUSE_BYTES, SYSTEM_BYTES, ListeningSocket
from testkit.world.world import World
from tests.testkit.world.passing import pass_ms, started

HOST, PORT = "10.0.0.1", 7_000
ADDRESS = f"{HOST}:{PORT}"


class NotingProtocol(asyncio.Protocol):
    """Notes what came, and what became of the connection."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.notes: list[str] = []
        self.is_made = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.is_made = True
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Keep what came."""
        self.pieces.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Note why."""
        self.notes.append("end" if error is None else type(error).__name__)

    def pause_writing(self) -> None:
        """Note it."""
        self.notes.append("pause")

    def resume_writing(self) -> None:
        """Note it."""
        self.notes.append("resume")


class Pair:
    """A server's and a client's process, with one connection between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.near, self.far = NotingProtocol(), NotingProtocol()
        self.bound: ListeningSocket | None = None
        self.failure: OSError | None = None
        self.server = started(world, HOST, self._serve)

    async def _serve(self) -> None:
        process = self.world.current
        assert process is not None, "it runs"
        self.bound = ListeningSocket(process, ADDRESS)
        accepted, _ = await process.loop.sock_accept(self.bound)
        await process.loop.connect_accepted_socket(lambda: self.near, accepted)
        await asyncio.Event().wait()

    async def _call(self) -> None:
        self.dialling = asyncio.create_task(self._dial())
        await asyncio.Event().wait()

    async def _dial(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.far, HOST, PORT)
        except OSError as error:
            self.failure = error

    def connect(self) -> None:
        """Have the client connect, and wait until it should have."""
        self.client = started(self.world, "10.0.0.2", self._call)
        self.wait_ms(20)

    def wait_ms(self, milliseconds: int) -> None:
        """Let time pass."""
        pass_ms(self.world, milliseconds)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Give two processes in a world, of which one listens."""
    world = World(3)
    with world.running():
        pair = Pair(world)
        pair.wait_ms(20)
        yield pair


def test_bytes_keep_their_order_whatever_their_pieces(pair: Pair) -> None:
    """All bytes arrive in order, some writes in two pieces and some together."""
    pair.connect()
    written = [bytes([number]) * (1 + 37 * number) for number in range(200)]
    for each in written:
        pair.far.transport.write(each)
    pair.wait_ms(500)
    assert b"".join(pair.near.pieces) == b"".join(written)
    assert {len(piece) for piece in pair.near.pieces} - {len(each) for each in written}


def test_a_writer_waits_for_a_reader_who_stands_still(pair: Pair) -> None:
    """The systems hold a bounded number of bytes; the writer is told to pause, and to go on."""
    pair.connect()
    pair.server.pause()
    pair.far.transport.write(bytes(SYSTEM_BYTES))
    pair.wait_ms(500)
    assert pair.far.notes == []
    pair.far.transport.write(bytes(PAUSE_BYTES + 1))
    assert pair.far.notes == ["pause"]
    assert pair.far.transport.get_write_buffer_size() == PAUSE_BYTES + 1
    pair.server.resume()
    pair.wait_ms(500)
    assert pair.far.notes == ["pause", "resume"]
    assert pair.far.transport.get_write_buffer_size() == 0


def test_what_was_written_before_the_end_arrives_before_it(pair: Pair) -> None:
    """An end that closes in order loses nothing of what it wrote, and the other one closes, too."""
    pair.connect()
    pair.far.transport.write(b"last words")
    pair.far.transport.close()
    pair.far.transport.write(b"too late")
    pair.wait_ms(100)
    assert b"".join(pair.near.pieces) == b"last words"
    assert (pair.far.notes, pair.near.notes) == (["end"], ["end"])
    assert pair.world.network.connections == {}


def test_who_writes_to_a_closed_end_is_told_by_a_reset(pair: Pair) -> None:
    """Bytes that cross the end of the other side are answered by a reset."""
    pair.connect()
    pair.near.eof_received = lambda: True  # type: ignore[method-assign]  # it goes on writing
    pair.far.transport.abort()
    pair.wait_ms(100)
    assert pair.near.notes == []
    pair.near.transport.write(b"are you there?")
    pair.wait_ms(100)
    assert pair.near.notes == ["ConnectionResetError"]


def test_a_killed_process_ends_the_other_end(pair: Pair) -> None:
    """Whoever is connected with a process hears of its death."""
    pair.connect()
    pair.server.kill()
    pair.wait_ms(500)
    assert pair.far.notes == ["ConnectionResetError"]


def test_a_system_takes_clients_of_a_paused_process(pair: Pair) -> None:
    """A client connects while the process stands still, and is accepted once it goes on."""
    pair.server.pause()
    pair.connect()
    pair.far.transport.write(b"hello")
    pair.wait_ms(100)
    assert pair.near.pieces == []
    pair.server.resume()
    pair.wait_ms(100)
    assert b"".join(pair.near.pieces) == b"hello"


def test_who_was_not_accepted_is_turned_away(pair: Pair) -> None:
    """A socket that closes ends the connections in its queue, and refuses new ones."""
    pair.server.pause()
    pair.connect()
    assert pair.bound is not None
    pair.bound.close()
    pair.wait_ms(100)
    assert pair.far.notes == ["end"]
    pair.connect()
    assert isinstance(pair.failure, ConnectionRefusedError)


def test_an_address_is_taken_once(pair: Pair) -> None:
    """A second socket at the address of a live process is refused, as by a system."""
    with pytest.raises(OSError, match="in use") as refused:
        ListeningSocket(pair.server, ADDRESS)
    assert refused.value.errno == errno.EADDRINUSE
    pair.server.kill()
    assert ListeningSocket(pair.server, ADDRESS).getsockname() == (HOST, PORT)


def test_a_client_who_gives_up_leaves_no_connection(pair: Pair) -> None:
    """Connecting that is cancelled behind a cut comes to nothing after the cut."""
    pair.world.network.cut("10.0.0.2", HOST)
    pair.connect()
    pair.dialling.cancel()
    pair.wait_ms(100)
    pair.world.network.heal("10.0.0.2", HOST)
    pair.wait_ms(5_000)
    assert pair.world.network.connections == {}
    assert not pair.near.is_made
