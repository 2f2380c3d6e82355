"""How far an archive lags behind what is committed, in entries and in time. Pure."""

from __future__ import annotations

from typing import Final

# Older times than the oldest are told apart less and less well.
SAMPLES_MAX: Final = 1_024


class ShippingLag:
    """Remembers when ops were first known to be committed, on a clock that never jumps."""

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []
        self._committed_op = 0
        self._shipped_op = 0

    @property
    def ops(self) -> int:
        """The entries that are committed and not in the archive."""
        return max(0, self._committed_op - self._shipped_op)

    def committed(self, op: int, now_ms: int) -> None:
        """Take the newest op that is known to be committed."""
        if op <= self._committed_op:
            return
        self._committed_op = op
        self._samples.append((op, now_ms))
        if len(self._samples) > SAMPLES_MAX:
            # The oldest stays, because the lag is counted from it.
            del self._samples[1::2]

    def shipped(self, op: int) -> None:
        """Take the newest op that is in the archive."""
        self._shipped_op = op
        self._samples = [sample for sample in self._samples if sample[0] > op]

    def age_ms(self, now_ms: int) -> int:
        """Return for how long the oldest entry that is not in the archive has been committed."""
        return now_ms - self._samples[0][1] if self._samples else 0
