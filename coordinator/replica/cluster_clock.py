"""The time that a primary gives to entries: what the clocks of most voters have reached.

Log time never goes back, so one entry of the year 2036 would stop it for ten years. No single clock
may therefore decide it. Each replica tells the others its clock in its reports, twice a second. A
time counts once a majority of all voters' clocks has reached it, or, where fewer clocks are known,
all of them. With three known clocks this is the median, so a jump of one of them moves nothing,
forwards or backwards. With two it is the earlier one. So while at most a minority of the voters'
clocks is ahead, the time is never ahead of all the others: at least one of them has reached it.

The idea is TigerBeetle's cluster clock (`src/vsr/clock.zig`, `src/vsr/marzullo.zig`). It intersects
the intervals in which the peers' clocks can be, by Marzullo's algorithm, over a quorum. Here each
peer has one number without an interval. A message is late, so a peer's clock looks behind by the
time that its report took: milliseconds, or some seconds where the report waited for a network or a
process, until the next report. It never looks ahead. Log time needs no better.

Pure: both clocks are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.base.roster import Roster
from coordinator.vsr.quorum import QUORUMS

_US_PER_MS: Final = 1_000
# Clocks that are further apart than this are wrong, since NTP keeps them within tenths of a second.
# A report that waited for a paused process or a cut link makes a clock look some seconds behind.
CLOCK_BOUND_MS: Final = 10_000
# A peer's clock is extrapolated for so long, which costs some milliseconds of drift.
CLOCK_SAMPLE_MS: Final = 60_000
# The time is asked for with each request, and counted from all clocks this often.
RECOUNT_MS: Final = 100
# A step of the own wall clock is believed once it has lasted so long. A short one leaves no trace.
CLOCK_STEP_MS: Final = 60_000
# Whatever a clock says beyond is taken for this, which fits the 64 bits of a timestamp.
CLOCK_US_MAX: Final = 2**62
_BOUND_US: Final = CLOCK_BOUND_MS * _US_PER_MS


class OwnClock:
    """The wall clock of this machine, whose steps are not believed at once.

    While the process runs, its monotonic clock tells how far the wall clock should have come. At
    the start the wall clock is believed.
    """

    def __init__(self, wall_us: Callable[[], int], monotonic_us: Callable[[], int]) -> None:
        self.monotonic_us = monotonic_us
        self._wall_us = wall_us
        self._offset_us = wall_us() - monotonic_us()
        # A step: the offset that it led to, and when it was seen.
        self._step: tuple[int, int] | None = None

    def now_us(self) -> int:
        """Return microseconds since 1970, as far as this clock is believed."""
        monotonic_us = self.monotonic_us()
        self._look(self._wall_us() - monotonic_us, monotonic_us)
        return _bounded(self._offset_us + monotonic_us)

    @property
    def step_us(self) -> int:
        """How far the wall clock was set forwards by a step that is not believed; 0 for none."""
        self.now_us()
        return 0 if self._step is None else self._step[0] - self._offset_us

    def _look(self, offset_us: int, monotonic_us: int) -> None:
        if abs(offset_us - self._offset_us) <= _BOUND_US:
            self._offset_us, self._step = offset_us, None
        elif self._step is None or abs(offset_us - self._step[0]) > _BOUND_US:
            self._step = offset_us, monotonic_us
        elif monotonic_us - self._step[1] >= CLOCK_STEP_MS * _US_PER_MS:
            self._offset_us, self._step = offset_us, None


@dataclass(frozen=True, slots=True)
class ClockView:
    """How the clocks stand. `ahead_us` says by replica how far its clock is ahead of `now_us`.

    `is_backed`: a majority of the voters' clocks is within the bound of `now_us`.
    """

    now_us: int
    ahead_us: Mapping[int, int]
    is_backed: bool

    @property
    def wrong_us(self) -> dict[int, int]:
        """How far each clock is ahead that is further away than the bound."""
        return {
            replica: ahead_us
            for replica, ahead_us in sorted(self.ahead_us.items())
            if abs(ahead_us) > _BOUND_US
        }


class ClusterClock:
    """The clocks of the voters, as this replica knows them.

    It hears those of standbys, too: one that gets a vote counts at once.
    """

    def __init__(self, own: OwnClock, roster: Roster) -> None:
        self.own = own
        self.replica = roster.replica_id
        self._roster = roster
        # By replica: its clock, 0 if it told none, and when that was, on the own monotonic clock.
        self._heard: dict[int, tuple[int, int]] = {}
        # Between two counts each clock goes on as the monotonic one does, and so does their time.
        self._counted_us: int | None = None
        self._offset_us = 0
        roster.follow(self._forget_removed)

    def heard(self, replica: int, clock_us: int) -> None:
        """Take the clock of another replica from its report; 0 if its build tells none."""
        if replica in self._roster.others:
            self._heard[replica] = min(clock_us, CLOCK_US_MAX), self.own.monotonic_us()
            if replica in self._roster.voters:
                self._counted_us = None

    def _forget_removed(self) -> None:
        others = self._roster.others
        self._heard = {replica: each for replica, each in self._heard.items() if replica in others}
        self._counted_us = None

    def is_known(self) -> bool:
        """Whether as many voters were heard as a commit needs, this one included."""
        voters = self._roster.voters
        quorum = QUORUMS[len(voters)].replication
        return len(self._fresh()) + (self.replica in voters) >= quorum

    def now_us(self) -> int:
        """Return the time in microseconds since 1970 by all clocks that are known here."""
        monotonic_us = self.own.monotonic_us()
        counted_us = self._counted_us
        if counted_us is None or monotonic_us - counted_us >= RECOUNT_MS * _US_PER_MS:
            self._count(monotonic_us)
        return self._offset_us + monotonic_us

    def stamp_us(self) -> int:
        """Return the time for an entry; 0 before enough was heard, which lets log time stand still.

        A primary that has just started, or is cut off, could stamp with its own wrong clock. It
        could not commit that entry, but a later primary may find the entry and commit it.
        """
        return self.now_us() if self.is_known() else 0

    def view(self) -> ClockView:
        """Return how all known clocks stand; the own one as it is, believed or not."""
        self._counted_us = None
        now_us = self.now_us()
        clocks = {replica: clock_us - now_us for replica, clock_us in self._clocks().items()}
        near = sum(abs(ahead_us) <= _BOUND_US for ahead_us in clocks.values())
        clocks[self.replica] = self.own.now_us() + self.own.step_us - now_us
        return ClockView(now_us, clocks, near >= self._roster.majority)

    def _count(self, monotonic_us: int) -> None:
        clocks = sorted(self._clocks().values()) or [self.own.now_us()]
        self._counted_us = monotonic_us
        self._offset_us = clocks[max(0, len(clocks) - self._roster.majority)] - monotonic_us

    def _clocks(self) -> dict[int, int]:
        """The known clocks of voters now, by replica."""
        monotonic_us = self.own.monotonic_us()
        clocks = {
            replica: clock_us + monotonic_us - heard_us
            for replica, (clock_us, heard_us) in self._fresh().items()
            if clock_us
        }
        if self.replica in self._roster.voters:
            clocks[self.replica] = self.own.now_us()
        return clocks

    def _fresh(self) -> dict[int, tuple[int, int]]:
        """What voters told lately, by replica."""
        oldest_us = self.own.monotonic_us() - CLOCK_SAMPLE_MS * _US_PER_MS
        voters = self._roster.voters
        return {
            replica: (clock_us, heard_us)
            for replica, (clock_us, heard_us) in self._heard.items()
            if heard_us >= oldest_us and replica in voters
        }


def _bounded(clock_us: int) -> int:
    """Return a clock as reports and entries can hold it; 0 would say that it is unknown."""
    return min(max(1, clock_us), CLOCK_US_MAX)
