"""How partitions are shared: pure functions from held partitions to targets.

Both take the members in the order of their joins, and neither knows anything else of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2

# Per member the partitions held, those to keep first. No partition is held twice.
Held: TypeAlias = Sequence[Sequence[int]]
# Per member the partitions it shall have, ascending. Each of the topic is in exactly one.
Targets: TypeAlias = list[tuple[int, ...]]
Assignor: TypeAlias = Callable[[Held, int], Targets]


def uniform(held: Held, partitions_count: int) -> Targets:
    """Share so that sizes differ by at most one, then so that as few as possible move.

    Every member keeps what it holds up to its quota. The quotas that are larger by one go to
    members that can fill them from what they hold; only this decides how many partitions move. Free
    partitions are given in ascending order, to members in theirs.
    """
    quotas = _quotas([len(partitions) for partitions in held], partitions_count)
    kept = [partitions[:quota] for partitions, quota in zip(held, quotas, strict=True)]
    taken = bytearray(partitions_count)
    for partitions in kept:
        for partition in partitions:
            taken[partition] = 1
    free = (partition for partition in range(partitions_count) if not taken[partition])
    return [
        tuple(sorted((*partitions, *islice(free, quota - len(partitions)))))
        for partitions, quota in zip(kept, quotas, strict=True)
    ]


def range_assignor(held: Held, partitions_count: int) -> Targets:
    """Share contiguous ranges in the order of members, the longer ones first."""
    size, longer_count = divmod(partitions_count, len(held))
    bounds = [index * size + min(index, longer_count) for index in range(len(held) + 1)]
    return [tuple(range(bounds[index], bounds[index + 1])) for index in range(len(held))]


ASSIGNORS: Final[Mapping[int, Assignor]] = {
    consumer_groups_pb2.ASSIGNOR_UNIFORM: uniform,
    consumer_groups_pb2.ASSIGNOR_RANGE: range_assignor,
}


def _quotas(sizes: Sequence[int], partitions_count: int) -> list[int]:
    """Return how many partitions each member shall have."""
    size, larger_count = divmod(partitions_count, len(sizes))
    # A member that holds more than the smaller quota comes first, then the earlier join.
    ranked = sorted(range(len(sizes)), key=lambda index: (sizes[index] <= size, index))
    quotas = [size] * len(sizes)
    for index in ranked[:larger_count]:
        quotas[index] += 1
    return quotas
