"""One trace as a tree in plain Python: parents found, clocks repaired, children cut to parents.

Nothing here recurses, so the depth of a trace does not matter; nothing here knows Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NO_PARENT: Final = -1


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of one trace, as columns: the same place in each sequence is the same span.

    `hosts` tell clocks apart. `synchronous` spans answer a caller that waits for them.
    """

    span_ids: Sequence[str]
    parent_ids: Sequence[str | None]
    starts_us: Sequence[int]
    ends_us: Sequence[int]
    hosts: Sequence[str]
    synchronous: Sequence[bool]
    stages: Sequence[str]
    services: Sequence[str]
    errors: Sequence[bool]
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Tree:
    """The spans that hang together below the root, with times that fit into their parents.

    `order` has parents before their children; `starts_us` and `ends_us` mean something for
    spans in `order` only.
    """

    root: int
    order: list[int]
    children: list[list[int]]
    starts_us: list[int]
    ends_us: list[int]


def parents_of(trace: Trace) -> list[int]:
    """Return the place of each span's parent, NO_PARENT where it is not in the trace."""
    places = {span_id: place for place, span_id in enumerate(trace.span_ids)}
    return [
        places.get(parent_id, NO_PARENT) if parent_id else NO_PARENT
        for parent_id in trace.parent_ids
    ]


def root_of(trace: Trace, parents: Sequence[int]) -> int:
    """Return the place of the span that stands for the request.

    A span without a parent comes before one whose parent is missing, then the earliest, then the
    longest. Where parents form a cycle, every span may be the root.
    """
    tops = [place for place, parent in enumerate(parents) if parent == NO_PARENT]

    def preference(place: int) -> tuple[bool, int, int, str]:
        return (
            bool(trace.parent_ids[place]),
            trace.starts_us[place],
            -trace.ends_us[place],
            trace.span_ids[place],
        )

    return min(tops or range(len(parents)), key=preference)


def tree_of(trace: Trace, parents: Sequence[int], root: int) -> Tree:
    """Return the tree below the root.

    A span whose parent is missing hangs below the root, so that its time counts for its own stage
    and not for the root's. A span outside of its parent is left out, with all below it.
    """
    below: list[list[int]] = [[] for _ in parents]
    for place, parent in enumerate(parents):
        if place != root:
            below[root if parent == NO_PARENT else parent].append(place)
    starts, ends = list(trace.starts_us), list(trace.ends_us)
    shifts = [0] * len(parents)
    order = [root]
    children: list[list[int]] = [[] for _ in parents]
    ends[root] = max(starts[root], ends[root])
    for parent in order:
        for child in below[parent]:
            known = parents[child] == parent
            shifts[child] = _shift(trace, child, parent, shifts) if known else 0
            start = max(starts[child] + shifts[child], starts[parent])
            end = min(ends[child] + shifts[child], ends[parent])
            if start <= end:
                starts[child], ends[child] = start, end
                order.append(child)
                children[parent].append(child)
    return Tree(root, order, children, starts, ends)


def _shift(trace: Trace, child: int, parent: int, shifts: Sequence[int]) -> int:
    """Return by how many microseconds the child's clock must be moved to fit its parent's.

    On the same host, the child moves as far as its parent. Between hosts only a call that its
    caller waits for must fit: it is centred, as if both ways took equally long; if it lasts longer
    than the caller waited, it is moved only so that it does not begin too early. This is the rule
    of Jaeger's clock skew adjuster.
    """
    if trace.hosts[child] == trace.hosts[parent]:
        return shifts[parent]
    start, end = trace.starts_us[child], trace.ends_us[child]
    # The parent's times here are uncut, because a cut says nothing about clocks.
    parent_start = trace.starts_us[parent] + shifts[parent]
    parent_end = trace.ends_us[parent] + shifts[parent]
    if not trace.synchronous[child] or (parent_start <= start and end <= parent_end):
        return 0
    slack = (parent_end - parent_start) - (end - start)
    if slack < 0:
        return max(0, parent_start - start)
    return parent_start + slack // 2 - start
