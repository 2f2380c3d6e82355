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
    "p20_transfer_is_no_acknowledgement",
    "full_journal_while_a_snapshot_is_due",
    "p15_far_behind_is_no_primary",
    "p2_views_missed_by_a_sleeper",
    "transfer_from_peers_that_layer_differently",
    "transfer_with_a_failed_sync",
    "diverged_answers",
    "transfer_whose_sources_die",
    "older_superblock_is_refused",
    "transfer_of_which_one_source_dies",
    "transfer_whose_fetched_part_is_damaged",
    "power_of_all_while_a_view_changes",
    "transfer_on_a_full_disk",
    "two_generations_behind",
    "transfer_from_a_damaged_snapshot",
    "transfer_from_bad_copies",
    "diverged_behind",
    "full_disk_of_the_primary",
    "epoch_sleeper_missed_two_changes",
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
