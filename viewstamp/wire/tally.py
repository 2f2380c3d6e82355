"""How many calls there were, and how they ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Calls of a connection, of a channel or of a server."""

    started: int = 0
    succeeded: int = 0
    """Of a server or channel those with the status OK, of a connection those with any status."""
    failed: int = 0
    last_started_ms: int = 0
    """When the last one began, by the monotonic clock."""

    def begin(self, now_ms: int) -> None:
        """Count a call that begins."""
        self.started += 1
        self.last_started_ms = now_ms

    def end(self, *, is_ok: bool) -> None:
        """Count how a call ended."""
        if is_ok:
            self.succeeded += 1
        else:
            self.failed += 1
