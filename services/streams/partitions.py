"""Partitions as runs: partitions that one command created are one value, whatever their number.

A topic row holds its runs in ascending order of partition numbers, or no runs if every partition
was created with the topic, which is nearly always so: a million partitions cost nothing.
"""

from __future__ import annotations

from typing import NamedTuple


class PartitionRun(NamedTuple):
    """`length` partitions, created at one revision."""

    length: int
    created_revision: int


Runs = tuple[PartitionRun, ...]


def expanded(runs: Runs, count: int, created_revision: int) -> Runs:
    """Return the runs of a topic row, including those that it omits."""
    if runs or count == 0:
        return runs
    return (PartitionRun(count, created_revision),)


def compact(runs: Runs, created_revision: int) -> Runs:
    """Return the runs to store in a topic row: none if all were created with the topic."""
    if any(run.created_revision != created_revision for run in runs):
        return runs
    return ()


def extended(runs: Runs, count: int, revision: int) -> Runs:
    """Return the runs with `count` more at the end; parts of one command are one run."""
    if runs and runs[-1].created_revision == revision:
        return (*runs[:-1], PartitionRun(runs[-1].length + count, revision))
    return (*runs, PartitionRun(count, revision))


def shortened(runs: Runs, count: int) -> Runs:
    """Return the runs without their last `count` partitions; there must be as many."""
    kept = len(runs)
    while count and count >= runs[kept - 1].length:
        kept -= 1
        count -= runs[kept].length
    if count == 0:
        return runs[:kept]
    last = runs[kept - 1]
    return (*runs[: kept - 1], PartitionRun(last.length - count, last.created_revision))
