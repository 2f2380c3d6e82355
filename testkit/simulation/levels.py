"""Feature levels: each entry of some ops decides that those behind it have the next one.

So it is in the log what is decided, as by a command, and each process knows as much of it as it has
executed.
"""

from __future__ import annotations

from typing import Final

from viewstamp.limits import FEATURE_LEVEL_MAX

BOOTSTRAP_LEVEL: Final = 1
OPS_PER_LEVEL: Final = 10


def level_behind(op: int) -> int:
    """Return the level that the entries up to `op` have decided."""
    return min(FEATURE_LEVEL_MAX, BOOTSTRAP_LEVEL + op // OPS_PER_LEVEL)
