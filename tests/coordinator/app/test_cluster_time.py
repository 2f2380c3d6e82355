"""Alarms about clocks, and what they say about the replica as a primary.

Method: three voters. The clocks of this one and of the others are set by the test, and every look
is a quarter of a second after the one before.
"""

from __future__ import annotations

import asyncio

import pytest

from coordinator.app.cluster_time import DISAGREE_MS, ClusterTime
from coordinator.base.alarms import Alarms
from coordinator.base.roster import Roster
from coordinator.replica.cluster_clock import CLOCK_STEP_MS, ClusterClock, OwnClock
from coordinator.replica.fitness import LOOK_INTERVAL_MS
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

S = 1_000_000
NOW = 1_800_000_000 * S
HOUR = 3_600 * S
CLOCK = cluster_pb2.ALARM_KIND_CLOCK_DISAGREES
LOG = cluster_pb2.ALARM_KIND_LOG_TIME_AHEAD
SOON, LATE = DISAGREE_MS - LOOK_INTERVAL_MS, DISAGREE_MS
UNFIT = "its clock is 3600 s ahead of most replicas"


class TimeTrial:
    """Replica 0 of `voters`. `ahead` is by replica how far its clock is ahead."""

    def __init__(self, voters: int = 3, ahead: dict[int, int] | None = None) -> None:
        self.true_us = NOW
        self.ahead = {0: 0, **(ahead or {})}
        own = OwnClock(lambda: self.true_us + self.ahead[0], lambda: self.true_us - NOW)
        self.alarms = Alarms(lambda: 0)
        self.roster = Roster.founding(0, voters)
        self.time = ClusterTime(ClusterClock(own, self.roster), self.alarms)
        self.log_ahead = -S
        self.reason = ""

    def looks(self, duration_ms: int) -> dict[int, str]:
        """Look for so long, first now; return what is raised by kind."""
        for after_ms in range(0, duration_ms + 1, LOOK_INTERVAL_MS):
            self.true_us += LOOK_INTERVAL_MS * 1_000 if after_ms else 0
            for replica in sorted(self.ahead.keys() - {0}):
                self.time.heard(replica, self.true_us + self.ahead[replica])
            self.reason = self.time.look(self.true_us + self.log_ahead)
        return {alarm.kind: alarm.message for alarm in self.alarms.all()}


@pytest.mark.parametrize(
    ("ahead", "lasts_ms", "told", "reason"),
    [
        ({1: S, 2: -S}, LATE, (), ""),
        ({0: HOUR, 1: 0, 2: 0}, SOON, (), ""),
        ({0: HOUR, 1: 0, 2: 0}, LATE, ("that of replica 0 is 3600 s ahead",), UNFIT),
        ({1: -HOUR, 2: 0}, LATE, ("that of replica 1 is 3600 s behind",), ""),
        (
            {0: HOUR, 1: 0},
            LATE,
            ("that of replica 0 is 3600 s ahead", "no majority of the clocks agrees"),
            "",
        ),
        (
            {0: HOUR, 1: 0, 2: 2 * HOUR},
            LATE,
            ("replica 1 is 3600 s behind", "replica 2 is 3600 s ahead", "no majority"),
            "",
        ),
    ],
)
def test_clocks_that_are_off_are_named(
    ahead: dict[int, int], lasts_ms: int, told: tuple[str, ...], reason: str
) -> None:
    """After some seconds an alarm names the clocks; the own one speaks against leading only if a
    majority agrees about it."""
    trial = TimeTrial(ahead=ahead)
    raised = trial.looks(lasts_ms)
    assert [part in raised.get(CLOCK, "") for part in told] == [True] * len(told)
    assert bool(told) is (CLOCK in raised)
    assert trial.reason == reason


def test_an_alarm_ends_with_its_reason() -> None:
    """A clock that is right again ends the alarm at once, and a later error counts anew."""
    trial = TimeTrial(ahead={1: HOUR, 2: 0})
    assert CLOCK in trial.looks(LATE)
    trial.ahead[1] = 0
    assert trial.looks(0) == {}
    trial.ahead[1] = HOUR
    assert trial.looks(SOON) == {}


def test_a_step_of_a_lone_clock_is_told_until_it_is_believed() -> None:
    """A lone replica tells that its clock was set, and for how long it does not believe that."""
    trial = TimeTrial(voters=1)
    assert trial.looks(LATE) == {}
    trial.ahead[0] = HOUR
    raised = trial.looks(LATE)
    assert f"believed once it has lasted {CLOCK_STEP_MS // 1_000} s" in raised[CLOCK]
    assert trial.time.now_us() == trial.true_us
    assert trial.looks(CLOCK_STEP_MS) == {}
    assert trial.time.now_us() == trial.true_us + HOUR


def test_a_log_that_is_ahead_is_told() -> None:
    """An entry of the future raises an alarm that says how far; the alarm ends with its reason."""
    trial = TimeTrial(ahead={1: 0, 2: 0})
    trial.log_ahead = HOUR
    assert "the log is 3600 s ahead of the clocks" in trial.looks(LATE)[LOG]
    assert trial.reason == ""
    trial.log_ahead = S
    assert trial.looks(0) == {}


def test_one_who_is_alone_says_nothing_about_the_log() -> None:
    """A replica that hears nobody does not know whether the log is ahead or its clock behind."""
    trial = TimeTrial()
    trial.log_ahead = HOUR
    assert trial.looks(LATE) == {}


async def test_the_first_entry_waits_for_other_clocks() -> None:
    """What waits for a time goes on as soon as one of the two others was heard."""
    trial = TimeTrial()
    waiting = asyncio.create_task(trial.time.known())
    await asyncio.sleep(0)
    assert not waiting.done()
    trial.time.heard(2, NOW)
    await waiting
    await TimeTrial(voters=1).time.known()


@pytest.mark.parametrize(
    ("members", "told"),
    [(((0, 1, 2), ()), True), (((0, 2), ()), False), (((0, 2), (1,)), False), (((0,), ()), False)],
)
def test_the_clock_of_a_removed_replica_is_told_no_more(
    members: tuple[tuple[int, ...], tuple[int, ...]], told: bool
) -> None:
    """The alarm about a clock ends with the vote of its replica, though it goes on reporting."""
    trial = TimeTrial(ahead={1: HOUR, 2: 0})
    assert CLOCK in trial.looks(LATE)
    trial.roster.enter(*members)
    assert (CLOCK in trial.looks(0)) is told


@pytest.mark.parametrize(
    ("ahead_us", "members", "reason"),
    [(0, ((1, 2), ()), ""), (0, ((1, 2), (0,)), ""), (HOUR, ((1, 2), ()), UNFIT)],
)
def test_a_replica_without_a_vote_looks_at_clocks(
    ahead_us: int, members: tuple[tuple[int, ...], tuple[int, ...]], reason: str
) -> None:
    """A replica that was removed or follows has a clock of its own all the same."""
    trial = TimeTrial(ahead={0: ahead_us, 1: 0, 2: 0})
    trial.roster.enter(*members)
    trial.looks(LATE)
    assert trial.reason == reason
