"""How long reads keep commands waiting, in processor time of the machine's thread.

Wall-clock time would refuse reads on a machine that shares its processor with others.
"""

from __future__ import annotations

import time
from typing import Final

from viewstamp.limits import READ_SLICE_US, READ_TIME_MAX_MS

SLICE_NS: Final = READ_SLICE_US * 1_000
_READ_NS: Final = READ_TIME_MAX_MS * 1_000_000


class SlicePatience:
    """The patience with the reads of one batch, from now on."""

    def __init__(self) -> None:
        self._batch_began_ns = self._read_began_ns = time.thread_time_ns()

    def begins(self) -> bool:
        """Return whether one more read may begin, and start its time."""
        self._read_began_ns = time.thread_time_ns()
        return self._read_began_ns - self._batch_began_ns < SLICE_NS

    def is_gone(self) -> bool:
        """Return whether the last begun read has used its time."""
        return time.thread_time_ns() - self._read_began_ns >= _READ_NS
