"""Where a client may find replicas: addresses that its user gave, and those the cluster tells.

The given ones come first and always stay. Nobody knows whether a client can reach what the cluster
tells: it may be behind a proxy or a forwarded port, or the replica may be gone. So an address that
failed is doubted, and is passed over until no other one is of use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from viewstamp.wildcard_addresses import is_wildcard

# More than a cluster has, so that a wrong answer costs a client neither memory nor many attempts.
LEARNED_ADDRESSES_MAX: Final = 16
# No host name is longer, with its port.
ADDRESS_CHARACTERS_MAX: Final = 261


class KnownAddresses:
    """The addresses of one client, which its streams and watches share."""

    def __init__(self, given: Iterable[str], *, learns: bool = True) -> None:
        """Begin with those that the user gave; without `learns` there are never others."""
        self.given = list(dict.fromkeys(given))
        if not self.given:
            raise ValueError("at least one address is needed, for example localhost:7400")
        self.learned: list[str] = []
        self._learns = learns
        self._doubted: set[str] = set()
        self._confirmed: set[str] = set()

    def learn(self, told: Iterable[str]) -> None:
        """Take the addresses of the present replicas in place of those that were told before.

        A cluster that tells none is of an older build, or does not know: then all stays as it is.
        """
        fit = [
            each
            for each in dict.fromkeys(told)
            if 0 < len(each) <= ADDRESS_CHARACTERS_MAX and not is_wildcard(each)
        ]
        if not fit or not self._learns:
            return
        others = [each for each in fit if each not in self.given]
        self.learned = others[:LEARNED_ADDRESSES_MAX]
        self._doubted &= set(self.learned)
        self._confirmed &= set(self.learned)

    def is_confirmed(self, address: str) -> bool:
        """Whether the user gave the address, or this cluster answered there before."""
        return address in self.given or address in self._confirmed

    def confirm(self, address: str) -> None:
        """Note that the cluster answers there."""
        self._doubted.discard(address)
        if address in self.learned:
            self._confirmed.add(address)

    def doubt(self, address: str) -> bool:
        """Pass over a learned address from now on; return whether it is one."""
        is_learned = address in self.learned
        if is_learned:
            self._doubted.add(address)
        return is_learned

    def forget_doubts(self) -> None:
        """Try the learned addresses again, if all of them are doubted."""
        if len(self._doubted) == len(self.learned):
            self._doubted.clear()

    def beginning_at(self, address: str) -> list[str]:
        """Return all that are not doubted, in the order of their turns from an address on.

        If that one is not known any more, the order begins anew.
        """
        ring = [*self.given, *self.learned]
        begin = ring.index(address) if address in ring else 0
        turned = ring[begin:] + ring[:begin]
        return [each for each in turned if each not in self._doubted]
