"""Stories about a cluster of the shipped programs: one file for each, named after what could go
wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.world.stories import WorldStory
from testkit.world.story import story_of

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))
# Passes of scrubbers take seconds, and so do many starts or calls.
LONG = {
    "scrub_mends_copies_while_running",
    "scrub_of_a_lone_replica",
    "epoch_standby_gets_a_snapshot_beyond_its_epoch",
    "epoch_grows_and_shrinks_as_primaries_die",
    "epoch_is_recorded_after_a_crash",
    "epoch_founder_comes_back_with_an_empty_disk",
    "epoch_snapshots_need_the_new_majority",
    "epoch_joiner_dies_at_each_step_of_its_start",
    "hung_stages_everywhere",
    "p6_majority_of_disks_lost",
    "snapshot_fails_at_its_deadline",
    "standby_two_generations_behind",
    "transfer_of_which_one_source_stands_still",
    "transfer_that_is_throttled",
}


@pytest.mark.parametrize(
    "path",
    [pytest.param(each, marks=pytest.mark.long if each.stem in LONG else ()) for each in STORIES],
    ids=lambda path: path.stem,
)
def test_story(path: Path) -> None:
    """The story ends as its file says, with every promise kept on the way."""
    story = WorldStory(path.read_text())

    outcome = story.play()

    told = story_of(story.run.world, story.run.heard, outcome.violations)
    assert outcome.is_good, "\n".join([*told, path.name, *outcome.violations])
