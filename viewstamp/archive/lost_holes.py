"""Since when an entry is missing that keeps the log from being shipped. Pure."""

from __future__ import annotations


class LostHoles:
    """Remembers the entry that is missing, on a clock that never jumps."""

    def __init__(self) -> None:
        self._op = 0
        self._since_ms = 0

    def has_waited(self, op: int, now_ms: int, pause_ms: int) -> bool:
        """Return whether this entry is missing for the pause, in which others would ship it."""
        if op != self._op:
            self._op, self._since_ms = op, now_ms
        return now_ms - self._since_ms >= pause_ms

    def end(self) -> None:
        """Note that no entry is missing."""
        self._op = 0
