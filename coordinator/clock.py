"""The clock of everything that measures how long ago something was."""

from __future__ import annotations

import time
from typing import Final

_NS_PER_MS: Final = 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds since some moment; they never go back, and mean nothing elsewhere."""
    return time.monotonic_ns() // _NS_PER_MS
