"""When a replica should not lead: a table of what it observes over time."""

from __future__ import annotations

import pytest

from coordinator import vsr
from coordinator.replica.fitness import (
    LOOK_INTERVAL_MS,
    Fitness,
    FitnessPorts,
    Seen,
    ServiceState,
)
from viewstamp.limits import APPLY_STALL_MS, DISK_STALL_MS

UP, BACK, DOWN = ServiceState.UP, ServiceState.COMING_BACK, ServiceState.DOWN
SOON, LATE = APPLY_STALL_MS - LOOK_INTERVAL_MS, APPLY_STALL_MS
DISK_SOON, DISK_LATE = DISK_STALL_MS - LOOK_INTERVAL_MS, DISK_STALL_MS
HANGS = "the disk does not finish a write"
FULL = "the disk of its journal is full"
AWAY = "service streams does not answer"
STUCK = "op 8 does not get through its stages"


def seen(
    committed: int = 7,
    applied: int = 7,
    streams: ServiceState = UP,
    *,
    is_full: bool = False,
    writing: int | None = None,
    has_fit_peer: bool = True,
    is_alone: bool = False,
) -> Seen:
    """Return the result of a look. `writing` is the number of the write under way."""
    services = {"users": UP, "streams": streams}
    is_writing = writing is not None
    return Seen(
        committed,
        applied,
        services,
        is_full,
        is_writing,
        writing or 0,
        has_fit_peer,
        is_alone=is_alone,
    )


class FitnessTrial:
    """A replica under observation, and what it reports."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.seen = seen()
        self.told: list[vsr.Event] = []
        self.said: list[str] = []
        self.stalled: list[str] = []
        self.fitness = Fitness(
            FitnessPorts(
                lambda: self.seen,
                self.told.append,
                self.said.append,
                self.stalled.append,
                lambda: self.now_ms,
            )
        )

    def sees(self, found: Seen, lasts_ms: int = 0) -> None:
        """Observe the replica in this state for so long, again and again."""
        self.seen = found
        self.fitness.look()
        for _ in range(0, lasts_ms, LOOK_INTERVAL_MS):
            self.now_ms += LOOK_INTERVAL_MS
            self.fitness.look()


@pytest.mark.parametrize(
    ("looks", "reason"),
    [
        ([(seen(), 0)], ""),
        ([(seen(is_full=True), 0)], FULL),
        ([(seen(is_full=True), 0), (seen(), 0)], ""),
        ([(seen(streams=DOWN), SOON)], ""),
        ([(seen(streams=DOWN), LATE)], AWAY),
        ([(seen(streams=DOWN, is_full=True), LATE)], AWAY),
        ([(seen(streams=DOWN), LATE), (seen(streams=BACK), 0)], ""),
        ([(seen(streams=DOWN), SOON), (seen(), 0), (seen(streams=DOWN), SOON)], ""),
        ([(seen(streams=DOWN), SOON), (seen(), 0), (seen(streams=DOWN), LATE)], AWAY),
        ([(seen(streams=BACK), 10 * LATE)], ""),
        ([(seen(8), SOON)], ""),
        ([(seen(8), LATE)], STUCK),
        ([(seen(8), SOON), (seen(9, 8), SOON)], ""),
        ([(seen(8, streams=BACK), 10 * LATE)], ""),
        ([(seen(8, streams=BACK), LATE), (seen(8), SOON)], ""),
        ([(seen(8, streams=BACK), LATE), (seen(8), LATE)], STUCK),
        ([(seen(8), LATE), (seen(9, 8), 0)], ""),
        ([(seen(), 10 * LATE), (seen(8), SOON)], ""),
        ([(seen(writing=3), DISK_SOON)], ""),
        ([(seen(writing=3), DISK_LATE)], HANGS),
        ([(seen(writing=3), DISK_LATE), (seen(writing=4), 0)], ""),
        ([(seen(writing=3), DISK_SOON), (seen(writing=4), DISK_SOON)], ""),
        ([(seen(), LATE), (seen(writing=0), DISK_SOON)], ""),
    ],
)
def test_what_speaks_against_it(looks: list[tuple[Seen, int]], reason: str) -> None:
    """A full disk counts at once; stages and writes that stand still count later."""
    trial = FitnessTrial()
    for found, lasts_ms in looks:
        trial.sees(found, lasts_ms)
    assert trial.fitness.reason == reason


def test_a_pause_of_the_process_is_no_stall() -> None:
    """A process that was itself stopped for long does not call its services away for long."""
    trial = FitnessTrial()
    trial.sees(seen(8, streams=DOWN))
    trial.now_ms += 100 * LATE
    trial.sees(seen(8, streams=DOWN))
    assert trial.fitness.reason == ""


def test_the_core_is_told_of_changes_alone() -> None:
    """The core is told of each change once, and of nothing without a fit peer."""
    trial = FitnessTrial()
    for found in (
        *(seen(), seen(is_full=True, has_fit_peer=False), seen(is_full=True)),
        *(seen(is_full=True), seen(is_full=True, has_fit_peer=False), seen(is_full=True), seen()),
    ):
        trial.sees(found)
    assert trial.told == [vsr.Unfit(FULL), vsr.Fit(), vsr.Unfit(FULL), vsr.Fit()]
    assert trial.said == [FULL, ""]


def test_nothing_speaks_against_one_that_leads_in_any_case() -> None:
    """A reason begins when a second voter comes, and ends when this one is alone again; whether
    stages stand still is told all the same."""
    trial = FitnessTrial()
    alone = seen(8, has_fit_peer=False, is_alone=True)
    trial.sees(alone, LATE)
    assert (trial.fitness.reason, trial.said, trial.stalled) == ("", [], [STUCK])
    trial.sees(seen(8))
    assert (trial.fitness.reason, trial.said, trial.told) == (STUCK, [STUCK], [vsr.Unfit(STUCK)])
    trial.sees(alone)
    assert (trial.fitness.reason, trial.said) == ("", [STUCK, ""])
    assert trial.told[-1] == vsr.Fit()


def test_stages_that_stand_still_are_told_of_once() -> None:
    """Stages that stand still are reported once; a full disk is not, since it still serves
    reads."""
    trial = FitnessTrial()
    trial.sees(seen(8, is_full=True), LATE)
    trial.sees(seen(8, is_full=True), LATE)
    trial.sees(seen(8, 8, is_full=True))
    assert trial.stalled == [STUCK, ""]


def test_a_replica_that_leaves_is_never_fit_again() -> None:
    """Neither a view change without a fit peer nor the end of a reason lets it lead once more."""
    trial = FitnessTrial()
    trial.sees(seen(is_full=True))
    trial.fitness.leave("it was told to stop")

    trial.sees(seen(is_full=True, has_fit_peer=False))
    trial.sees(seen())

    assert [type(event) for event in trial.told] == [vsr.Unfit, vsr.Unfit]
    assert trial.fitness.reason == FULL


def test_others_hear_that_a_replica_leaves() -> None:
    """The reason to leave is what speaks against its leading, for as long as it is there."""
    trial = FitnessTrial()
    trial.fitness.leave("it was told to stop")

    trial.sees(seen())

    assert trial.fitness.reason == "it was told to stop"
