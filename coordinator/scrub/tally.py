"""What people see of the scrubber: counts since the start of the process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from coordinator.scrub.remedies import DamagedPart


@dataclass(slots=True)
class ScrubTally:
    """Counts of one process. Any thread may read them.

    `completed_us` is when the last pass ended, microseconds since 1970; 0 before the first.
    `standing` is how much damage was found and is not mended, by part.
    """

    read_bytes: int = 0
    passes: int = 0
    completed_us: int = 0
    found: Counter[DamagedPart] = field(default_factory=Counter)
    mended: Counter[DamagedPart] = field(default_factory=Counter)
    standing: Counter[DamagedPart] = field(default_factory=Counter)

    def passed(self, now_us: int) -> None:
        """Note the end of a pass."""
        self.passes += 1
        self.completed_us = now_us
