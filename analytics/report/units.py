"""Numbers as people read them: three digits, a unit, and a narrow space that no line breaks at.

A value that is absent or not finite is a dash, never 0.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Final

ABSENT: Final = "\N{EN DASH}"
SPACE: Final = "\N{NARROW NO-BREAK SPACE}"
TIMES: Final = "\N{MULTIPLICATION SIGN}"
MICROSECONDS_PER_SECOND: Final = 1_000_000
SECONDS_PER_DAY: Final = 86_400
DAYS_PER_YEAR: Final = 365
# Longer times read "over 100 years": "in 400 years" would tell an operator no more.
YEARS_TOLD_MAX: Final = 100
# Counts up to this show every digit.
COUNT_EXACT_MAX: Final = 9_999_999

# (how many of the base unit, name), the largest first.
_DURATIONS_US: Final = (
    (3_600 * MICROSECONDS_PER_SECOND, "h"),
    (60 * MICROSECONDS_PER_SECOND, "min"),
    (MICROSECONDS_PER_SECOND, "s"),
    (1_000, "ms"),
    (1, "µs"),
)
_BYTES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_COUNTS: Final = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"))


def duration_us(value: float) -> str:
    """Return microseconds in the largest unit that fits: `12.0 ms`."""
    return _scaled(value, _DURATIONS_US)


def duration_s(value: float) -> str:
    """Return seconds in the largest unit that fits."""
    return _scaled(value * MICROSECONDS_PER_SECOND, _DURATIONS_US)


def size(value: float) -> str:
    """Return bytes in the largest binary unit that fits: `3.20 MiB`."""
    return _scaled(value, _BYTES)


def count(value: float) -> str:
    """Return a count with all its digits up to ten million, then shortened: `12.3 million`."""
    if abs(value) <= COUNT_EXACT_MAX:
        return f"{value:,.0f}" if float(value).is_integer() else _digits(value)
    return _scaled(value, _COUNTS)


def share(value: float) -> str:
    """Return a fraction as percent: `3.1 %`."""
    percent = value * 100
    if percent == 0 or abs(percent) >= 10:
        return f"{percent:.0f}{SPACE}%"
    return f"{percent:.1f}{SPACE}%" if abs(percent) >= 0.1 else f"{percent:.2g}{SPACE}%"


def times(value: float) -> str:
    """Return a ratio as a multiple of one, with a decimal below 100."""
    digits = f"{value:.2f}" if abs(value) < 1 else f"{value:,.1f}" if abs(value) < 100 else ""
    return f"{digits or f'{value:,.0f}'}{SPACE}{TIMES}"


def rate_per_s(value: float) -> str:
    """Return a rate per second."""
    return f"{_digits(value)}{SPACE}/s"


def entities_per_hour(value: float) -> str:
    """Return a rate of entities per hour."""
    told = count(round(value)) if abs(value) >= 100 or float(value).is_integer() else _digits(value)
    return f"{told}{SPACE}entities/h"


def days(value: float) -> str:
    """Return days, in years from one year on."""
    if value < DAYS_PER_YEAR:
        whole = f"{value:.0f}" if value >= 10 else f"{value:.1f}"
        return f"{whole}{SPACE}days"
    years = value / DAYS_PER_YEAR
    if years > YEARS_TOLD_MAX:
        return f"over {YEARS_TOLD_MAX}{SPACE}years"
    return f"{years:.1f}{SPACE}years"


def moment(value: float) -> str:
    """Return microseconds since 1970 as a time of UTC, to the second."""
    try:
        time = datetime.datetime.fromtimestamp(value / MICROSECONDS_PER_SECOND, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return ABSENT  # Beyond the year 9999: a producer's broken clock.
    return f"{time:%Y-%m-%d %H:%M:%S}"


def plain(value: float) -> str:
    """Return a number that has no unit: a probability, a slope."""
    return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"


def name(value: float) -> str:
    """Return a number that is a name, not a quantity: an op, a generation."""
    return f"{value:.0f}"


UNITS: Final[dict[str, Callable[[float], str]]] = {
    "us": duration_us,
    "s": duration_s,
    "bytes": size,
    "count": count,
    "share": share,
    "times": times,
    "per_s": rate_per_s,
    "entities_per_hour": entities_per_hour,
    "days": days,
    "moment": moment,
    "plain": plain,
    "name": name,
}


def show(value: float | None, unit: str) -> str:
    """Return the value with its unit, one of UNITS; a dash if there is no finite value."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return UNITS[unit](value)


def _scaled(value: float, steps: tuple[tuple[int, str], ...]) -> str:
    """Return the value in the largest unit that it reaches, else in the smallest."""
    factor, unit = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    scaled = value / factor
    # Whole numbers of the smallest step (0 B, 7 µs) have no decimals to show.
    text = f"{scaled:.0f}" if factor == 1 and float(value).is_integer() else _digits(scaled)
    return f"{text}{SPACE}{unit}"


def _digits(value: float) -> str:
    """Return three digits of a value, all of those before the point."""
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 0.01 or value == 0 else f"{value:.2g}"
