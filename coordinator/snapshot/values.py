"""What may happen to a generation and to the reports about it: pure functions on frozen values.

The log decides whether a generation is completed or failed (the catalog machine); these functions
say what one replica makes of the reports of its own five tasks until then. A task is named by its
stage. Nothing here reads a clock or a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from coordinator.mux.catalog_types import (
    GENERATION_ZERO,
    Snapshot,
    SnapshotState,
    TaskSnapshot,
)
from coordinator.mux.stage import Stage
from viewstamp import limits

# Which sections a cut freezes, by the feature level in its prepare: a generation's tasks are those
# of its own cut, whatever later levels add.
_FIRST_TASKS: Final = (
    Stage.SESSIONS,
    Stage.USERS,
    Stage.STREAMS,
    Stage.CONSUMER_GROUPS,
    Stage.CATALOG,
)
TASKS_BY_FEATURE_LEVEL: Final[Mapping[int, tuple[Stage, ...]]] = MappingProxyType(
    {
        1: _FIRST_TASKS,
        limits.FEATURE_LEVEL_BOUNDED: _FIRST_TASKS,
        limits.FEATURE_LEVEL_DESCRIPTION: _FIRST_TASKS,
    }
)


class ReportRefused(Exception):  # noqa: N818  A verdict, named as it is logged.
    """A report, or a failure, does not fit the generation; the message says why."""


class WrongGeneration(ReportRefused):
    """It is about another generation than the current one, older or newer: fenced off."""


class AlreadyDecided(ReportRefused):
    """The generation is completed or failed: there is nothing left to report."""


class UnknownTask(ReportRefused):
    """The task is none of the generation's: the report could never be used."""


class DuplicateTask(ReportRefused):
    """One report names a task twice, with different contents."""


class ConflictingReport(ReportRefused):
    """The task was reported before, with different contents."""


def initial() -> Snapshot:
    """Return generation 0: completed and empty, what readers see before the first snapshot."""
    return GENERATION_ZERO


def expected_tasks(feature_level: int) -> tuple[Stage, ...]:
    """Return the tasks of a generation that was cut at a feature level. Raises ValueError."""
    tasks = TASKS_BY_FEATURE_LEVEL.get(feature_level)
    if tasks is None:
        raise ValueError(
            f"feature level {feature_level} has no list of sections; known are "
            + ", ".join(map(str, TASKS_BY_FEATURE_LEVEL))
        )
    return tasks


def with_reports(
    current: Snapshot, generation: int, reports: Iterable[TaskSnapshot], expected: Iterable[Stage]
) -> Snapshot:
    """Return `current` with the reports in it, in stage order; all of them or none.

    A task that was reported before, equally, changes nothing. Raises ReportRefused, checked in the
    order of its subclasses above: WrongGeneration, AlreadyDecided, and for each report UnknownTask,
    DuplicateTask, ConflictingReport.
    """
    _check_open(current, generation)
    known = frozenset(expected)
    reported = _by_task(current.tasks)
    new: dict[Stage, TaskSnapshot] = {}
    for report in reports:
        _check_known(report, generation, known)
        _check_same(new, report, DuplicateTask, f"one report about generation {generation}")
        _check_same(reported, report, ConflictingReport, f"generation {generation}, reported once,")
        new[report.stage] = report
    merged = reported | new
    return replace(current, tasks=tuple(merged[stage] for stage in sorted(merged)))


def missing_tasks(current: Snapshot, expected: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return the tasks that were not reported yet, in stage order; none: it can be completed."""
    return tuple(sorted(frozenset(expected) - _by_task(current.tasks).keys()))


def failed(current: Snapshot, generation: int, reason: str) -> Snapshot:
    """Return `current` as failed, with the tasks that were reported; the first reason stays.

    Raises WrongGeneration, or AlreadyDecided if it is completed.
    """
    _check_generation(current, generation)
    if current.state is SnapshotState.COMPLETED:
        raise AlreadyDecided(f"generation {generation} is completed and cannot fail any more")
    if current.state is SnapshotState.FAILED:
        return current
    return replace(current, state=SnapshotState.FAILED, failure=reason)


def lookup_generation(current: Snapshot, task: Stage) -> int:
    """Return the generation that a task has reached.

    That is the current one if it is decided or the task was reported for it, else the one before.
    """
    has_reached = current.state is not SnapshotState.CREATED or task in _by_task(current.tasks)
    return current.generation if has_reached else current.generation - 1


def _check_open(current: Snapshot, generation: int) -> None:
    _check_generation(current, generation)
    if current.state is not SnapshotState.CREATED:
        raise AlreadyDecided(
            f"generation {generation} is {current.state.name.lower()}: nothing can be reported"
        )


def _check_generation(current: Snapshot, generation: int) -> None:
    if generation != current.generation:
        age = "old" if generation < current.generation else "new"
        raise WrongGeneration(
            f"generation {generation} is too {age}: the current one is {current.generation}"
        )


def _check_known(report: TaskSnapshot, generation: int, known: frozenset[Stage]) -> None:
    if report.stage not in known:
        names = ", ".join(stage.name.lower() for stage in sorted(known))
        raise UnknownTask(f"generation {generation} has no task {report.stage!r}; it has {names}")


def _check_same(
    reported: Mapping[Stage, TaskSnapshot],
    report: TaskSnapshot,
    refusal: type[ReportRefused],
    where: str,
) -> None:
    before = reported.get(report.stage, report)
    if before != report:
        name = report.stage.name.lower()
        raise refusal(f"{where} has two different contents of {name}: {before} and {report}")


def _by_task(tasks: Iterable[TaskSnapshot]) -> dict[Stage, TaskSnapshot]:
    return {task.stage: task for task in tasks}
