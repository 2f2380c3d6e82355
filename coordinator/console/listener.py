"""Takes the console's connections, as the gateway does: handshakes and renewed certificates."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from coordinator.console.bounds import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_MAX,
    HEAD_BYTES_MAX,
    READING_TIMEOUT_MS,
)
from coordinator.console.http_exchange import HttpExchange
from coordinator.gateway.peer_address import address_of
from viewstamp.certificates.pem_files import Certificates
from viewstamp.grpc_transport import TlsTexts
from viewstamp.limits import HANDSHAKE_TIMEOUT_MS
from viewstamp.telemetry import fields
from viewstamp.wire.acceptor import Acceptor
from viewstamp.wire.binding import bind_sockets, peer_name
from viewstamp.wire.tls import server_context

ALPN: Final = "http/1.1"
_FLAG: Final = "--console-listen"
Serve = Callable[[HttpExchange], Awaitable[None]]

_log = logging.getLogger(__name__)


class _Stream(asyncio.StreamReaderProtocol):
    """A connection as two streams, which the acceptor can give up."""

    def __init__(
        self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        self._accepted: asyncio.BaseTransport | None = None
        super().__init__(asyncio.StreamReader(limit=HEAD_BYTES_MAX), serve)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        self._accepted = transport
        super().connection_made(transport)

    def abort(self, why: str) -> None:
        """Close at once, connected or not."""
        if isinstance(self._accepted, asyncio.Transport):
            _log.info("a connection of the console is closed", extra=fields(why=why))
            self._accepted.abort()

    def closed(self) -> None:
        """Nothing is kept of a connection that was given up."""


class ConsoleListener:
    """Listens at `address`, HOST:PORT, and has each connection served."""

    def __init__(self, address: str, certificates: Certificates | None, serve: Serve) -> None:
        """Bind. Raises OSError, UnusableTexts."""
        self._serve = serve
        self._certificates = certificates
        self._known: tuple[TlsTexts, ssl.SSLContext] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: Counter[str] = Counter()
        context = None if certificates is None else self._context
        if context is not None:
            context()
        try:
            bound = bind_sockets(address)
        except OSError as error:
            raise OSError(f"{_FLAG} {address}: cannot be bound ({error})") from error
        self.address: Final = f"{address.rpartition(':')[0]}:{bound[0].getsockname()[1]}"
        make = lambda: _Stream(self._connected)  # noqa: E731
        self._acceptors = [Acceptor(each, make, context, HANDSHAKE_TIMEOUT_MS) for each in bound]

    def start(self) -> None:
        """Begin to accept."""
        for acceptor in self._acceptors:
            acceptor.start()

    async def stop(self) -> None:
        """End all connections."""
        for acceptor in self._acceptors:
            await acceptor.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _context(self) -> ssl.SSLContext:
        """Return the context of the certificate as it was in its files last."""
        assert self._certificates is not None
        newest = self._certificates.texts
        if self._known is None or self._known[0] != newest:
            made = server_context(newest)
            made.set_alpn_protocols([ALPN])
            self._known = newest, made
        return self._known[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve_one(reader, writer)
        finally:
            self._tasks.discard(task)
            await _closed(writer)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = peer_name(writer.transport)
        with self._place(address_of(peer)) as is_free:
            if not is_free:
                return
            try:
                await self._serve(HttpExchange(reader, writer, peer))
            except (OSError, TimeoutError) as error:
                _log.info("a client of the console has gone", extra=fields(why=repr(error)))
            except Exception:
                _log.exception("a connection of the console failed")

    @contextmanager
    def _place(self, address: str) -> Iterator[bool]:
        """Take one of the places for connections, if one is free."""
        is_full = self._open.total() >= CONNECTIONS_MAX
        if is_full or self._open[address] >= CONNECTIONS_PER_ADDRESS_MAX:
            yield False
            return
        self._open[address] += 1
        try:
            yield True
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection once what was written to it has been read, or after a while."""
    writer.close()
    try:
        async with asyncio.timeout(READING_TIMEOUT_MS / 1000):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
