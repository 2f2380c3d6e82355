"""What may happen to a generation and to reports about it: pure functions on frozen values.

The log decides whether a generation is completed or failed (the catalog machine); until then these
functions say what one replica makes of the reports of its own tasks. A task is named by its
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
from coordinator.mux.stage import Stage, cut_stages
from viewstamp import limits

# The sections that a cut freezes, by the feature level in its prepare: a generation's tasks are
# those of its own cut, whatever later levels add.
TASKS_BY_FEATURE_LEVEL: Final[Mapping[int, tuple[Stage, ...]]] = MappingProxyType(
    {level: cut_stages(level) for level in range(1, limits.FEATURE_LEVEL_MAX + 1)}
)


class ReportRefused(Exception):  # noqa: N818  A verdict, named as it is logged.
    """A report, or a failure, does not fit the generation; the message says why."""


class WrongGeneration(ReportRefused):
    """The report is about another generation than the current one, and is fenced off."""


class AlreadyDecided(ReportRefused):
    """The generation is completed or failed: there is nothing left to report."""


class UnknownTask(ReportRefused):
    """The task is not one of the generation's: the report could never be used."""


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

    An equal report of a reported task changes nothing. Raises ReportRefused, checked in the order
    of its subclasses above: WrongGeneration, AlreadyDecided, and for each report UnknownTask,
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
    """Return the unreported tasks, in stage order; if there are none it can be completed."""
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
