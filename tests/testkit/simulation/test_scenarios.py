"""Stories about a cluster: one file for each, named after what could go wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.simulation.scenario import Scenario
from testkit.simulation.simulation import SeedFailure

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    """The story ends as its file says, with every promise kept on the way."""
    scenario = Scenario(path.read_text())

    try:
        scenario.play()
    except SeedFailure as failure:
        lines = "\n".join(scenario.simulation.trace.lines(60))
        pytest.fail(f"{path.name}: {failure}\n{lines}")
