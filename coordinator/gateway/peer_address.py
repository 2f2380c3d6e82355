"""The address of a caller for shares and records, without the port.

IPv6 addresses count by their first 64 bits, because one caller may have 2^64 of them.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

IPV6_PREFIX_BITS: Final = 64
# The addresses of this many connections are cached: each has many calls.
PEERS_KNOWN_MAX: Final = 4_096
_LOCAL: Final = "local"


@lru_cache(PEERS_KNOWN_MAX)
def address_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer, for example `ipv4:10.0.0.7:51234`.

    Empty if the name has none.
    """
    kind, _, rest = peer.partition(":")
    if kind == "unix":
        return _LOCAL
    host = unquote(rest.rpartition(":")[0]).strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))
