"""Stories of state transfers end badly with the bugs that they are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.world.planted_transfer_bugs import TRANSFER_PLANTS, TransferPlant
from testkit.world.stories import WorldStory

STORIES = Path(__file__).parent / "stories"

pytestmark = pytest.mark.long


@pytest.mark.parametrize("plant", TRANSFER_PLANTS, ids=lambda each: each.bug.__name__)
def test_a_bug_of_state_transfer_is_seen(plant: TransferPlant) -> None:
    """The story does not come to its end as it does without the bug."""
    text = (STORIES / f"{plant.story}.txt").read_text()

    with pytest.MonkeyPatch.context() as planting:
        plant.bug(planting)
        outcome = WorldStory(text).play()

    assert not outcome.is_good
