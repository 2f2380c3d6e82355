"""A process that ends between two steps of its disk while it makes, adopts or fetches snapshots."""

from __future__ import annotations

from collections import Counter

import pytest

from testkit.world.branches import STEP_TORN, TRANSFER_BEGUN, TRANSFER_FINISHED
from testkit.world.stories import WorldStory

# The work that an end interrupts: a snapshot with its adoption, and a state transfer.
STORIES = {
    "snapshot": """
        snapshots 30
        write 20
        {how} r2 after {step} steps of its disk
        write 60
        run 3000
        expect snapshots on r0
        settle
        """,
    "state transfer": """
        snapshots 30
        write 10
        crash r2
        write 200
        run 1000
        {how} r2 after {step} steps of its state transfer
        boot r2
        run 3000
        write 5
        settle
        """,
}
# Whole snapshots have several hundred steps; `make test-exhaustive` takes each step, both ways.
STRIDES = {"crash": 17, "power": 13}
SOME = [("snapshot", "crash"), ("state transfer", "power")]
STEPS_MAX = 1_000
PLACES_MIN = 5


def end_at_steps(job: str, how: str, stride: int) -> int:
    """Tell the story with an end at every so-many-th step of its job; return how many there are."""
    for place, step in enumerate(range(0, STEPS_MAX, stride)):
        story = WorldStory(STORIES[job].format(how=how, step=step))
        outcome = story.play()
        assert outcome.is_good, f"{how} at step {step}: {outcome.violations}"
        if outcome.branches[STEP_TORN] == 0:
            check_job(job, outcome.branches)
            return place
    raise AssertionError(f"{job} has more than {STEPS_MAX} steps")


def check_job(job: str, branches: Counter[str]) -> None:
    """Check that what should have been interrupted was the job."""
    if job == "state transfer":
        assert branches[TRANSFER_BEGUN] == branches[TRANSFER_FINISHED] == 1


@pytest.mark.long
@pytest.mark.parametrize(("job", "how"), SOME)
def test_an_end_between_some_steps_of_a_disk(job: str, how: str) -> None:
    """Wherever the process or its power ends, the replica comes back to the state of the others."""
    assert end_at_steps(job, how, STRIDES[how]) >= PLACES_MIN


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["crash", "power"])
@pytest.mark.parametrize("job", STORIES)
def test_an_end_between_any_two_steps_of_a_disk(job: str, how: str) -> None:
    """The same at each step."""
    assert end_at_steps(job, how, 1) >= PLACES_MIN * STRIDES[how]
