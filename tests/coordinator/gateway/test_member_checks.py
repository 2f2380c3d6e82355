"""A primary has the services tell what has been silent, and counts only while it runs."""

from __future__ import annotations

from coordinator.gateway.member_checks import MemberChecks
from coordinator.mux.types import Tenure
from viewstamp.limits import MEMBER_CHECK_INTERVAL_MS

STEP_MS = MEMBER_CHECK_INTERVAL_MS


class CheckedPrimary:
    """Checks by a clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.asked: list[Tenure] = []
        self.checks = MemberChecks(self.asked.append, lambda: self.now_ms)

    def pass_ms(self, milliseconds: int) -> None:
        """Let time pass, and check."""
        self.now_ms += milliseconds
        self.checks.check()


def test_only_a_primary_asks() -> None:
    """Nothing is asked before this replica leads, or after."""
    primary = CheckedPrimary()
    primary.pass_ms(STEP_MS)
    primary.checks.begin()
    primary.pass_ms(STEP_MS)
    primary.checks.stop()
    primary.pass_ms(STEP_MS)
    assert primary.asked == [Tenure(1, STEP_MS)]


def test_every_tenure_counts_from_zero() -> None:
    """A replica that leads again has another number, and has led for no time yet."""
    primary = CheckedPrimary()
    for _ in range(2):
        primary.checks.begin()
        primary.pass_ms(STEP_MS)
        primary.pass_ms(STEP_MS)
        primary.checks.stop()
        primary.pass_ms(10 * STEP_MS)
    assert primary.asked == [Tenure(n, k * STEP_MS) for n in (1, 2) for k in (1, 2)]


def test_a_process_that_stood_still_heard_nobody() -> None:
    """However long a step took, it counts for one interval; a shorter one counts as it is."""
    primary = CheckedPrimary()
    primary.checks.begin()
    primary.pass_ms(100 * STEP_MS)
    primary.pass_ms(10)
    assert primary.asked == [Tenure(1, STEP_MS), Tenure(1, STEP_MS + 10)]
