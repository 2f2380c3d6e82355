"""Sockets that listen, on ports or on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

UNIX_PREFIX: Final = "unix:"
# How many connections wait for a server that does not come to accept them.
_BACKLOG: Final = 1_024
# These mean all addresses of the machine, of both families, as they do in the gRPC library.
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})
_NO_SUCH_FAMILY: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def bind_sockets(address: str) -> Sequence[socket.socket]:
    """Return sockets that listen at `unix:PATH` or `HOST:PORT`. Raises OSError."""
    if address.startswith(UNIX_PREFIX):
        return [_bind_path(Path(address.removeprefix(UNIX_PREFIX)))]
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return [_bind_everywhere(int(port))] if host in _EVERYWHERE else _bind_name(host, int(port))


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return how gRPC names the other end of a connection, for example `ipv4:10.0.0.7:51234`."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return UNIX_PREFIX
    host, port = name[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _bind_path(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError):
        if path.is_socket():
            path.unlink()
    bound.bind(str(path))
    bound.listen(_BACKLOG)
    return bound


def _bind_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return _bind("::", port, is_for_both=True)
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:
                raise
    return _bind("0.0.0.0", port)


def _bind_name(host: str, port: int) -> Sequence[socket.socket]:
    """Return a socket for each address of a host, all on one port.

    What a machine cannot have, such as the address of localhost in a family that is switched off,
    is left out unless it is the first one.
    """
    bound: list[socket.socket] = []
    for address in _addresses(host):
        try:
            bound.append(_bind(address, port))
        except OSError as error:
            if bound and error.errno in _NO_SUCH_FAMILY:
                continue
            for each in bound:
                each.close()
            raise
        port = bound[0].getsockname()[1]
    return bound


def _addresses(host: str) -> Sequence[str]:
    """Return the addresses of a host, those of the older family first. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    ordered = sorted(found, key=lambda each: each[0] is not socket.AF_INET)
    return list(dict.fromkeys(str(place[0]) for *_, place in ordered))


def _bind(host: str, port: int, *, is_for_both: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server(
        (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_for_both
    )
    # Sockets that are accepted have it from this one: asyncio does not set it for those.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound
