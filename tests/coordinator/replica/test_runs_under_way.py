"""Prepares of many runs follow one another, so no new caller waits behind a row of them."""

from __future__ import annotations

from collections.abc import Callable

from coordinator import vsr
from coordinator.mux.types import RequestReply
from coordinator.replica.intake import Intake
from coordinator.replica.ports import JournalRoom
from tests.coordinator.replica import prepare_runs
from viewstamp import limits
from viewstamp.errors import Refusal

ALTERNATING = ("UpdatePermissions", "CreateStream")


class Log:
    """A core and a replica in one: takes every batch in, and applies on demand."""

    feature_level = limits.FEATURE_LEVEL_MAX

    def __init__(self) -> None:
        """Begin with an empty log."""
        self.intake = Intake(self, self, self, self, lambda: JournalRoom.FREE)
        self.ops = 0
        self.applied = 0
        self.runs: list[int] = []

    @property
    def unapplied_count(self) -> int:
        """Return how many entries are under way."""
        return self.ops - self.applied

    def batch_refusal(self) -> vsr.RefusalReason | None:
        """Admit everything."""
        return None

    def step(self, event: vsr.Event) -> None:
        """Take a batch in."""
        self.ops += 1
        self.intake.admitted(self.ops)
        batch = self.intake.batch_of(self.ops)
        assert batch is not None
        self.runs.append(prepare_runs.runs_of(batch))

    def guard(self, action: Callable[[], None]) -> None:
        """Run an action."""
        action()

    def refusal_of(self, reason: vsr.RefusalReason) -> Refusal:
        """Never called: every batch is admitted."""
        raise AssertionError(reason)

    def apply(self) -> None:
        """Apply the oldest entry, give each waiter a reply, and go on."""
        self.applied += 1
        batch = self.intake.batch_of(self.applied)
        assert batch is not None
        self.intake.applied(self.applied, [RequestReply(1, 1, 1, 1, 1, ())] * len(batch.requests))
        self.intake.pump()


def test_no_prepare_of_many_runs_is_behind_another() -> None:
    """While the runs under way reach a prepare's limit, the next prepare waits, however full."""
    log = Log()
    for _ in range(4):
        log.intake.batcher.add(prepare_runs.request(ALTERNATING * (limits.REQUEST_RUNS_MAX // 2)))
    log.intake.pump()
    assert log.runs == [limits.PREPARE_RUNS_MAX]
    for done in range(2, 5):
        log.apply()
        assert log.runs == [limits.PREPARE_RUNS_MAX] * done
    log.apply()
    assert not len(log.intake.batcher) and not log.unapplied_count
    assert_few_runs_go_together(log)


def test_prepares_of_few_runs_are_under_way_together() -> None:
    """Full prepares of one run each still fill the pipeline together."""
    assert_few_runs_go_together(Log())


def assert_few_runs_go_together(log: Log) -> None:
    """Assert that full prepares of one run each do not wait for one another."""
    for _ in range(4):
        log.intake.batcher.add(prepare_runs.request(["CreateStream"], limits.REQUEST_COMMANDS_MAX))
    log.intake.pump()
    assert log.runs[-4:] == [1] * 4
