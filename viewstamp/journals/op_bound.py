"""The ops of lost records, where counting proves them, as a start counts.

One append makes a log longer by one entry at most. So if the record behind a gap of k sequences is
k + 1 ops beyond the end that the log had, each lost record was the next entry. The end is an upper
bound, which a journal without its first segments does not give.
"""

from __future__ import annotations

from typing import Final

from viewstamp.format.record import Frame, RecordKind

# Above every op: nothing bounds how far the log reached.
ANY_OP: Final = 1 << 64


class OpBound:
    """An upper bound of the log's head, record by record in the order of appending."""

    def __init__(self, *, is_whole: bool) -> None:
        """Begin before the first record. `is_whole` says that none has been dropped."""
        self._is_whole = is_whole
        self._reach_op = 0 if is_whole else ANY_OP

    def first_lost_op(self, following: Frame, lost: int) -> int | None:
        """Return the op of the first of `lost` records before this one, None if it is unknown."""
        is_next = following.op == self._reach_op + lost + 1
        return self._reach_op + 1 if following.kind is RecordKind.PREPARE and is_next else None

    def passed(self, frame: Frame, lost: int, *, is_intact: bool) -> None:
        """Advance past a record that `lost` lost ones precede."""
        self._is_whole = self._is_whole and lost == 0 and is_intact
        self._reach_op += lost
        if frame.kind is RecordKind.PREPARE:
            self._reach_op = max(self._reach_op, frame.op)
        elif frame.kind is RecordKind.CUT:
            self._reach_op = min(self._reach_op, frame.op)
        elif frame.kind is RecordKind.RESTART:
            # Ops then known to be lost stay lost above the snapshot, and may be appended.
            forgotten = 0 if self._is_whole else self._reach_op
            self._reach_op = max(frame.op, forgotten)
