"""Does for many small traces at once what `tree` and `path` do for one, with arrays.

    place     the place of a span in the arrays; spans of a trace stand together, ordered by span id
    level     the spans that are equally deep, over all trees
    family    the children of one parent, together

Plain Python needs some 50 us per span. Here each step is done for all traces together: one step per
level, and one per child of the largest family, so traces with very many spans are faster one by
one. The rules, and the reasons for them, are in `tree` and `path`; the results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from analytics.traces.tree import NO_PARENT

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

# No span starts at this time; it stands for "no child has returned yet".
NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of some traces, as columns. `traces` counts from 0 and never falls.

    `parents` are places, NO_PARENT where the parent is not in the trace; `named` spans name one.
    `hosts` and `stages` are numbers of names; `synchronous` spans answer a caller that waits.
    """

    traces: Integers
    parents: Integers
    named: Flags
    starts_us: Integers
    ends_us: Integers
    hosts: Integers
    synchronous: Flags
    stages: Integers


@dataclass(frozen=True, slots=True)
class Forest:
    """A tree per trace, with times that fit into parents.

    `levels` has the places that are in trees, the roots first; `above` is each span's parent there.
    """

    roots: Integers
    levels: list[Integers]
    above: Integers
    starts_us: Integers
    ends_us: Integers


@dataclass(frozen=True, slots=True)
class Paths:
    """The critical paths: microseconds for each stage on the path of each trace.

    Rows are ordered by trace. `parallel` tells for each trace whether the path skips work that ran
    beside it.
    """

    traces: Integers
    stages: Integers
    on_path_us: Integers
    parallel: Flags


@dataclass(slots=True)
class Families:
    """Children in the order of some keys, family by family, the largest family first."""

    children: Integers
    parents: Integers
    firsts: Integers
    sizes: Integers
    largest: int = field(init=False)

    def __post_init__(self) -> None:
        """Keep the largest size: so many steps visit every child."""
        self.largest = int(self.sizes[0]) if len(self.sizes) else 0

    def at(self, rank: int) -> Integers:
        """Return the child of this rank in each family that has one; such families come first."""
        reach = np.searchsorted(-self.sizes, -rank, side="left")
        return self.children[self.firsts[:reach] + rank]


def roots_of(spans: Spans) -> Integers:
    """Return the place of each trace's root, by the rule of `tree.root_of`."""
    traces = int(spans.traces[-1]) + 1
    tops = np.flatnonzero(spans.parents == NO_PARENT)
    # Where parents form a cycle, every span may be the root.
    topless = np.bincount(spans.traces[tops], minlength=traces) == 0
    if topless.any():
        tops = np.concatenate([tops, np.flatnonzero(topless[spans.traces])])
    keys = (tops, -spans.ends_us[tops], spans.starts_us[tops], spans.named[tops])
    best = tops[np.lexsort((*keys, spans.traces[tops]))]
    return best[np.searchsorted(spans.traces[best], np.arange(traces))]


def some(spans: Spans, roots: Integers, wanted: Flags) -> tuple[Spans, Integers]:
    """Return the spans and the roots of the wanted traces, places and traces numbered anew."""
    kept = wanted[spans.traces]
    places = np.append(np.cumsum(kept) - 1, NO_PARENT)
    # The last of `places` stands for NO_PARENT, because NO_PARENT indexes from the end.
    columns = {one.name: getattr(spans, one.name)[kept] for one in fields(spans)} | {
        "traces": (np.cumsum(wanted) - 1)[spans.traces[kept]]
    }
    columns["parents"] = places[columns["parents"]]
    return Spans(**columns), places[roots[wanted]]


def grow(spans: Spans, roots: Integers) -> Forest:
    """Return the trees below the roots, by the rules of `tree.tree_of`."""
    above = np.where(spans.parents == NO_PARENT, roots[spans.traces], spans.parents)
    above[roots] = NO_PARENT
    starts, ends = spans.starts_us.copy(), spans.ends_us.copy()
    ends[roots] = np.maximum(starts[roots], ends[roots])
    shifts = np.zeros(len(above), np.int64)
    left = np.flatnonzero(above != NO_PARENT)
    levels = [roots]
    while len(levels[-1]):
        is_last = np.zeros(len(above), bool)
        is_last[levels[-1]] = True
        is_next = is_last[above[left]]
        level, left = left[is_next], left[~is_next]
        parents = above[level]
        shifts[level] = _shifts(spans, level, parents, shifts[parents])
        starts[level] = np.maximum(starts[level] + shifts[level], starts[parents])
        ends[level] = np.minimum(ends[level] + shifts[level], ends[parents])
        # A span outside of its parent is left out, with all below it.
        levels.append(level[starts[level] <= ends[level]])
    return Forest(roots, levels[:-1], above, starts, ends)


def _shifts(spans: Spans, children: Integers, parents: Integers, moved: Integers) -> Integers:
    """Return by how much the children's clocks are moved, by the rule of `tree._shift`.

    `moved` is by how much those of the parents are.
    """
    start, end = spans.starts_us[children], spans.ends_us[children]
    parent_start, parent_end = spans.starts_us[parents] + moved, spans.ends_us[parents] + moved
    fits = (parent_start <= start) & (end <= parent_end)
    slack = (parent_end - parent_start) - (end - start)
    late = np.maximum(0, parent_start - start)
    shift = np.where(slack < 0, late, parent_start + slack // 2 - start)
    shift[~spans.synchronous[children] | fits] = 0
    shift = np.where(spans.hosts[children] == spans.hosts[parents], moved, shift)
    # A span whose parent is missing hangs below the root and keeps its own times.
    shift[spans.parents[children] == NO_PARENT] = 0
    return shift


def families(forest: Forest, children: Integers, keys: Sequence[Any]) -> Families:
    """Return the children family by family, each ordered by the keys (the first decides last)."""
    parents = forest.above[children]
    children = children[np.lexsort((*keys, parents))]
    parents = forest.above[children]
    firsts = np.flatnonzero(np.diff(parents, prepend=NO_PARENT))
    sizes = np.diff(np.append(firsts, len(children)))
    by_size = np.argsort(-sizes, kind="stable")
    return Families(children, parents[firsts][by_size], firsts[by_size], sizes[by_size])


def critical_paths(spans: Spans, forest: Forest) -> Paths:
    """Return the critical path of each tree, by the rule of `path.critical_path`."""
    own = forest.ends_us - forest.starts_us
    chosen = np.zeros(len(own), bool)
    beside = np.zeros(len(own), bool)
    _choose(forest, own, chosen, beside)
    on_path = np.zeros(len(own), bool)
    on_path[forest.roots] = True
    for level in forest.levels[1:]:
        on_path[level] = chosen[level] & on_path[forest.above[level]]
    places = np.flatnonzero(on_path)
    parallel = np.zeros(len(forest.roots), bool)
    parallel[spans.traces[places[beside[places]]]] = True
    stage_count = int(spans.stages.max()) + 1
    keys = spans.traces[places] * stage_count + spans.stages[places]
    order = np.argsort(keys, kind="stable")
    keys, sums = keys[order], own[places[order]]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    traces, stages = np.divmod(keys[firsts], stage_count)
    return Paths(traces, stages, np.add.reduceat(sums, firsts), parallel)


def _choose(forest: Forest, own: Integers, chosen: Flags, beside: Flags) -> None:
    """Choose the children that their parents wait for, from the last one back.

    Their time is subtracted from `own` of their parents; parents of skipped children are marked in
    `beside`.
    """
    if len(forest.levels) == 1:
        return
    children = np.concatenate(forest.levels[1:])
    starts, ends = forest.starts_us, forest.ends_us
    last_first = families(forest, children, (children, starts[children], -ends[children]))
    until = ends[last_first.parents]
    returned = np.full(len(until), NEVER)
    for rank in range(last_first.largest):
        child = last_first.at(rank)
        some = slice(len(child))
        start, end = starts[child], ends[child]
        takes = end <= until[some]
        chosen[child] = takes
        parents = last_first.parents[some]
        # A child without length that ends when another returned ran beside nothing.
        beside[parents] |= ~takes & (start != returned[some])
        own[parents] -= np.where(takes, end - start, 0)
        until[some] = np.where(takes, start, until[some])
        returned[some] = np.where(takes, end, returned[some])
