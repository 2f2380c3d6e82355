"""The time for entries follows a majority of clocks, and no single one.

Method: clocks that the test sets, in seconds, and the time that one replica makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from coordinator.base.roster import Roster
from coordinator.replica.cluster_clock import (
    CLOCK_BOUND_MS,
    CLOCK_SAMPLE_MS,
    CLOCK_STEP_MS,
    CLOCK_US_MAX,
    RECOUNT_MS,
    ClusterClock,
    OwnClock,
)

S = 1_000_000
NOW = 1_800_000_000 * S
YEARS = 10 * 365 * 24 * 3_600 * S
STEP = CLOCK_STEP_MS * 1_000
BOUND = CLOCK_BOUND_MS * 1_000


class ClockTrial:
    """One replica of several: its two clocks, and what it hears. Times are microseconds."""

    def __init__(
        self, voters: int = 3, replica: int = 0, ahead_us: int = 0, standbys: int = 0
    ) -> None:
        self.true_us = NOW
        self.ahead_us = ahead_us
        self.own = OwnClock(lambda: self.true_us + self.ahead_us, lambda: self.true_us - NOW)
        self.roster = Roster.founding(replica, voters, standbys)
        self.clock = ClusterClock(self.own, self.roster)

    def hears(self, ahead_us: Mapping[int, int]) -> None:
        """Hear from replicas whose clocks are so far ahead."""
        for replica, by_us in ahead_us.items():
            self.clock.heard(replica, self.true_us + by_us)

    def passes(self, duration_us: int) -> None:
        """Let time pass, with a look every 100 ms."""
        end_us = self.true_us + duration_us
        while self.true_us < end_us:
            self.true_us = min(end_us, self.true_us + RECOUNT_MS * 1_000)
            self.clock.now_us()

    @property
    def error_us(self) -> int:
        """How far the time for entries is ahead of the true time."""
        return self.clock.stamp_us() - self.true_us


@pytest.mark.parametrize(
    ("voters", "own", "others", "error_us"),
    [
        (1, 0, {}, 0),
        (2, 0, {1: YEARS}, 0),
        (2, YEARS, {1: 0}, 0),
        (2, 0, {1: -S}, -S),
        (3, 0, {1: S, 2: 2 * S}, S),
        (3, YEARS, {1: 0, 2: S}, S),
        (3, -YEARS, {1: 0, 2: S}, 0),
        (3, 0, {1: YEARS, 2: S}, S),
        (3, 0, {1: -YEARS, 2: S}, 0),
        (3, YEARS, {1: 0}, 0),
        (3, 0, {1: YEARS}, 0),
        (4, YEARS, {1: 0, 2: S, 3: 2 * S}, S),
        (4, YEARS, {1: 0}, 0),
        (5, YEARS, {1: YEARS, 2: 0, 3: S, 4: 2 * S}, 2 * S),
        (5, YEARS, {1: YEARS, 2: 0}, 0),
        (5, -YEARS, {1: -YEARS, 2: 0, 3: S, 4: 2 * S}, 0),
        (6, YEARS, {1: YEARS, 2: 0, 3: S, 4: S, 5: 2 * S}, S),
    ],
)
def test_a_minority_of_clocks_moves_nothing(
    voters: int, own: int, others: Mapping[int, int], error_us: int
) -> None:
    """The time is what a majority of clocks has reached; where fewer are known, what all have."""
    trial = ClockTrial(voters, ahead_us=own)
    trial.hears(others)
    assert trial.error_us == error_us


@pytest.mark.parametrize(
    ("voters", "heard", "is_known"),
    [
        (1, (), True),
        (2, (), False),
        (2, (1,), True),
        (3, (2,), True),
        (3, (0, 7), False),
        (4, (3,), True),
        (5, (1,), False),
        (5, (1, 4), True),
    ],
)
def test_log_time_stands_until_enough_was_heard(
    voters: int, heard: tuple[int, ...], is_known: bool
) -> None:
    """With fewer voters than a commit needs an entry gets no time, though a guess is known."""
    trial = ClockTrial(voters, ahead_us=YEARS)
    trial.hears(dict.fromkeys(heard, 0))
    assert (trial.clock.stamp_us() > 0) is is_known
    assert trial.clock.is_known() is is_known
    assert trial.clock.now_us() > 0


def test_builds_that_tell_no_clock_stop_nothing() -> None:
    """Voters that tell no clock count as heard; of them and one's own clock, one's own counts."""
    trial = ClockTrial(ahead_us=S)
    for replica in (1, 2):
        trial.clock.heard(replica, 0)
    assert trial.error_us == S
    trial.hears({2: 0})
    assert trial.error_us == 0


def test_a_standby_has_no_say() -> None:
    """The clock of a standby counts neither for itself nor for others."""
    standby = ClockTrial(replica=3, ahead_us=YEARS, standbys=1)
    standby.hears({0: 0, 1: S, 2: 2 * S})
    assert standby.error_us == S
    voter = ClockTrial(standbys=1)
    voter.hears({3: YEARS, 4: YEARS})
    assert voter.clock.stamp_us() == 0


def test_a_sample_goes_on_and_expires() -> None:
    """A peer that fell silent counts for a minute, as if its clock went on, and then no more."""
    trial = ClockTrial(ahead_us=S)
    trial.hears({1: 0, 2: 0})
    trial.passes(CLOCK_SAMPLE_MS * 1_000)
    assert trial.error_us == 0
    trial.passes(S)
    assert trial.clock.stamp_us() == 0
    assert trial.clock.now_us() == trial.true_us + S


def test_a_clock_beyond_all_years_is_a_number_that_entries_can_hold() -> None:
    """Peers that tell the largest number, and own clocks beyond, are taken as the limits."""
    assert ClockTrial(1, ahead_us=-2 * NOW).clock.stamp_us() == 1
    assert ClockTrial(1, ahead_us=CLOCK_US_MAX).clock.stamp_us() == CLOCK_US_MAX
    trial = ClockTrial()
    for replica in (1, 2):
        trial.clock.heard(replica, 2**64 - 1)
    assert trial.clock.stamp_us() == CLOCK_US_MAX


@pytest.mark.parametrize("step_us", [YEARS, -YEARS, BOUND + S])
def test_a_step_of_a_lone_clock_is_believed_once_it_has_lasted(step_us: int) -> None:
    """While it runs, a lone replica doubts a large step for a minute, and then follows it."""
    trial = ClockTrial(1)
    trial.ahead_us = step_us
    trial.passes(STEP)
    assert trial.error_us == 0
    assert trial.own.step_us == step_us
    trial.passes(S)
    assert trial.error_us == step_us
    assert trial.own.step_us == 0


def test_a_step_that_is_corrected_leaves_no_trace() -> None:
    """A clock that returns, or goes to yet another time, is not believed for its earlier step."""
    trial = ClockTrial(1)
    for step_us in (YEARS, 0, YEARS, 2 * YEARS):
        trial.ahead_us = step_us
        trial.passes(STEP - S)
        assert trial.error_us == 0


def test_small_steps_are_followed_at_once() -> None:
    """What NTP corrects within the bound, in either direction, is believed at once."""
    trial = ClockTrial(1)
    for ahead_us in (BOUND, 0, -BOUND, 0):
        trial.ahead_us = ahead_us
        trial.passes(S)
        assert trial.error_us == ahead_us


def test_a_view_says_who_is_off() -> None:
    """Clocks beyond the bound are named, the own one as it is; a majority says whether it knows."""
    trial = ClockTrial()
    trial.hears({1: YEARS, 2: 0})
    assert (trial.clock.view().wrong_us, trial.clock.view().is_backed) == ({1: YEARS}, True)
    trial.ahead_us = -YEARS  # one of the two that agreed, as far as others were told
    assert trial.clock.view().wrong_us == {0: -YEARS, 1: YEARS}
    alone = ClockTrial(ahead_us=YEARS)
    alone.hears({1: 0})
    assert (alone.clock.view().wrong_us, alone.clock.view().is_backed) == ({0: YEARS}, False)


@pytest.mark.parametrize(
    ("founding", "before", "members", "after", "error_us"),
    [
        # A removed replica's clock is forgotten, and not heard again.
        ((3, 0), {1: S, 2: 2 * S}, ((0, 1), ()), {}, 0),
        ((3, 0), {1: -S, 2: -2 * S}, ((0, 1), ()), {}, -S),
        ((3, 0), {1: -2 * S, 2: -S}, ((0, 2), ()), {1: -YEARS}, -S),
        ((3, 0), {1: -S, 2: -S}, ((0,), ()), {1: -S, 2: -S}, 0),
        ((3, 0), {2: 0}, ((0, 1), ()), {2: 0}, None),
        # A new voter counts once it was heard, and not before.
        ((1, 0), {}, ((0, 1), ()), {}, None),
        ((1, 0), {1: -S}, ((0, 1), ()), {}, None),
        ((1, 0), {}, ((0, 1), ()), {1: -S}, -S),
        ((2, 0), {1: -S}, ((0, 1, 2), ()), {2: 0}, 0),
        ((2, 0), {1: -S}, ((0, 1, 2), ()), {}, -S),
        # A standby has no say; as a voter it has one at once.
        ((1, 0), {}, ((0,), (1,)), {1: -S}, 0),
        ((2, 1), {1: -2 * S, 2: -S}, ((0, 1, 2), ()), {}, -S),
        ((2, 1), {1: -2 * S, 2: -S}, ((0, 1), (2,)), {}, -2 * S),
        # The majority is another one: more voters have to be heard, or fewer.
        ((3, 0), {1: 0}, ((0, 1, 2, 3, 4), ()), {}, None),
        ((3, 0), {1: 0}, ((0, 1, 2, 3, 4), ()), {4: S}, 0),
        ((5, 0), {1: S}, ((0, 1, 2), ()), {}, 0),
        # This replica was removed: its clock has no say.
        ((3, 0), {1: S, 2: 2 * S}, ((1, 2), ()), {}, S),
        ((3, 0), {1: S, 2: 2 * S}, ((2,), ()), {}, 2 * S),
        ((3, 0), {1: S}, ((1, 2), ()), {}, None),
    ],
)
def test_clocks_of_the_voters_of_the_moment_count(
    founding: tuple[int, int],
    before: Mapping[int, int],
    members: tuple[tuple[int, ...], tuple[int, ...]],
    after: Mapping[int, int],
    error_us: int | None,
) -> None:
    """The time follows the voters of the epoch; without enough of them there is none (None)."""
    voters, standbys = founding
    trial = ClockTrial(voters, standbys=standbys)
    trial.hears(before)
    assert trial.clock.now_us() > 0  # which is kept for a moment
    trial.roster.enter(*members)
    trial.hears(after)
    assert trial.clock.is_known() is (error_us is not None)
    assert (trial.error_us if trial.clock.is_known() else None) == error_us


@pytest.mark.parametrize("members", [((1, 2), ()), ((1, 2), (0,)), ((1,), ())])
def test_a_removed_replica_sees_its_own_clock(
    members: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    """Who has no vote any more sees how far its clock is off, among those of the voters."""
    trial = ClockTrial(ahead_us=YEARS)
    trial.hears({1: 0, 2: 0})
    trial.roster.enter(*members)
    view = trial.clock.view()
    assert view.ahead_us == {0: YEARS, **dict.fromkeys(members[0], 0)}
    assert (view.is_backed, view.wrong_us) == (True, {0: YEARS})
