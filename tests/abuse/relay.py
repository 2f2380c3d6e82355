"""A source address for each kind of attack: in the field attackers come from elsewhere.

All of 127.0.0.0/8 belongs to this machine. gRPC cannot choose the source address of a connection,
so a relay in the attacker's process does.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

CHUNK_BYTES: Final = 64 * 1024


class Relay:
    """Relays connections to an address, from a source address."""

    def __init__(self, target: str, source: str) -> None:
        """Relay to `target`, `host:port`, from the host `source`."""
        host, _, port = target.rpartition(":")
        self._host, self._port, self._source = host, int(port), source
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen; return the address to use in place of the target's."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection to the target. Raises OSError."""
        return await asyncio.open_connection(self._host, self._port, local_addr=(self._source, 0))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            with contextlib.suppress(OSError):
                far_reader, far_writer = await self.connect()
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        except asyncio.CancelledError:
            pass  # the end of the attack; nobody else cancels it
        finally:
            self._running.discard(task)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
