"""Addresses that a server can listen at and nobody can call: they stand for all of a machine."""

from __future__ import annotations

import ipaddress
from typing import Final

_NO_HOSTS: Final = frozenset({"", "*", "0"})


def is_wildcard(address: str) -> bool:
    """Return whether HOST:PORT names no host, or no port: a caller would reach its own machine."""
    host, _, port = address.rpartition(":")
    if host in _NO_HOSTS or port == "0":
        return True
    try:
        found = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False  # a name
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found.is_unspecified or (mapped is not None and mapped.is_unspecified)
