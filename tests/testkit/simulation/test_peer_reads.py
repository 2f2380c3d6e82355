"""A disk that gets more questions than it can read goes on with its own work."""

from __future__ import annotations

from typing import Final

from coordinator import vsr
from coordinator.replica.peer_answers import READS_MAX
from coordinator.vsr import messages
from testkit.simulation.marks import sent_mark
from testkit.simulation.scenario import Scenario

STORY: Final = """
write 8
settle
"""
QUESTIONS: Final = 100
COMMITTED: Final = sent_mark(messages.CommittedMessage)


def test_questions_beyond_what_is_read_at_once_are_not_queued() -> None:
    """Each question is one read, and no more wait than in the product; then there is room again."""
    scenario = Scenario(STORY)
    scenario.play()
    process = scenario.simulation.machines[0].process
    assert process is not None
    last_op = process.core.marks.commit_max
    counts = scenario.simulation.marks.counts
    before = counts[COMMITTED]

    for _ in range(QUESTIONS):
        process.peer_reads.send_committed(vsr.SendCommitted(1, 1, last_op))
    scenario.run("1000")
    answered = counts[COMMITTED] - before
    process.peer_reads.send_committed(vsr.SendCommitted(1, 1, last_op))
    scenario.run("1000")

    assert answered == READS_MAX * last_op
    assert counts[COMMITTED] - before == (READS_MAX + 1) * last_op
