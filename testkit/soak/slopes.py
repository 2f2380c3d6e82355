"""How fast a figure of a process grows, and how sure that is. Pure.

The slope is that of Theil and Sen, the median of the slopes between all pairs of points: single
peaks do not move it. Its interval is that of Sen (1968), from the ranks of these slopes. Samples
that follow each other closely are alike, and would make it look surer than it is: so the points are
medians of longer pieces of time.

A young process takes ever less new memory, long after its start, and a leak does not end: so the
later half of a life has to grow too fast as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from statistics import NormalDist, median
from typing import Final, TypeAlias

# A moment in seconds, and the figure then.
Point: TypeAlias = tuple[float, float]

CONFIDENCE: Final = 0.95
SECONDS_PER_HOUR: Final = 3_600.0
# With fewer points an interval says nothing: three points have three slopes.
PIECES_MIN: Final = 6
# So many pieces a life is divided into; their pairs are 1,770.
PIECES_MAX: Final = 60


class Growth(StrEnum):
    """What a slope says of a limit."""

    BELOW = "below the limit"
    UNDECIDED = "not sure"
    ABOVE = "above the limit"


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth in percent of the median per hour; `low` and `high` bound it with CONFIDENCE."""

    percent_per_hour: float
    low: float
    high: float
    level: float
    """The median of the figure itself."""
    hours: float
    pieces: int
    late_low: float
    """The lower bound for the later half alone; that of no growth at all where it is too short."""

    def judged(self, limit_percent_per_hour: float) -> Growth:
        """Return whether the growth is surely above or below a limit."""
        if min(self.low, self.late_low) > limit_percent_per_hour:
            return Growth.ABOVE
        return Growth.BELOW if self.high < limit_percent_per_hour else Growth.UNDECIDED


def slope_of(points: Sequence[Point], warm_up_s: float, piece_s: float) -> Slope | None:
    """Return the growth after a warm-up, in pieces of at least so many seconds.

    `points` are in the order of their moments. Returns None if what is left is too short.
    """
    if not points:
        return None
    begins_s = points[0][0] + warm_up_s
    pieces = _pieces([point for point in points if point[0] >= begins_s], piece_s)
    if len(pieces) < PIECES_MIN:
        return None
    level = median(value for _, value in pieces)
    if level <= 0:
        return None
    scale = 100 * SECONDS_PER_HOUR / level
    middle, low, high = _slopes(pieces)
    later = pieces[len(pieces) // 2 :]
    return Slope(
        percent_per_hour=middle * scale,
        low=low * scale,
        high=high * scale,
        level=level,
        hours=(pieces[-1][0] - pieces[0][0]) / SECONDS_PER_HOUR,
        pieces=len(pieces),
        late_low=_slopes(later)[1] * scale if len(later) >= PIECES_MIN else 0.0,
    )


def _slopes(pieces: Sequence[Point]) -> tuple[float, float, float]:
    """Return the slope per second, and its bounds."""
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(pieces, 2))
    low, high = _bounds(len(pieces), len(slopes))
    return median(slopes), slopes[low], slopes[high]


def _pieces(points: Sequence[Point], piece_s: float) -> list[Point]:
    """Return the median moment and figure of each piece of time."""
    if not points:
        return []
    first_s, last_s = points[0][0], points[-1][0]
    length_s = max(piece_s, (last_s - first_s) / PIECES_MAX)
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(int((point[0] - first_s) / length_s), []).append(point)
    return [
        (median(at_s for at_s, _ in piece), median(value for _, value in piece))
        for piece in found.values()
    ]


def _bounds(pieces: int, slopes: int) -> tuple[int, int]:
    """Return the places of the interval's ends among the sorted slopes."""
    deviation = math.sqrt(pieces * (pieces - 1) * (2 * pieces + 5) / 18)
    half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * deviation / 2
    low = max(0, math.floor(slopes / 2 - half))
    return low, slopes - 1 - low
