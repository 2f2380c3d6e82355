"""Reports and failures of a generation that come too early, too late, or after its deletion."""

from __future__ import annotations

import pytest

from coordinator.snapshot.values import AlreadyDecided
from tests.coordinator.snapshot.orchestration.orchestra import OrchestratorTrial


async def test_nothing_is_taken_before_the_cut() -> None:
    """A report of nothing changes nothing: there is no work that it could belong to."""
    world = OrchestratorTrial()
    world.orchestrator.report(world.create(), ())
    assert world.published == []


async def test_what_is_durable_here_does_not_fail_here() -> None:
    """Others may have completed it already."""
    world = OrchestratorTrial()
    world.begin(1)
    await world.until_durable(1)
    with pytest.raises(AlreadyDecided, match="is durable here: the log decides"):
        world.orchestrator.fail(1, "no")


async def test_a_generation_that_was_deleted_while_it_was_written_is_given_up() -> None:
    """Its files go, as those of one that failed."""
    world = OrchestratorTrial()
    world.services.hold()
    world.begin(1)
    await world.until(lambda: bool(world.services.reads))
    world.orchestrator.catalog_changed((), (1,))
    world.services.release()
    await world.until(lambda: world.files.deleted == [1])
