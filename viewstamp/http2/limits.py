"""What a peer may cost us: limits of one connection, and how often it may do what carries nothing.

Each kind of frame that makes work and moves no message has an allowance. A peer that exceeds it is
told to calm down and loses its connection. Honest peers stay far below.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from viewstamp.http2.errors import ConnectionFault, ErrorCode
from viewstamp.http2.frames import FRAME_BYTES_MIN
from viewstamp.limits import KIB, MIB

_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection takes. Windows and sizes are in bytes."""

    streams_max: int = 100
    """How many streams the peer may have open at once."""
    stream_window_bytes: int = 256 * KIB
    """How much of one stream may be unused."""
    window_bytes: int = 4 * MIB
    """How much of all streams may be unused."""
    frame_bytes_max: int = FRAME_BYTES_MIN
    section_bytes_max: int = 64 * KIB
    """The largest section of fields that is read at all."""
    block_bytes_max: int = 64 * KIB
    """The largest block, compressed, in however many frames."""
    forgotten_max: int = 1_000
    """How many streams that we reset are remembered: frames for them may be under way."""


class Nuisance(Enum):
    """What a peer may do only so often."""

    RESET = "opening streams and taking them back"  # CVE-2023-44487
    FAULT = "breaking rules on streams"
    PING = "pings"
    SETTINGS = "settings"
    PRIORITY = "priorities"
    EMPTY = "frames that carry nothing and end nothing"
    WINDOW = "allowing more bytes"
    LATE = "frames of streams that are closed"
    UNKNOWN = "frames of unknown kinds"


class Rate(NamedTuple):
    """How many at once, and how many in a second from then on."""

    burst: int
    per_s: int


RATES: Final[dict[Nuisance, Rate]] = {
    Nuisance.RESET: Rate(500, 200),
    Nuisance.FAULT: Rate(500, 200),
    Nuisance.PING: Rate(100, 20),
    Nuisance.SETTINGS: Rate(20, 5),
    Nuisance.PRIORITY: Rate(2_000, 200),
    Nuisance.EMPTY: Rate(1_000, 500),
    Nuisance.WINDOW: Rate(20_000, 20_000),
    Nuisance.LATE: Rate(20_000, 10_000),
    # A peer whose event loop is busy sends one in half a second, and we may read them all at once.
    Nuisance.UNKNOWN: Rate(2_000, 200),
}


class Allowances:
    """What is left of each nuisance; it comes back with time, and never exceeds its burst."""

    def __init__(self, now_ms: int) -> None:
        self._left = {nuisance: float(rate.burst) for nuisance, rate in RATES.items()}
        self._at_ms = dict.fromkeys(RATES, now_ms)

    def forgive_pings(self) -> None:
        """Allow all pings again: we have sent something, and peers measure the way by pings."""
        self._left[Nuisance.PING] = RATES[Nuisance.PING].burst

    def take(self, nuisance: Nuisance, now_ms: int) -> None:
        """Take one. Raises ConnectionFault if none is left."""
        rate = RATES[nuisance]
        passed_ms = max(0, now_ms - self._at_ms[nuisance])
        self._at_ms[nuisance] = now_ms
        left = min(rate.burst, self._left[nuisance] + passed_ms * rate.per_s / _MS_PER_S)
        if left < 1:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {nuisance.value}")
        self._left[nuisance] = left - 1
