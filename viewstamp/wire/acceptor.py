"""Takes connections at one address. A connection counts once its client has said who it is.

Handshakes have a limit of their own. When there are too many, the oldest one ends: whoever opens
connections and says nothing can keep others out only by being faster than they are.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from viewstamp.telemetry import fields
from viewstamp.wire.socket import Http2Socket
from viewstamp.wire.tls import UnusableTexts

HANDSHAKES_MAX: Final = 256
# After the system had no room for another connection.
_PAUSE_S: Final = 0.5
_MS_PER_S: Final = 1_000

_log = logging.getLogger(__name__)


class Acceptor:
    """Accepts connections until it is closed."""

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], Http2Socket],
        context: Callable[[], ssl.SSLContext] | None,
        handshake_ms: int,
    ) -> None:
        self._bound = bound
        self._make = make
        self._context = context
        self._handshake_s = handshake_ms / _MS_PER_S
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept."""
        self._bound.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Accept no more, and end all handshakes."""
        tasks = list(self._handshakes)
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._bound.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._bound)
            except OSError as error:  # too many files are open, or the client has gone already
                _log.warning("a connection could not be accepted", extra=fields(why=str(error)))
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                next(iter(self._handshakes)).cancel()
            task = loop.create_task(self._shake_hands(accepted))
            self._handshakes[task] = None
            task.add_done_callback(self._handshakes.pop)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._context is None:
                await loop.connect_accepted_socket(self._make, accepted)
            else:
                await loop.connect_accepted_socket(
                    *(self._make, accepted),
                    ssl=self._context(),
                    ssl_handshake_timeout=self._handshake_s,
                )
        except (OSError, UnusableTexts) as error:  # TLS fails with a kind of OSError
            _log.info("a client did not come to terms", extra=fields(why=str(error)))
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
