"""A process that ends between any two I/O steps of a snapshot, an adoption, or a transfer."""

from __future__ import annotations

import pytest

from testkit.simulation.scenario import Scenario

# The work that a crash interrupts: the story, and the least number of places.
STORIES = {
    "snapshot": (
        """
        sectors 4
        snapshots 16
        write 8
        {how} r2 in snapshot before step {step}
        write 120
        run 500
        settle
        """,
        30,
    ),
    "adopt": (
        """
        sectors 4
        snapshots 16
        write 8
        {how} r2 in adopt before step {step}
        write 120
        run 500
        settle
        """,
        8,
    ),
    "state transfer": (
        """
        sectors 4
        snapshots 16
        write 10
        crash r2
        write 150
        run 1000
        {how} r2 in state transfer before step {step}
        boot r2
        run 4000
        write 5
        settle
        expect mark job state transfer
        """,
        30,
    ),
}


@pytest.mark.parametrize("how", ["crash", "power"])
@pytest.mark.parametrize(
    "job", ["snapshot", "adopt", pytest.param("state transfer", marks=pytest.mark.long)]
)
def test_end_between_any_two_steps(job: str, how: str) -> None:
    """Wherever the process or its power ends, the replica comes back to the state of the others."""
    story, steps_min = STORIES[job]
    step, met = 0, True
    while met:
        scenario = Scenario(story.format(how=how, step=step))
        scenario.play()
        counts = scenario.simulation.marks.counts
        assert counts[f"torn {job}"] + counts[f"torn {job} done and not reported"] > 0
        met = counts[f"torn {job} done and not reported"] == 0
        step += 1

    print(f"{job}: {step} places to {how}")
    assert step >= steps_min
