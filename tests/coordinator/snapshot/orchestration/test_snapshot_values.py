"""Pure functions on generations and reports, including gaps (a), (b) and (e)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.mux.catalog_types import Snapshot, SnapshotState, TaskSnapshot
from coordinator.mux.stage import STAGES, Stage
from coordinator.snapshot import values
from tests.coordinator.snapshot.orchestration.orchestra import task, tasks
from viewstamp.limits import FEATURE_LEVEL_MAX

OPEN = Snapshot(7, SnapshotState.CREATED, cut_op=3)
THREE = (Stage.USERS, Stage.STREAMS, Stage.CATALOG)
OTHER = task(Stage.USERS, digest=b"o" * 32)


REFUSALS = [
    (OPEN, 6, tasks(), values.WrongGeneration),
    (OPEN, 8, tasks(), values.WrongGeneration),
    (replace(OPEN, state=SnapshotState.COMPLETED), 7, tasks(), values.AlreadyDecided),
    (replace(OPEN, state=SnapshotState.FAILED), 7, tasks(), values.AlreadyDecided),
    (OPEN, 7, (task(Stage.USERS), task(Stage.SESSIONS)), values.UnknownTask),
    (OPEN, 7, (task(Stage.USERS), OTHER), values.DuplicateTask),
    (replace(OPEN, tasks=(OTHER,)), 7, (task(Stage.USERS),), values.ConflictingReport),
    # The first check that fails decides, in this order.
    (replace(OPEN, state=SnapshotState.FAILED), 6, (OTHER,), values.WrongGeneration),
    (
        replace(OPEN, state=SnapshotState.FAILED, tasks=(OTHER,)),
        7,
        (task(Stage.SESSIONS), task(Stage.USERS)),
        values.AlreadyDecided,
    ),
    (
        replace(OPEN, tasks=(OTHER,)),
        7,
        (task(Stage.SESSIONS), task(Stage.USERS)),
        values.UnknownTask,
    ),
    (replace(OPEN, tasks=(OTHER,)), 7, (OTHER, task(Stage.USERS)), values.DuplicateTask),
]


@pytest.mark.parametrize(("current", "generation", "reports", "refusal"), REFUSALS)
def test_refused_reports(
    current: Snapshot,
    generation: int,
    reports: tuple[TaskSnapshot, ...],
    refusal: type[values.ReportRefused],
) -> None:
    """Each check refuses, in its order; the class of its exception names it."""
    with pytest.raises(values.ReportRefused) as caught:
        values.with_reports(current, generation, reports, THREE)
    assert type(caught.value) is refusal


def test_equal_task_twice_in_one_report() -> None:
    """Gap (b): a task that one report names twice, equally, counts once, even for the next
    report."""
    once = values.with_reports(OPEN, 7, (OTHER, OTHER), THREE)
    assert once.tasks == (OTHER,)
    assert values.with_reports(once, 7, (OTHER,), THREE) == once


@given(st.lists(st.sampled_from(STAGES)), st.lists(st.sampled_from(STAGES)))
def test_reports_add_up(first: list[Stage], second: list[Stage]) -> None:
    """The tasks add up to the same in any order and number of reports."""
    one = values.with_reports(OPEN, 7, map(task, first), STAGES)
    both = values.with_reports(one, 7, map(task, second), STAGES)
    assert both == values.with_reports(OPEN, 7, map(task, second + first), STAGES)
    assert both.state is SnapshotState.CREATED
    assert set(values.missing_tasks(both, STAGES)) == set(STAGES) - set(first) - set(second)


def test_tasks_are_those_of_the_generation() -> None:
    """Gap (e): a generation needs the tasks of its own cut, whenever processes started."""
    reported = values.with_reports(OPEN, 7, tasks(*THREE), THREE)
    assert values.missing_tasks(reported, THREE) == ()
    missing = tuple(stage for stage in STAGES if stage not in THREE)
    assert values.missing_tasks(reported, STAGES) == missing
    assert values.expected_tasks(FEATURE_LEVEL_MAX) == STAGES
    with pytest.raises(ValueError, match="feature level 99"):
        values.expected_tasks(99)


def test_failing_keeps_what_was_reported() -> None:
    """A generation fails with its tasks; failing again changes nothing, not even the reason."""
    failed = values.failed(replace(OPEN, tasks=(OTHER,)), 7, "disk")
    assert (failed.state, failed.tasks, failed.failure) == (SnapshotState.FAILED, (OTHER,), "disk")
    assert values.failed(failed, 7, "again") == failed


def test_what_cannot_fail() -> None:
    """Another generation is fenced off, and a completed one can no longer fail."""
    for generation in (6, 8):
        with pytest.raises(values.WrongGeneration):
            values.failed(OPEN, generation, "")
    with pytest.raises(values.AlreadyDecided):
        values.failed(replace(OPEN, state=SnapshotState.COMPLETED), 7, "")
