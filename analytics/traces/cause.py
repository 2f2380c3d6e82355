"""The root cause of a failed trace: where the error began, and how far up it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from analytics.traces.tree import NO_PARENT, Trace

PATH_SEPARATOR: Final = " > "


@dataclass(frozen=True, slots=True)
class Cause:
    """Service and reason of the span where an error began, and the services it went up to.

    `propagated_to` is in the order of the way up, without the service itself; '' if none.
    """

    service: str
    reason: str
    propagated_to: str


def root_cause(trace: Trace, parents: Sequence[int]) -> Cause | None:
    """Return the deepest failed span without a failed child, None where nothing failed.

    Among equally deep ones, the first to end counts. The way up ends at the first parent that did
    not fail.
    """
    failed = [place for place, error in enumerate(trace.errors) if error]
    if not failed:
        return None
    passed_on = {parents[place] for place in failed}
    # In a cycle of failed spans, each has a failed child.
    began = [place for place in failed if place not in passed_on] or failed
    depths = _depths(parents)
    deepest = min(began, key=lambda at: (-depths[at], trace.ends_us[at], trace.span_ids[at]))
    way = _way_up(trace, parents, deepest)
    return Cause(trace.services[deepest], trace.reasons[deepest], PATH_SEPARATOR.join(way))


def _way_up(trace: Trace, parents: Sequence[int], place: int) -> list[str]:
    """Return the services that an error reached above its span, each once in a row."""
    services = [trace.services[place]]
    seen = {place}
    above = parents[place]
    while above != NO_PARENT and trace.errors[above] and above not in seen:
        seen.add(above)
        if trace.services[above] != services[-1]:
            services.append(trace.services[above])
        above = parents[above]
    return services[1:]


def _depths(parents: Sequence[int]) -> list[int]:
    """Return how many spans are above each; 0 for those in cycles."""
    children: list[list[int]] = [[] for _ in parents]
    order: list[int] = []
    for place, parent in enumerate(parents):
        (order if parent == NO_PARENT else children[parent]).append(place)
    depths = [0] * len(parents)
    for parent in order:
        for child in children[parent]:
            depths[child] = depths[parent] + 1
            order.append(child)
    return depths
