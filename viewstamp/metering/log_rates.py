"""Rates between two readings of counters that grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PLACES: Final = 1


class LogRates:
    """Makes a rate per second of each counter, from one reading to the next.

    A counter that was not read before, or that has begun anew, has no rate yet.
    """

    def __init__(self) -> None:
        self._before: tuple[float, Mapping[str, int]] | None = None

    def take(self, now_s: float, counters: Mapping[str, int]) -> dict[str, float | None]:
        """Return the rates since the reading before, rounded; None where there is none."""
        before, self._before = self._before, (now_s, dict(counters))
        if before is None or now_s <= before[0]:
            return dict.fromkeys(counters)
        passed_s, earlier = now_s - before[0], before[1]
        return {
            name: round((value - earlier[name]) / passed_s, PLACES)
            if name in earlier and value >= earlier[name]
            else None
            for name, value in counters.items()
        }
