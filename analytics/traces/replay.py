"""The savings without a stage, for many small traces at once: `path.savings` with arrays.

Traces are replayed as in `path`, a stage at a time, but all of them together. The order in which
children begin and return does not depend on the stage that is left out, so one list of events
serves all replays:

    return    a sibling has returned; later ones that wait for it are ready then
    begin     a child begins when it is ready, after its parent's own work, and returns in the end
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analytics.traces.forest import Flags, Forest, Integers, Paths, Spans
from analytics.traces.tree import NO_PARENT


@dataclass(frozen=True, slots=True)
class Step:
    """One event in each of some families of a level: the first ones, at most one each.

    `gaps_us` is the parent's own work before a child begins; for returns it means nothing.
    """

    children: Integers
    begins: Flags
    gaps_us: Integers


@dataclass(frozen=True, slots=True)
class Level:
    """The families of a level: their parents, and what these do themselves after all returned."""

    parents: Integers
    steps: list[Step]
    rests_us: Integers


def savings(spans: Spans, forest: Forest, paths: Paths) -> Integers:
    """Return for each row of the paths how much shorter its trace would be without the stage."""
    saved = paths.on_path_us.copy()
    rows = np.flatnonzero(paths.parallel[paths.traces])
    if not len(rows):
        return saved
    levels = [_plan(spans, forest, paths.parallel, level) for level in forest.levels[:0:-1]]
    places = np.concatenate(forest.levels)
    places = places[paths.parallel[spans.traces[places]]]
    of_rows = paths.traces[rows]
    ranks = np.arange(len(rows)) - np.searchsorted(of_rows, of_rows)
    lengths = forest.ends_us - forest.starts_us
    for rank in range(int(ranks.max()) + 1):
        some = rows[ranks == rank]
        without = np.full(len(forest.roots), -1)
        without[paths.traces[some]] = paths.stages[some]
        own = np.zeros(len(lengths), np.int64)
        own[places] = spans.stages[places] != without[spans.traces[places]]
        durations = _replayed(levels, own, own * lengths)
        roots = forest.roots[paths.traces[some]]
        saved[some] = lengths[roots] - durations[roots]
    return saved


def _replayed(levels: list[Level], own: Integers, durations: Integers) -> Integers:
    """Return how long spans take if the work of their own is done `own` times, 0 or 1.

    `durations` has the answer for spans without children, and gets it for the others.
    """
    returned = np.zeros(len(own), np.int64)
    for level in levels:
        works = own[level.parents]
        ready = np.zeros(len(works), np.int64)
        longest = np.zeros(len(works), np.int64)
        for step in level.steps:
            child, some = step.children, slice(len(step.children))
            begun = ready[some] + works[some] * step.gaps_us + durations[child]
            returned[child] = np.where(step.begins, begun, returned[child])
            answer = returned[child]
            longest[some] = np.maximum(longest[some], answer)
            ready[some] = np.where(step.begins, ready[some], np.maximum(ready[some], answer))
        durations[level.parents] = longest + works * level.rests_us
    return durations


def _plan(spans: Spans, forest: Forest, parallel: Flags, level: Integers) -> Level:
    """Return the events of the families whose children are the level, of traces with `parallel`."""
    children = level[parallel[spans.traces[level]]]
    starts, ends = forest.starts_us[children], forest.ends_us[children]
    parents = forest.above[children]
    by_start = children[np.lexsort((children, ends, starts, parents))]
    by_end = children[np.lexsort((children, starts, ends, parents))]
    parents = forest.above[by_start]
    firsts = np.flatnonzero(np.diff(parents, prepend=NO_PARENT))
    sizes = np.diff(np.append(firsts, len(children)))
    family = np.repeat(np.arange(len(firsts)), sizes)
    ranks = np.arange(len(children)) - firsts[family]
    awaited = _awaited(forest, by_start, by_end, family, firsts)
    heard = awaited < sizes[family]
    # Before a child begins, those that it waits for return.
    keys = (
        np.append(np.zeros(np.count_nonzero(heard), bool), np.ones(len(children), bool)),
        np.append(awaited[heard], ranks),
        np.append(family[heard], family),
    )
    order = np.lexsort(keys)
    events = np.append(by_end[heard], by_start)[order]
    begins, family = keys[0][order], keys[2][order]
    gaps = _gaps(forest, events, begins, family)
    rests = forest.ends_us[parents[firsts]] - forest.ends_us[by_end[firsts + sizes - 1]]
    return _in_steps(parents[firsts], rests, family, (events, begins, gaps))


def _awaited(
    forest: Forest, by_start: Integers, by_end: Integers, family: Integers, firsts: Integers
) -> Integers:
    """Return for each child of `by_end` the rank, by start, of the first sibling that waits for it.

    This sibling starts at or after the child's end, and waits for all that returned before it too.
    Where there is none, it is the size of the family.
    """
    starts, ends = forest.starts_us[by_start], forest.ends_us[by_end]
    # Times as small numbers, so that family and time make one number to search for.
    times = np.unique(np.append(starts, ends))
    base = family * len(times)
    first = np.searchsorted(
        base + np.searchsorted(times, starts), base + np.searchsorted(times, ends)
    )
    begun = np.empty(len(forest.above), np.int64)
    begun[by_start] = np.arange(len(by_start))
    # A child without length must begin before it can return to siblings at the same time.
    ranks = np.maximum(first, begun[by_end] + 1) - firsts[family]
    base = family * (len(by_start) + 1)
    return np.asarray(np.maximum.accumulate(base + ranks) - base)


def _gaps(forest: Forest, events: Integers, begins: Flags, family: Integers) -> Integers:
    """Return the parent's own work before each event: since the last return, or its own start."""
    places = np.arange(len(events))
    last_return = np.maximum.accumulate(np.where(begins, -1, places))
    has_return = (last_return >= 0) & (family[last_return] == family)
    before = np.where(
        has_return, forest.ends_us[events[last_return]], forest.starts_us[forest.above[events]]
    )
    return np.asarray(forest.starts_us[events] - before)


def _in_steps(
    parents: Integers,
    rests_us: Integers,
    family: Integers,
    events: tuple[Integers, Flags, Integers],
) -> Level:
    """Return the events in steps: the first of every family, then the second of those with two."""
    firsts = np.searchsorted(family, np.arange(len(parents)))
    counts = np.diff(np.append(firsts, len(family)))
    most_first = np.argsort(-counts, kind="stable")
    firsts, counts = firsts[most_first], counts[most_first]
    children, begins, gaps_us = events
    steps = []
    for rank in range(int(counts[0]) if len(counts) else 0):
        at = firsts[: np.searchsorted(-counts, -rank)] + rank
        steps.append(Step(children[at], begins[at], gaps_us[at]))
    return Level(parents[most_first], steps, rests_us[most_first])
