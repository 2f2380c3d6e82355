"""Sockets that listen, on a port or on a Unix socket."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Final

UNIX_PREFIX: Final = "unix:"
# How many connections wait for a server that does not come to accept them.
_BACKLOG: Final = 1_024


def bind_socket(address: str) -> socket.socket:
    """Return a socket that is bound to `unix:PATH` or `HOST:PORT`. Raises OSError."""
    if address.startswith(UNIX_PREFIX):
        bound = socket.socket(socket.AF_UNIX)
        path = Path(address.removeprefix(UNIX_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            if path.is_socket():
                path.unlink()
        bound.bind(str(path))
        bound.listen(_BACKLOG)
        return bound
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    # Sockets that are accepted have it from this one: asyncio does not set it for those.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound
