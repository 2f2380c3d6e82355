"""What later records of a journal take out of the log, and how far the log reaches.

A cut takes out all ops above its own, a restart all that a snapshot covers, and a repaired record
says which lost sequences need nothing more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from viewstamp.format.record import Frame, RecordKind


class Removals:
    """Which records the later ones took out of the log."""

    def __init__(self) -> None:
        """Begin with no record; `settle` once all are noted."""
        self.restart = (0, 0)
        """Sequence and op of the newest restart; zeros for none."""
        self._cuts: list[tuple[int, int]] = []
        self._repaired: list[tuple[int, int, int]] = []
        self._cut_sequences: list[int] = []
        self._lowest_remaining: list[int] = []

    def cut(self, sequence: int, op: int) -> None:
        """Note that a record took all ops above `op` out of the log."""
        self._cuts.append((sequence, op))

    def repaired(self, sequence: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Note that a record says that these sequences are repaired."""
        self._repaired.extend((sequence, first, last) for first, last in ranges)

    def settle(self) -> None:
        """Make `was_cut` quick, once all records are noted."""
        cuts = sorted(self._cuts)
        self._cut_sequences = [sequence for sequence, _ in cuts]
        self._lowest_remaining = list(accumulate((op for _, op in reversed(cuts)), min))[::-1]

    def was_cut(self, op: int, sequence: int) -> bool:
        """Return whether a cut after `sequence` took `op` out of the log."""
        index = bisect_right(self._cut_sequences, sequence)
        return index < len(self._cut_sequences) and op > self._lowest_remaining[index]

    def is_repaired(self, first_sequence: int, last_sequence: int) -> bool:
        """Return whether later repaired records, one or several together, name the sequences."""
        unnamed = first_sequence
        later = (each for each in self._repaired if each[0] > last_sequence)
        for _, first, last in sorted(later, key=lambda each: each[1:]):
            if first > unnamed:
                break
            unnamed = max(unnamed, last + 1)
        return unnamed > last_sequence

    def is_replaced(
        self, first_sequence: int, last_sequence: int, op: int | None, newest: int
    ) -> bool:
        """Return whether later records make lost ones irrelevant. `newest` is the sequence of the
        newest intact entry of their op, 0 for none; without an op only a repair tells."""
        if self.is_repaired(first_sequence, last_sequence):
            return True
        if op is None:
            return False
        if newest > last_sequence or self.was_cut(op, last_sequence):
            return True
        # A restart forgets entries that a snapshot covers. Above that a lost entry stays lost.
        restart_sequence, restart_op = self.restart
        return last_sequence < restart_sequence and op <= restart_op


def reach_after(reached_op: int, frame: Frame, base_op: int = 0) -> int:
    """Return the log's highest op after a record; it reached `base_op` before any record."""
    if frame.kind is RecordKind.PREPARE:
        return max(reached_op, frame.op)
    if frame.kind is RecordKind.CUT:
        return max(base_op, min(reached_op, frame.op))
    return max(base_op, frame.op) if frame.kind is RecordKind.RESTART else reached_op
