"""The shipped programs under clocks that jump: log time, logins, alarms, and who leads.

Method: three replicas with their services, and clients of the real library. One clock is wrong,
also while every replica is asked for its state in the end, which takes a login at each.
"""

from __future__ import annotations

import pytest

from coordinator.replica import cluster_clock
from coordinator.replica.cluster_clock import ClusterClock
from testkit.checkers.log_checkers import OneHistory
from testkit.world import observer, workload
from testkit.world.options import WorldOptions
from testkit.world.replica import WorldReplica
from testkit.world.run import WorldRun
from testkit.world.schedule import NS_PER_S

YEARS_S = 315_360_000
HOURS_S = 7_200
WRONG = "ahead of true time"
SEED = 2
# No caller gives up while the primary hands over.
PATIENCE_S = 30.0


class JumpTrial:
    """A run in which the clock of the first primary jumps, and perhaps its process starts again."""

    def __init__(self, ahead_s: int, *, is_killed: bool) -> None:
        options = WorldOptions(clients=2, callers=1, seconds=7, faults=())
        self.run = WorldRun(SEED, options)
        self.jumped: WorldReplica | None = None
        self._ahead_s = ahead_s
        self._is_killed = is_killed
        self._jump_soon()

    def _jump_soon(self) -> None:
        self.run.world.schedule.after(NS_PER_S, self._jump)

    def _jump(self) -> None:
        self.jumped = self.run.primary
        if self.jumped is None or self.jumped.process is None:
            self._jump_soon()
            return
        self.jumped.machine.jump_ns = self._ahead_s * NS_PER_S
        if self._is_killed:
            self.jumped.process.kill()


@pytest.mark.long
@pytest.mark.parametrize(
    ("ahead_s", "is_killed"), [(YEARS_S, False), (YEARS_S, True), (-HOURS_S, False)]
)
def test_a_wrong_clock_moves_nothing(
    ahead_s: int, *, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log time goes on, all clients are served and logged in, and a right replica leads."""
    monkeypatch.setattr(workload, "PATIENCES_S", (PATIENCE_S,))
    trial = JumpTrial(ahead_s, is_killed=is_killed)
    outcome = trial.run.run()
    assert outcome.violations == []
    assert outcome.unknown == 0 or is_killed
    assert trial.jumped is not None
    assert not trial.jumped.is_primary
    assert outcome.marks["error alarm raised"] > 0
    assert trial.run.log_time_us > trial.run.world.true_us - 5_000_000


@pytest.mark.long
def test_a_primary_that_stamps_with_its_own_clock_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of log time complains if entries get the time of the primary's wall clock."""
    # The checker of single entries would end the run before its judges look.
    monkeypatch.setattr(observer, "CHECKERS", (OneHistory,))
    monkeypatch.setattr(cluster_clock, "CLOCK_STEP_MS", 0)
    monkeypatch.setattr(ClusterClock, "stamp_us", lambda self: self.own.now_us())
    outcome = JumpTrial(YEARS_S, is_killed=False).run.run()
    assert WRONG in " ".join(outcome.violations)


def test_a_log_of_the_future_is_told_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backups take entries of a primary that is an hour ahead, and each replica raises an alarm."""
    monkeypatch.setattr(observer, "CHECKERS", (OneHistory,))
    right = ClusterClock.stamp_us
    monkeypatch.setattr(ClusterClock, "stamp_us", lambda self: right(self) + 3_600_000_000)
    outcome = WorldRun(SEED, WorldOptions(clients=2, callers=1, seconds=4, faults=())).run()
    assert [WRONG in violation for violation in outcome.violations] == [True]
    assert outcome.marks["error alarm raised"] == 3
    assert outcome.answered > 0
