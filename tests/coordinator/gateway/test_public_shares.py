"""What callers share who have not logged in."""

from __future__ import annotations

import pytest

from coordinator.gateway.peer_address import address_of
from coordinator.gateway.reads import share_of


def test_addresses_share_nothing() -> None:
    """Whoever logs in from another address has another share, and none is that of a user."""
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
    """Ports do not count, nor the half of an IPv6 address that its owner chooses freely."""
    assert address_of(peer) == address
