"""The gaps (a) to (g) of the snapshots that the design was learned from; each is closed.

=== ============================================ ==================================================
gap what was open there                          test ===
============================================ ================================================== (a)
unknown task accepted, generation stuck      test_a_unknown_task (b) a task twice in one report,
stuck later      test_b_task_twice_in_one_report (c) nobody ends a generation that is stuck
test_c_stuck_generation (d) generations are never deleted
test_d_generations_are_deleted (e) tasks fixed when the orchestrator was made
test_e_tasks_of_each_generation (f) idle tasks never snapshot
test_f_idle_sections_are_in_it (g) no retry after fencing
test_g_goes_on_after_fencing === ============================================
==================================================
"""

from __future__ import annotations

import pytest

from coordinator.mux.stage import STAGES, Stage
from coordinator.snapshot import values
from coordinator.snapshot.triggers import TriggerSettings
from tests.coordinator.snapshot.orchestration.orchestra import primary, task, tasks
from viewstamp.limits import FEATURE_LEVEL_MAX, SNAPSHOT_DEADLINE_MS


async def test_a_unknown_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that the generation does not have is refused at once, so that it can complete."""
    known = tuple(stage for stage in STAGES if stage is not Stage.CATALOG)
    monkeypatch.setattr(values, "TASKS_BY_FEATURE_LEVEL", {FEATURE_LEVEL_MAX: known})
    world = primary()
    world.begin(1)
    with pytest.raises(values.UnknownTask, match="CATALOG"):
        world.orchestrator.report(1, (task(Stage.USERS), task(Stage.CATALOG)))
    assert world.orchestrator.reported(1) == ()


async def test_b_task_twice_in_one_report() -> None:
    """A task named twice in one report counts once, or the report is refused at once."""
    world = primary()
    world.begin(1)
    world.orchestrator.report(1, (task(Stage.USERS), task(Stage.USERS)))
    world.orchestrator.report(1, tasks(Stage.USERS))
    assert world.orchestrator.reported(1) == tasks(Stage.USERS)
    with pytest.raises(values.DuplicateTask):
        world.orchestrator.report(1, (task(Stage.STREAMS), task(Stage.STREAMS, revision=9)))


async def test_c_stuck_generation() -> None:
    """A generation that is not durable at its deadline fails, and the reason names what is
    missing."""
    world = primary()
    world.services.hold()
    world.begin(1)
    world.services.release(*(stage for stage in STAGES if stage is not Stage.STREAMS))
    await world.until(
        lambda: len(world.orchestrator.reported(1)) == len(STAGES) - 1, sequencing=False
    )
    world.now_ms = SNAPSHOT_DEADLINE_MS - 1
    await world.settle()
    assert world.parsed_proposals() == []
    world.now_ms = SNAPSHOT_DEADLINE_MS
    await world.until(lambda: world.states() == ["FAILED"])
    assert world.machine.current().failure == "not durable within 120000 ms: lacks streams"
    assert world.alarms


async def test_d_generations_are_deleted() -> None:
    """Retention deletes generations from the catalog, and never the last good one."""
    world = primary(settings=TriggerSettings(keep_last=2, keep_daily=0))
    for _ in range(4):
        await world.snapshot()
    assert [each.generation for each in world.machine.list_after(0, 10)] == [4, 3]
    assert world.orchestrator.pins() == {4}


async def test_e_tasks_of_each_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each generation has the tasks of its own cut, even in an older orchestrator."""
    world = primary()
    monkeypatch.setattr(
        values, "TASKS_BY_FEATURE_LEVEL", {FEATURE_LEVEL_MAX: (Stage.USERS, Stage.STREAMS)}
    )
    world.begin(1)
    await world.until_reported(1, Stage.USERS, Stage.STREAMS)
    await world.until(lambda: world.files.written == [1], sequencing=False)
    assert {stage for stage, _ in world.services.reads} == {Stage.USERS, Stage.STREAMS}


async def test_f_idle_sections_are_in_it() -> None:
    """Idle sections are in a snapshot, too: the cut reaches all of them."""
    world = primary()
    assert await world.snapshot() == 1
    assert await world.snapshot() == 2
    assert [each.stage for each in world.machine.current().tasks] == list(STAGES)


async def test_g_goes_on_after_fencing() -> None:
    """A newer cut fences off earlier work, and the newer generation is completed."""
    world = primary()
    world.services.hold()
    world.begin(1)
    await world.until(lambda: len(world.services.reads) == len(STAGES), sequencing=False)
    world.orchestrator.fail(1, "given up")
    await world.settle()
    world.sequence_proposals()
    world.begin(2)
    with pytest.raises(values.WrongGeneration):
        world.orchestrator.report(1, tasks())
    world.services.release()
    await world.until(lambda: world.adopted == [2])
    assert world.states() == ["COMPLETED"]
    assert world.files.deleted == [1]
