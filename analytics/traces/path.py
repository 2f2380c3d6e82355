"""The critical path of one trace, and what would be saved if a stage took no time.

The path is found from the end: the child that returns last is on it, then the child that
returned last before that one began, and so on; the time between belongs to the parent. The same
is done inside each child on the path. The times on the path add up to the root's duration. This
is the rule of CRISP (Zhang et al., USENIX ATC 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from analytics.traces.tree import Tree

# The most steps of what-if replays per trace; a step is one span. The stages with the most time on
# the path come first; stages beyond the limit count as no saving.
SAVING_STEPS_MAX: Final = 2_000_000


def critical_path(
    tree: Tree, stages: Sequence[str], span_ids: Sequence[str]
) -> tuple[dict[str, int], bool]:
    """Return the microseconds on the path per stage, and whether work beside it was skipped.

    If children return together, the longest is on the path, and of equals the one with the lowest
    id. Stages with a time of 0 are included, since they are on the path too.
    """

    def last_first(place: int) -> tuple[int, int, str]:
        return -tree.ends_us[place], tree.starts_us[place], span_ids[place]

    on_path: dict[str, int] = {}
    parallel = False
    to_visit = [tree.root]
    while to_visit:
        parent = to_visit.pop()
        until, own = tree.ends_us[parent], 0
        returned: int | None = None
        for child in sorted(tree.children[parent], key=last_first):
            start, end = tree.starts_us[child], tree.ends_us[child]
            if end <= until:
                own += until - end
                until, returned = start, end
                to_visit.append(child)
            # A child without length that ends when another returned ran beside nothing.
            elif start != returned:
                parallel = True
        own += until - tree.starts_us[parent]
        on_path[stages[parent]] = on_path.get(stages[parent], 0) + own
    return on_path, parallel


def savings(
    tree: Tree, stages: Sequence[str], on_path: dict[str, int], parallel: bool
) -> dict[str, int]:
    """Return by how many microseconds the trace would be shorter if a stage took no time.

    The result has each stage on the path. Without parallel work, a stage saves all its time. With
    parallel work, another branch may become the longest, so the trace is replayed without the
    stage.
    """
    if not parallel:
        return dict(on_path)
    duration = tree.ends_us[tree.root] - tree.starts_us[tree.root]
    replays = max(1, SAVING_STEPS_MAX // len(tree.order))
    ranked = sorted(on_path, key=lambda stage: (-on_path[stage], stage))
    saved = dict.fromkeys(on_path, 0)
    plan = _plan(tree)
    for stage in ranked[:replays]:
        saved[stage] = duration - _replayed(tree, plan, stages, stage)
    return saved


def _plan(tree: Tree) -> list[tuple[int, list[int], list[int]]]:
    """Return per span, children first, its children by start and by end."""
    starts, ends = tree.starts_us, tree.ends_us
    return [
        (
            parent,
            sorted(tree.children[parent], key=lambda place: (starts[place], ends[place], place)),
            sorted(tree.children[parent], key=lambda place: (ends[place], starts[place], place)),
        )
        for parent in reversed(tree.order)
    ]


def _replayed(
    tree: Tree, plan: list[tuple[int, list[int], list[int]]], stages: Sequence[str], without: str
) -> int:
    """Return the root's duration if the own time of spans of the stage `without` were 0."""
    durations = [0] * len(stages)
    for parent, by_start, by_end in plan:
        own = 0 if stages[parent] == without else 1
        if by_start:
            durations[parent] = _duration(tree, parent, by_start, by_end, durations, own)
        else:
            durations[parent] = own * (tree.ends_us[parent] - tree.starts_us[parent])
    return durations[tree.root]


def _duration(
    tree: Tree, parent: int, by_start: list[int], by_end: list[int], durations: list[int], own: int
) -> int:
    """Return the duration of a span with children, from the new durations of these.

    A child waits for the parent's start and for each sibling that had returned before it began,
    then for the parent's own work in between; the parent waits for all. `own` is 0 if the
    parent's own work takes no time, else 1. Times are relative to the parent's start.
    """
    starts, ends = tree.starts_us, tree.ends_us
    returned: dict[int, int] = {}
    seen, ready, ready_before = 0, 0, starts[parent]
    for child in by_start:
        while (
            seen < len(by_end) and by_end[seen] in returned and ends[by_end[seen]] <= starts[child]
        ):
            ready = max(ready, returned[by_end[seen]])
            ready_before = ends[by_end[seen]]
            seen += 1
        gap = starts[child] - ready_before
        returned[child] = ready + own * gap + durations[child]
    return max(returned.values()) + own * (ends[parent] - ends[by_end[-1]])
