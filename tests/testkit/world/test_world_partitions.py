"""Partitions of the world: every shape happens, and the product stands it."""

from __future__ import annotations

from random import Random

import pytest

from testkit.partitions import SHAPES, partition
from testkit.world.options import WorldOptions
from testkit.world.seeds import good_until

PARTED = WorldOptions(
    replicas=5,
    clients=2,
    callers=1,
    keys=2,
    seconds=6,
    faults=("partition", "kill"),
    every_ms=(50, 700),
)


@pytest.mark.long
def test_every_shape_of_partition_happens() -> None:
    """Five replicas are parted in each shape, and all promises hold."""
    shapes = {f"partition {shape}" for shape in SHAPES}
    assert shapes <= good_until(range(1, 31), PARTED, *shapes).keys()


def test_what_each_shape_cuts() -> None:
    """Among five replicas each shape around number 2 leaves the ways that its name says."""
    ways = {(here, there) for here in range(5) for there in range(5) if here != there}
    left = {shape: ways - set(partition(shape, range(5), 2, Random(1))) for shape in SHAPES}
    others = {way for way in ways if 2 not in way}
    assert left["isolated"] == others
    assert left["deaf"] == others | {way for way in ways if way[0] == 2}
    assert left["mute"] == others | {way for way in ways if way[1] == 2}
    sides = ({0, 3}, {1, 4})
    assert left["bridge"] == {
        way for way in ways if 2 in way or any(set(way) <= side for side in sides)
    }
    assert left["ring"] == {way for way in ways if (way[0] - way[1]) % 5 in (1, 4)}
    assert {(b, a) for a, b in left["halves"]} == left["halves"]
    assert {(b, a) for a, b in left["one_way_halves"]} != left["one_way_halves"]
