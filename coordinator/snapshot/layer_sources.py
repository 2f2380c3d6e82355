"""Which peer is asked for which part of a layer next; nothing here waits or asks.

A peer is asked for the layers that its own manifest names. Its places are few, a peer of which
nothing comes is not asked for ever, and one that has no place for another fetch gets fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from coordinator.snapshot.layer_parts import LayerPart

# While one fetch waits for its first chunk, another one uses the connection.
FETCHES_PER_PEER_MAX: Final = 2
# Each holds a chunk in memory.
FETCHES_MAX: Final = 6
# Fetches in a row of which nothing came; then a peer is not asked again in this attempt.
FRUITLESS_MAX: Final = 3


class NextFetch(NamedTuple):
    """Ask this replica for this part."""

    part: LayerPart
    replica: int


class LayerSources:
    """The peers of one attempt, in the order in which they are asked."""

    def __init__(self, peers: Sequence[int]) -> None:
        self._peers = tuple(peers)
        self._places = dict.fromkeys(self._peers, FETCHES_PER_PEER_MAX)
        self._running: Counter[int] = Counter()
        self._fruitless: Counter[int] = Counter()
        self._layers: dict[int, frozenset[bytes]] = {}

    def has_layers(self, replica: int, digests: Collection[bytes]) -> None:
        """Ask a peer for these layers from now on."""
        self._layers[replica] = frozenset(digests)

    def next_fetch(self, pending: Sequence[LayerPart]) -> NextFetch | None:
        """Return who is asked for what next, None if everybody has enough to do."""
        for replica in self._free():
            for part in pending:
                if self._is_asked(replica, part):
                    return NextFetch(part, replica)
        return None

    def heir_of(self, part: LayerPart, replica: int, pending: Sequence[LayerPart]) -> int | None:
        """Return who has nothing to do, and can send what a slower replica has not sent yet.

        The parts of a layer that is to come from one peer alone have no heirs.
        """
        for other in () if part.is_alone else self._free(at_once=FETCHES_MAX + 1):
            is_new = other != replica and other not in part.taken_over
            has_work = any(self._is_asked(other, each) for each in pending)
            if is_new and not has_work and self._is_able(other, part):
                return other
        return None

    def begun(self, replica: int) -> None:
        """Count a fetch."""
        self._running[replica] += 1

    def ended(self, replica: int, *, has_come: bool) -> None:
        """Count the end of a fetch, and whether anything came of it."""
        self._running[replica] -= 1
        self._fruitless[replica] = 0 if has_come else self._fruitless[replica] + 1

    def is_refused_beside_others(self, replica: int) -> bool:
        """Return whether a busy replica, whose fetch has ended, still sends another one; then it
        gets no more of them at once."""
        if not self._running[replica]:
            return False
        self._places[replica] = self._running[replica]
        self._fruitless[replica] = 0
        return True

    def _free(self, at_once: int = FETCHES_MAX) -> list[int]:
        """Return the peers with a free place, those with the least to do first."""
        if self._running.total() >= at_once:
            return []
        free = [each for each in self._peers if self._running[each] < self._places[each]]
        return sorted(free, key=lambda replica: self._running[replica])

    def _is_asked(self, replica: int, part: LayerPart) -> bool:
        if not self._is_able(replica, part):
            return False
        first = part.only_from
        return first is None or first == replica or not self._is_able(first, part)

    def _is_able(self, replica: int, part: LayerPart) -> bool:
        if self._fruitless[replica] >= FRUITLESS_MAX or replica in part.failures:
            return False
        return part.layer.digest in self._layers.get(replica, ())
