"""Whose turn is next: that of the user who has waited longest, also between two attempts. Pure.

A read of the past may wait for a minute, and a state may take longer. So whoever is refused for now
and soon asks again keeps the place among the others; else those who ask more often come first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class TurnOrder:
    """Users by when they last had a turn, or first asked since then."""

    def __init__(self, absence_s_max: float, absent_max: int) -> None:
        """Remember up to `absent_max` users who ask for nothing, each for `absence_s_max`."""
        self._absence_s_max = absence_s_max
        self._absent_max = absent_max
        self._last = 0
        self._places: dict[int, int] = {}
        # Users who ask for nothing now, and since when.
        self._absent: OrderedDict[int, float] = OrderedDict()

    def asks(self, user_id: int, now_s: float) -> None:
        """Note that a user waits."""
        left_s = self._absent.pop(user_id, None)
        is_forgotten = left_s is not None and now_s - left_s > self._absence_s_max
        if is_forgotten or user_id not in self._places:
            self._put_last(user_id)

    def had_turn(self, user_id: int) -> None:
        """Put a user behind all others, unless it is forgotten since its turn began."""
        if user_id in self._places:
            self._put_last(user_id)

    def _put_last(self, user_id: int) -> None:
        self._last += 1
        self._places[user_id] = self._last

    def leaves(self, user_id: int, now_s: float) -> None:
        """Note that a user waits for nothing any more."""
        self._absent[user_id] = now_s
        self._absent.move_to_end(user_id)
        if len(self._absent) > self._absent_max:
            forgotten, _ = self._absent.popitem(last=False)
            del self._places[forgotten]

    def first(self, user_ids: Iterable[int]) -> int:
        """Return which of some users, all of whom wait, comes next."""
        return min(user_ids, key=self._places.__getitem__)
