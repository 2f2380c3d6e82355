"""Which ops a log holds, as ranges: few, because a log has few gaps."""

from __future__ import annotations

from bisect import bisect_right


class OpRanges:
    """Ops as ascending ranges that do not touch, both ends included."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._last: list[int] = []

    def __contains__(self, op: int) -> bool:
        """Return whether the op is held."""
        index = bisect_right(self._first, op) - 1
        return index >= 0 and op <= self._last[index]

    @property
    def first(self) -> int:
        """The lowest op, 0 for none."""
        return self._first[0] if self._first else 0

    @property
    def head(self) -> int:
        """The highest op, 0 for none."""
        return self._last[-1] if self._last else 0

    def add(self, op: int) -> None:
        """Hold an op."""
        index = bisect_right(self._first, op)
        if index and op <= self._last[index - 1]:
            return
        joins_before = index > 0 and self._last[index - 1] == op - 1
        joins_behind = index < len(self._first) and self._first[index] == op + 1
        if joins_before and joins_behind:
            self._last[index - 1] = self._last.pop(index)
            del self._first[index]
        elif joins_before:
            self._last[index - 1] = op
        elif joins_behind:
            self._first[index] = op
        else:
            self._first.insert(index, op)
            self._last.insert(index, op)

    def cut_above(self, op: int) -> None:
        """Hold no op above this one."""
        keep = bisect_right(self._first, op)
        del self._first[keep:], self._last[keep:]
        if self._last and self._last[-1] > op:
            self._last[-1] = op

    def gaps(self) -> list[tuple[int, int]]:
        """Return the ranges of ops that are not held between the first and the head."""
        return [
            (last + 1, first - 1)
            for last, first in zip(self._last[:-1], self._first[1:], strict=True)
        ]
