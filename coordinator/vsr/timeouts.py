"""Timeouts as values: a timeout is due at a tick or not armed; the driver supplies the time.

The clock never decides anything about the log. A timeout makes a replica repeat itself, or suspect
another; a wrong suspicion costs only time.
"""

from __future__ import annotations

from enum import Enum

from viewstamp.limits import (
    ABDICATE_MS,
    BOOTSTRAP_QUERY_MS,
    DO_VIEW_CHANGE_RESEND_MS,
    HEARTBEAT_MS,
    PREPARE_RESEND_MS,
    READ_INDEX_RESEND_MS,
    REPAIR_RESEND_MS,
    START_VIEW_CHANGE_RESEND_MS,
    START_VIEW_REQUEST_MS,
    SUSPICION_MS,
    TICK_MS,
    VIEW_CHANGE_MS,
)


def ticks(duration_ms: int) -> int:
    """Return the number of ticks that last at least `duration_ms`; at least one."""
    return max(1, -(-duration_ms // TICK_MS))


class TimeoutName(Enum):
    """The timeouts of a replica, in the order in which they fire."""

    BOOTSTRAP_QUERY = "bootstrap_query"
    HEARTBEAT = "heartbeat"
    PREPARE_RESEND = "prepare_resend"
    SUSPICION = "suspicion"
    PRE_VOTE_RESEND = "pre_vote_resend"
    VOTE_RESEND = "vote_resend"
    VIEW_CHANGE = "view_change"
    START_VIEW_REQUEST = "start_view_request"
    REPAIR = "repair"
    ABDICATION = "abdication"
    ADMISSION = "admission"
    READ_INDEX = "read_index"


AFTER_MS = {
    TimeoutName.BOOTSTRAP_QUERY: BOOTSTRAP_QUERY_MS,
    TimeoutName.HEARTBEAT: HEARTBEAT_MS,
    TimeoutName.PREPARE_RESEND: PREPARE_RESEND_MS,
    TimeoutName.SUSPICION: SUSPICION_MS,
    TimeoutName.PRE_VOTE_RESEND: START_VIEW_CHANGE_RESEND_MS,
    TimeoutName.VOTE_RESEND: DO_VIEW_CHANGE_RESEND_MS,
    TimeoutName.VIEW_CHANGE: VIEW_CHANGE_MS,
    TimeoutName.START_VIEW_REQUEST: START_VIEW_REQUEST_MS,
    TimeoutName.REPAIR: REPAIR_RESEND_MS,
    TimeoutName.ABDICATION: ABDICATE_MS,
    TimeoutName.ADMISSION: START_VIEW_REQUEST_MS,
    TimeoutName.READ_INDEX: READ_INDEX_RESEND_MS,
}
AFTER_TICKS = {name: ticks(duration_ms) for name, duration_ms in AFTER_MS.items()}


class Timeouts:
    """When each armed timeout of one replica is due."""

    def __init__(self) -> None:
        self._due_ticks: dict[TimeoutName, int] = {}
        self._earliest_ticks: int | None = None

    def arm(self, name: TimeoutName, now_ticks: int, after_ticks: int | None = None) -> None:
        """Arm `name` to fire after its usual time, or after `after_ticks`."""
        self._due_ticks[name] = now_ticks + (after_ticks or AFTER_TICKS[name])
        self._look()

    def stop(self, *names: TimeoutName) -> None:
        """Disarm these timeouts."""
        for name in names:
            self._due_ticks.pop(name, None)
        self._look()

    def stop_all(self) -> None:
        """Disarm all timeouts."""
        self._due_ticks.clear()
        self._look()

    def is_armed(self, name: TimeoutName) -> bool:
        """Return whether `name` will fire, or has fired and was not armed anew."""
        return name in self._due_ticks

    def fired(self, now_ticks: int) -> tuple[TimeoutName, ...]:
        """Return the timeouts due, in fixed order. They stay due until armed anew or stopped."""
        return tuple(
            name for name in TimeoutName if self._due_ticks.get(name, now_ticks + 1) <= now_ticks
        )

    def earliest_ticks(self) -> int | None:
        """Return the tick at which the next timeout is due; None if none is armed."""
        return self._earliest_ticks

    def _look(self) -> None:
        # Computed once per change, because most steps change no timeout.
        self._earliest_ticks = min(self._due_ticks.values(), default=None)
