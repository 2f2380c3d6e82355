"""Where a caller is, as far as shares and records go: the address without the port.

Addresses of IPv6 count by their first 64 bits: whoever has one has 2^64.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

IPV6_PREFIX_BITS: Final = 64
# Of so many connections the address is known by heart: each has many calls.
PEERS_KNOWN_MAX: Final = 4_096
_LOCAL: Final = "local"


@lru_cache(PEERS_KNOWN_MAX)
def address_of(peer: str) -> str:
    """Return the address in what gRPC says of a peer, for example `ipv4:10.0.0.7:51234`.

    Empty if it cannot be told.
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
