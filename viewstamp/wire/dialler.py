"""Opens the connections of a channel: a name is looked up, and its addresses are tried.

An address that does not answer keeps nobody waiting: the next one is tried beside it after a short
time, and whichever serves first is taken (RFC 8305, section 5).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from socket import EAI_AGAIN, SOCK_STREAM, gaierror
from typing import Any, Final, TypeAlias

from viewstamp.grpc_transport import TlsTexts
from viewstamp.http2 import Limits, Role
from viewstamp.wire.binding import UNIX_PREFIX
from viewstamp.wire.options import WireOptions
from viewstamp.wire.socket import Http2Socket, SocketPatience
from viewstamp.wire.tls import client_context

# A first name server that is dead costs some seconds at each lookup.
_LOOKUP_S: Final = 60.0
_ADDRESSES_MAX: Final = 8
NEXT_ATTEMPT_S: Final = 0.25
"""How long an address is tried alone, as RFC 8305 recommends."""
# Other words of the library for an address. A name server of one's own is not among them.
_SCHEMES: Final = ("dns:///", "dns:", "ipv4:", "ipv6:")
_MS_PER_S: Final = 1_000

_Opening: TypeAlias = Callable[[Callable[[], Http2Socket]], Awaitable[tuple[Any, Any]]]
"""Opens a connection for a protocol that it makes."""


class Dialler:
    """Connects to one address, `HOST:PORT` or `unix:PATH`."""

    def __init__(self, address: str, options: WireOptions, texts: TlsTexts | None) -> None:
        """Raises UnusableTexts."""
        self._address = address
        self._attempt_s = options.connect_ms / _MS_PER_S
        self._context = None if texts is None else client_context(texts)
        self._server_name = options.server_name
        self._patience = SocketPatience(options.keepalive_ms, options.silence_ms)

    async def dial(self) -> Http2Socket:
        """Return a socket whose server has sent its settings.

        Raises OSError with the last failure, ValueError for what is no address.
        """
        if self._address.startswith(UNIX_PREFIX):
            return await self._attempt(self._open_path)
        name, port = host_and_port(self._address)
        found = await _looked_up(name, port)
        return await self._first_of([self._opening(each, port, name) for each in found])

    async def _first_of(self, openings: Sequence[_Opening]) -> Http2Socket:
        """Return the first socket that can be used. Raises OSError with the last failure."""
        waiting, under_way = deque(openings), set[asyncio.Task[Http2Socket]]()
        failure: BaseException = OSError("the name has no address")
        try:
            while waiting or under_way:
                if waiting:
                    attempt = self._attempt(waiting.popleft())
                    under_way.add(asyncio.get_running_loop().create_task(attempt))
                done, _ = await asyncio.wait(
                    under_way,
                    timeout=NEXT_ATTEMPT_S if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for each in done:
                    under_way.remove(each)
                    error = each.exception()
                    if error is None:
                        return each.result()
                    failure = error
            raise failure
        finally:
            # Nothing is awaited here: whoever was cancelled then would lose the winner.
            for each in under_way:
                each.cancel()
                each.add_done_callback(_let_go)

    def _open_path(self, made: Callable[[], Http2Socket]) -> Awaitable[tuple[Any, Any]]:
        return asyncio.get_running_loop().create_unix_connection(
            *(made, self._address.removeprefix(UNIX_PREFIX)),
            ssl=self._context,
            server_hostname=self._name_for("localhost"),
        )

    def _opening(self, host: str, port: int, name: str) -> _Opening:
        return lambda made: asyncio.get_running_loop().create_connection(
            made, host, port, ssl=self._context, server_hostname=self._name_for(name)
        )

    def _name_for(self, name: str) -> str | None:
        """Return the name that the certificate has to have."""
        return None if self._context is None else self._server_name or name

    async def _attempt(self, opening: _Opening) -> Http2Socket:
        """Return a socket that can be used. Raises OSError, also after the time of an attempt."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        socket = Http2Socket(Role.CLIENT, Limits(), self._patience)
        socket.settled = lambda _: _settle(settled, None)
        socket.lost = lambda: _settle(settled, OSError(socket.why))
        try:
            async with asyncio.timeout(self._attempt_s):
                await opening(lambda: socket)
                await settled
            if socket.is_gone or not socket.connection.may_open:
                raise OSError(socket.why or "the server takes no calls")
        except BaseException:
            settled.cancel()
            # uvloop does not tell a protocol whose connection it closes before it gives it away.
            socket.abort("given up")
            raise
        return socket


def _let_go(attempt: asyncio.Task[Http2Socket]) -> None:
    """Close what an attempt that is not needed any more has come to."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().abort("another address was faster")


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of an address. Raises ValueError."""
    bare = next(
        (address.removeprefix(each) for each in _SCHEMES if address.startswith(each)), address
    )
    host, _, port = bare.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{address!r} is no address: give HOST:PORT, or unix:PATH")
    return host.strip("[]"), int(port)


async def _looked_up(name: str, port: int) -> Sequence[str]:
    """Return the addresses of a name, in the order of the system. Raises OSError."""
    try:
        async with asyncio.timeout(_LOOKUP_S):
            found = await asyncio.get_running_loop().getaddrinfo(name, port, type=SOCK_STREAM)
    except TimeoutError as error:
        raise gaierror(EAI_AGAIN, f"no answer within {_LOOKUP_S:.0f} s") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))[:_ADDRESSES_MAX]


def words_of(error: Exception) -> str:
    """Return why an attempt failed, in the words that the library has for it where it has some."""
    if isinstance(error, TimeoutError):
        return "connection attempt timed out before receiving SETTINGS frame"
    if isinstance(error, gaierror):
        return f"errors resolving it: DNS resolution failed: {error.strerror}"
    if isinstance(error, ConnectionError) and error.errno is not None:
        return f"{os.strerror(error.errno)} ({error})"
    return str(error) or repr(error)


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
