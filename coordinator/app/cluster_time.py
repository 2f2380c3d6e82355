"""The time by all replicas' clocks, and the alarms about clocks that are wrong.

Clocks that disagree are told after some seconds: a report that waited for a paused process, or for
the end of a cut, makes a clock look wrong until the next report.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from coordinator.base.clock import monotonic_us, wall_clock_us
from coordinator.base.roster import Roster
from coordinator.replica.cluster_clock import (
    CLOCK_BOUND_MS,
    CLOCK_STEP_MS,
    ClockView,
    ClusterClock,
    OwnClock,
)
from coordinator.replica.ports import DriverClock
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

# Clocks that disagree for less long are not told: six reports.
DISAGREE_MS: Final = 3_000
_US_PER_MS: Final = 1_000
_US_PER_S: Final = 1_000_000


class ClockAlarms(Protocol):
    """The alarms, as seen from here."""

    def tell(self, kind: cluster_pb2.AlarmKind.ValueType, message: str) -> None:
        """Raise an alarm, or change what a raised one says."""

    def clear(self, kind: cluster_pb2.AlarmKind.ValueType) -> None:
        """Clear an alarm if it is raised."""


class ClusterTime:
    """The time of one process, and who is wrong about it."""

    def __init__(self, clock: ClusterClock, alarms: ClockAlarms) -> None:
        self.now_us = clock.now_us
        self.own_us = clock.own.now_us
        self._clock = clock
        self.driver = DriverClock(clock.stamp_us, clock.now_us)
        self._alarms = alarms
        # How the clocks stood at the last look; other threads may read it.
        self.seen: ClockView | None = None
        self._known = asyncio.Event()
        self._note_known()
        # By alarm: since when its reason has held, on the monotonic clock.
        self._since_us: dict[int, int] = {}

    def heard(self, replica: int, clock_us: int) -> None:
        """Take the clock of another replica from its report; 0 if its build tells none."""
        self._clock.heard(replica, clock_us)
        self._note_known()

    async def known(self) -> None:
        """Wait until entries can be given a time."""
        await self._known.wait()

    def _note_known(self) -> None:
        if self._clock.is_known():
            self._known.set()

    def look(self, log_time_us: int) -> str:
        """Raise and clear alarms; return what speaks against leading, empty for nothing.

        `log_time_us` is the time of the last entry. An entry that is ahead of the clocks is taken
        all the same: a backup that refused it would stop the log, and the primary would repeat it
        for ever.

        The own clock speaks against leading if a majority agrees that it is wrong. Entries still
        get the right time, but if one more replica fails, the wrong clock is one of two.
        """
        view = self.seen = self._clock.view()
        wrong = self._lasting(cluster_pb2.ALARM_KIND_CLOCK_DISAGREES, self._disagreement(view))
        self._lasting(cluster_pb2.ALARM_KIND_LOG_TIME_AHEAD, _lead_of_the_log(view, log_time_us))
        is_own = view.is_backed and self._clock.replica in view.wrong_us
        ahead_us = view.ahead_us[self._clock.replica]
        return f"its clock is {_by(ahead_us)} of most replicas" if wrong and is_own else ""

    def _lasting(self, kind: cluster_pb2.AlarmKind.ValueType, text: str) -> bool:
        """Tell an alarm whose reason has lasted, or clear it; return whether it is told."""
        if not text:
            self._since_us.pop(kind, None)
            self._alarms.clear(kind)
            return False
        now_us = self._clock.own.monotonic_us()
        since_us = self._since_us.setdefault(kind, now_us)
        if now_us - since_us < DISAGREE_MS * _US_PER_MS:
            return False
        self._alarms.tell(kind, text)
        return True

    def _disagreement(self, view: ClockView) -> str:
        wrong = view.wrong_us
        if not wrong:
            return ""
        told = ", ".join(f"that of replica {who} is {_by(wrong[who])}" for who in wrong)
        text = f"clocks are more than {CLOCK_BOUND_MS // 1_000} s off: {told}"
        if self._clock.own.step_us:
            text += (
                f"; the clock of replica {self._clock.replica} was set, which is believed once it"
                f" has lasted {CLOCK_STEP_MS // 1_000} s"
            )
        if not view.is_backed:
            text += "; no majority of the clocks agrees, so look at each of them"
        return f"{text}; correct the clocks that are wrong"


def real_time(roster: Roster, alarms: ClockAlarms) -> ClusterTime:
    """Return the time of this process, which knows no other replica's clock yet."""
    own = OwnClock(wall_clock_us, monotonic_us)
    return ClusterTime(ClusterClock(own, roster), alarms)


def _lead_of_the_log(view: ClockView, log_time_us: int) -> str:
    lead_us = log_time_us - view.now_us
    if not view.is_backed or lead_us <= CLOCK_BOUND_MS * _US_PER_MS:
        return ""
    return (
        f"the log is {_by(lead_us)} of the clocks: log time stands still until they reach it, and"
        " so does what waits for a time"
    )


def _by(ahead_us: int) -> str:
    where = "ahead" if ahead_us > 0 else "behind"
    return f"{abs(ahead_us) // _US_PER_S} s {where}"
