"""How fast a pass reads: pure.

A pass is to take the interval. So after each slice the scrubber rests for the part of the interval
that the slice is of everything, no matter how much that is, between a rate that a disk hardly
notices and a longest rest. While commands come in it also rests for nine times as long as the
slice took, as the work on snapshots does. While the replica has better things to do it waits, but
never for ever: a replica that is always busy is scrubbed, too.
"""

from __future__ import annotations

from typing import Final

from coordinator.snapshot.pacing import REST_US_MAX, PacingSituation, rest_us
from viewstamp.limits import KIB, MIB

# What is read between two rests.
SLICE_BYTES: Final = 256 * KIB
# A larger replica takes longer than the interval.
RATE_BYTES_PER_S_MAX: Final = 32 * MIB
# A smaller replica takes less than the interval, and begins again.
PAUSE_MS_MAX: Final = 60_000
# Between two looks whether the replica has better things to do, and how long a slice waits for it.
HOLD_LOOK_MS: Final = 1_000
HOLD_MS_MAX: Final = 60_000
# Before each pass; the start of the replica has read most of it already.
PASS_PAUSE_PARTS: Final = 10

_MS_PER_S: Final = 1_000
_US_PER_MS: Final = 1_000


def pause_ms(
    slice_bytes: int, total_bytes: int, interval_ms: int, read_ms: int, *, is_busy: bool
) -> int:
    """Return how long to rest after a slice that took `read_ms` to read."""
    due_ms = slice_bytes * interval_ms // max(1, total_bytes)
    least_ms = slice_bytes * _MS_PER_S // RATE_BYTES_PER_S_MAX
    situation = PacingSituation(is_busy, is_urgent=False, left_us=REST_US_MAX)
    polite_ms = rest_us(read_ms * _US_PER_MS, situation) // _US_PER_MS
    return min(max(due_ms, least_ms, polite_ms), PAUSE_MS_MAX)


def pause_between_passes_ms(interval_ms: int) -> int:
    """Return how long to rest before a pass."""
    return min(PAUSE_MS_MAX, interval_ms // PASS_PAUSE_PARTS)
