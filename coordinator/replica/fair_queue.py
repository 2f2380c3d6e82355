"""A queue of reads in which callers take turns, however many reads each has waiting."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class QueuePlace(Generic[Item]):
    """A waiting read: its caller, its token, and its weight, which is its share of a group."""

    caller: int
    token: int
    weight: int
    item: Item


class FairQueue(Generic[Item]):
    """Places by caller. The caller who last had a turn comes last."""

    def __init__(self) -> None:
        """Begin without callers."""
        # The callers in the order of their turns.
        self._waiting: OrderedDict[int, OrderedDict[int, QueuePlace[Item]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, place: QueuePlace[Item]) -> None:
        """Add a place behind those of its caller."""
        self._waiting.setdefault(place.caller, OrderedDict())[place.token] = place

    def put_back(self, places: Iterable[QueuePlace[Item]]) -> None:
        """Put unused places first again, in their order."""
        for place in reversed(list(places)):
            self.add(place)
            self._waiting[place.caller].move_to_end(place.token, last=False)
            self._waiting.move_to_end(place.caller, last=False)

    def remove(self, place: QueuePlace[Item]) -> None:
        """Forget a place, if it waits."""
        own = self._waiting.get(place.caller)
        if own is not None and own.pop(place.token, None) is not None and not own:
            del self._waiting[place.caller]

    def take(self, weight_max: int) -> list[QueuePlace[Item]]:
        """Take a group in turns: at least one place, and more while they weigh at most
        `weight_max`."""
        taken: list[QueuePlace[Item]] = []
        weight = 0
        while self._waiting:
            caller, own = next(iter(self._waiting.items()))
            place = next(iter(own.values()))
            weight += place.weight
            if taken and weight > weight_max:
                break
            taken.append(place)
            self._waiting.move_to_end(caller)
            self.remove(place)
        return taken
