"""How much a number from few calls can be trusted: intervals and the least number of calls."""

from __future__ import annotations

from math import sqrt
from typing import Final

# Beyond this on both sides lie 5 % of the normal distribution.
NORMAL_QUANTILE: Final = 1.96
# With fewer calls, a 99th percentile is their slowest call and hardly more.
P99_CALLS_MIN: Final = 100
# With fewer calls, even the lower end of a rate's interval is one call's doing.
RATE_CALLS_MIN: Final = 20


def rate_interval(happened: float, calls: float) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a rate, as fractions; (0, 1) if there are no calls.

    The interval is Wilson's (E. B. Wilson, 1927), which holds for few calls and for rates near 0
    and 1.
    """
    if calls <= 0:
        return 0.0, 1.0
    square = NORMAL_QUANTILE**2
    middle = happened / calls + square / (2 * calls)
    spread = NORMAL_QUANTILE * sqrt(
        happened * (calls - happened) / calls**3 + square / (4 * calls**2)
    )
    whole, rate = 1 + square / calls, happened / calls
    # Rounding must not leave the rate itself out, which is an end of its interval at 0 and 1.
    return (
        min(rate, max(0.0, (middle - spread) / whole)),
        max(rate, min(1.0, (middle + spread) / whole)),
    )
