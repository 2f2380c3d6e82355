"""The shapes of partitions: which links of a network are cut, in one direction or in both."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

SHAPES: Final = ("isolated", "deaf", "mute", "halves", "one_way_halves", "bridge", "ring")

Link = tuple[int, int]


def between(groups: Sequence[Sequence[int]]) -> list[Link]:
    """Every link from one group to another, in both directions."""
    return [
        (source, target)
        for one in groups
        for other in groups
        if one is not other
        for source in one
        for target in other
    ]


def partition(shape: str, members: Sequence[int], chosen: int, random: Random) -> list[Link]:
    """Return the links that a partition of this shape around `chosen` cuts."""
    others = [index for index in members if index != chosen]
    if shape == "isolated":
        return between([[chosen], others])
    if shape == "deaf":
        return [(other, chosen) for other in others]
    if shape == "mute":
        return [(chosen, other) for other in others]
    if shape == "halves":
        shuffled = random.sample(list(members), len(members))
        split = random.randint(1, len(members) - 1)
        return between([shuffled[:split], shuffled[split:]])
    if shape == "one_way_halves":
        shuffled = random.sample(list(members), len(members))
        split = random.randint(1, len(members) - 1)
        return [(source, target) for source in shuffled[:split] for target in shuffled[split:]]
    if shape == "bridge":
        # Everybody sees the chosen one, and the two sides do not see each other.
        return between([others[::2], others[1::2]])
    assert shape == "ring", f"no partition has the shape {shape}"
    count = len(members)
    return [
        (members[here], members[there])
        for here in range(count)
        for there in range(count)
        if here != there and (here - there) % count not in (1, count - 1)
    ]
