"""Timeouts as values: a timeout is due at a tick or not armed; time is whatever the driver says.

The clock never decides anything about the log. A timeout only makes a replica repeat itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from viewstamp.limits import (
    FOUNDING_QUERY_MS,
    HEARTBEAT_MS,
    PREPARE_RESEND_MS,
    TICK_MS,
)


def ticks(duration_ms: int) -> int:
    """The number of ticks that last at least `duration_ms`; at least one."""
    return max(1, -(-duration_ms // TICK_MS))


@dataclass(frozen=True, slots=True)
class Timeout:
    """Fires `after_ticks` after it was armed, and stays fired until armed again or stopped."""

    after_ticks: int
    due_ticks: int | None = None

    def armed(self, now_ticks: int) -> Timeout:
        """The same timeout, counting from now."""
        return replace(self, due_ticks=now_ticks + self.after_ticks)

    def stopped(self) -> Timeout:
        """The same timeout, not armed."""
        return self if self.due_ticks is None else replace(self, due_ticks=None)

    def fired(self, now_ticks: int) -> bool:
        """Whether the timeout is armed and due."""
        return self.due_ticks is not None and now_ticks >= self.due_ticks


class TimeoutName(Enum):
    """The timeouts of a replica, in the order in which they are looked at."""

    FOUNDING_QUERY = "founding_query"
    HEARTBEAT = "heartbeat"
    PREPARE_RESEND = "prepare_resend"


AFTER_MS = {
    TimeoutName.FOUNDING_QUERY: FOUNDING_QUERY_MS,
    TimeoutName.HEARTBEAT: HEARTBEAT_MS,
    TimeoutName.PREPARE_RESEND: PREPARE_RESEND_MS,
}


class Timeouts:
    """The timeouts of one replica."""

    def __init__(self) -> None:
        self._timeouts = {name: Timeout(ticks(AFTER_MS[name])) for name in TimeoutName}

    def arm(self, name: TimeoutName, now_ticks: int) -> None:
        """Let `name` count from now."""
        self._timeouts[name] = self._timeouts[name].armed(now_ticks)

    def stop(self, name: TimeoutName) -> None:
        """Let `name` not fire."""
        self._timeouts[name] = self._timeouts[name].stopped()

    def fired(self, now_ticks: int) -> tuple[TimeoutName, ...]:
        """The timeouts that are due, in their fixed order."""
        return tuple(name for name in TimeoutName if self._timeouts[name].fired(now_ticks))

    def earliest_ticks(self) -> int | None:
        """When the next timeout is due; None if none is armed."""
        due = [t.due_ticks for t in self._timeouts.values() if t.due_ticks is not None]
        return min(due, default=None)
