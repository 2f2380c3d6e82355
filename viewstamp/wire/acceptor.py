"""Takes connections at one address. A connection counts once its client has said who it is.

Handshakes have a limit of their own. When it is reached, others wait in the queue of the system
until one ends. One that has taken its time ends for the next: whoever opens connections and says
nothing keeps nobody out for long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final, Protocol, cast

from viewstamp.telemetry import fields

HANDSHAKES_MAX: Final = 256
HANDSHAKE_UNDISTURBED_S: Final = 1.0
"""For so long no handshake has to end for another one."""
# After the system had no room for another connection.
_PAUSE_S: Final = 0.5
_MS_PER_S: Final = 1_000

_log = logging.getLogger(__name__)


class AcceptedProtocol(Protocol):
    """What serves one connection, as an asyncio.Protocol of the loop."""

    def abort(self, why: str) -> None:
        """Close at once, connected or not."""

    def closed(self) -> None:
        """The connection is gone; more than once is fine."""


class Acceptor:
    """Accepts connections until it is closed."""

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], AcceptedProtocol],
        context: Callable[[], ssl.SSLContext] | None,
        handshake_ms: int,
    ) -> None:
        self._bound = bound
        self._make = make
        self._context = context
        self._handshake_s = handshake_ms / _MS_PER_S
        self._handshakes: dict[asyncio.Task[None], float] = {}
        """Handshakes under way, and when each began; the oldest one is first."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to accept."""
        self._bound.setblocking(False)
        self._begin(self._accept_all())

    async def close(self) -> None:
        """Accept no more, and end all handshakes."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._bound.close()

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._bound)
            except ConnectionError:
                continue  # the client has gone already
            except OSError as error:  # too many files are open
                _log.warning("a connection could not be accepted", extra=fields(why=str(error)))
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                await self._until_there_is_room()
            except asyncio.CancelledError:
                accepted.close()
                raise
            task = self._begin(self._shake_hands(accepted))
            self._handshakes[task] = loop.time()
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            await asyncio.sleep(0)  # it begins, whatever else is in the queue

    async def _until_there_is_room(self) -> None:
        """Wait for the end of a handshake; end the oldest one if it has had its time."""
        while len(self._handshakes) >= HANDSHAKES_MAX:
            oldest, begun_s = next(iter(self._handshakes.items()))
            left_s = begun_s + HANDSHAKE_UNDISTURBED_S - asyncio.get_running_loop().time()
            if left_s <= 0:
                del self._handshakes[oldest]
                oldest.cancel()
                return
            await asyncio.wait(
                self._handshakes, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            context = None if self._context is None else self._context()
        except Exception as error:
            _log.error("TLS has no usable certificate", extra=fields(why=str(error)))
            accepted.close()
            return
        timeout_s = None if context is None else self._handshake_s
        made = self._make()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: cast(asyncio.BaseProtocol, made),
                accepted,
                ssl=context,
                ssl_handshake_timeout=timeout_s,
            )
        except OSError as error:  # also of TLS
            _log.info("a client did not come to terms", extra=fields(why=str(error)))
        except asyncio.CancelledError:
            # uvloop does not tell a protocol whose connection it closes before it gives it away.
            made.abort("given up")
            made.closed()
            # The loop has the descriptor, and closes it once it sees the end.
            with suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)
            raise
