"""Durations and sizes as people write them: `7d`, `1GiB`. No unit of a duration is guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# More digits than any quantity needs; it bounds the work on one.
_DIGITS: Final = r"(0|[1-9][0-9]{0,19})"
UNITS_US: Final[Mapping[str, int]] = MappingProxyType(
    {
        "us": 1,
        "ms": 10**3,
        "s": 10**6,
        "m": 60 * 10**6,
        "h": 3_600 * 10**6,
        "d": 86_400 * 10**6,
        "w": 604_800 * 10**6,
    }
)
UNITS_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
)
DURATION_PATTERN: Final = rf"{_DIGITS}({'|'.join(UNITS_US)})"
SIZE_PATTERN: Final = rf"{_DIGITS}({'|'.join(UNITS_BYTES)})"
_DURATION: Final = re.compile(DURATION_PATTERN)
_SIZE: Final = re.compile(SIZE_PATTERN)


def duration_us(text: str) -> int | None:
    """Return a duration such as 500ms, 90s, 12h, 7d in microseconds; None if it is none."""
    match = _DURATION.fullmatch(text)
    return None if match is None else int(match[1]) * UNITS_US[match[2]]


def size_bytes(text: str) -> int | None:
    """Return a size such as 512B, 64KiB, 10GiB in bytes; None if it is none."""
    match = _SIZE.fullmatch(text)
    return None if match is None else int(match[1]) * UNITS_BYTES[match[2]]


def duration_text(microseconds: int) -> str:
    """Return a duration with the largest unit that needs no fraction; weeks are told in days."""
    return _text(microseconds, {unit: size for unit, size in UNITS_US.items() if unit != "w"})


def size_text(count_bytes: int) -> str:
    """Return a size with the largest unit that needs no fraction."""
    return _text(count_bytes, UNITS_BYTES)


def _text(value: int, units: Mapping[str, int]) -> str:
    # Every value is a multiple of the smallest unit; 0 is one of each.
    fitting = [unit for unit, size in units.items() if value % size == 0 and size <= max(value, 1)]
    return f"{value // units[fitting[-1]]}{fitting[-1]}"
