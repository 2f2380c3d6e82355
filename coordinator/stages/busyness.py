"""How long a service has been at one batch: a slow service is reported, and never taken for dead.

Only its connection tells whether a service lives (ADR 19).
"""

from __future__ import annotations

from typing import Final

from viewstamp.limits import STAGE_BUSY_MS

LOOK_INTERVAL_MS: Final = 250
# The most that one look counts: a stopped coordinator did not see whether an answer was owed.
PAUSE_MS_MAX: Final = 2 * LOOK_INTERVAL_MS


class Busyness:
    """Counts the time since the last answer while one is due, in looks."""

    def __init__(self) -> None:
        """Begin with nothing due."""
        self.owed_ms = 0
        self._looked_ms = 0
        self._answers = 0

    @property
    def is_busy(self) -> bool:
        """Whether an answer has been due long enough to report."""
        return self.owed_ms >= STAGE_BUSY_MS

    def look(self, answers: int, *, is_due: bool, now_ms: int) -> None:
        """Count on: `answers` have come so far, and one `is_due` or not."""
        elapsed_ms = min(now_ms - self._looked_ms, PAUSE_MS_MAX)
        self._looked_ms = now_ms
        gets_on = answers != self._answers
        self._answers = answers
        self.owed_ms = self.owed_ms + elapsed_ms if is_due and not gets_on else 0

    def reset(self) -> None:
        """Note that nothing is due any more."""
        self.owed_ms = 0
