"""Where calls may go without encryption: to unix sockets, and to this machine itself."""

from __future__ import annotations

import ipaddress
from typing import Final

UNIX_PREFIX: Final = "unix:"


def leaves_machine(address: str) -> bool:
    """Return whether calls to, or from, an address `unix:PATH` or `HOST:PORT` can cross a network.

    A name is taken for another machine, whatever it stands for now; only `localhost` is not. What
    names no host is no address, and refused elsewhere.
    """
    if address.startswith(UNIX_PREFIX):
        return False
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host in ("", "localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
