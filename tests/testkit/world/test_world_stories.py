"""Stories about a cluster of the shipped programs: one file for each, named after what could go
wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.world.stories import WorldStory
from testkit.world.story import story_of

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    """The story ends as its file says, with every promise kept on the way."""
    story = WorldStory(path.read_text())

    outcome = story.play()

    told = story_of(story.run.world, story.run.heard, outcome.violations)
    assert outcome.is_good, "\n".join([*told, path.name, *outcome.violations])
