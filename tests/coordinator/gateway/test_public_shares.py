"""The shares of callers who have not logged in."""

from __future__ import annotations

import pytest

from coordinator.gateway.peer_address import address_of
from coordinator.gateway.reads import share_of


def test_addresses_share_nothing() -> None:
    """Each address without a login has its own share, and none is a user's share."""
    shares = {share_of(address) for address in ("", "local", "10.0.0.1", "10.0.0.2")}
    assert len(shares) == 4
    assert all(share < 0 for share in shares)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:51234", "10.0.0.7"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:1", "10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3::1%5D:51234", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2:9::1]:51234", "2001:db8:1:2::/64"),
        ("unix:/run/x.sock", "local"),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_address_of_a_peer(peer: str, address: str) -> None:
    """Neither the port nor the half of an IPv6 address that its owner chooses makes a new share."""
    assert address_of(peer) == address
