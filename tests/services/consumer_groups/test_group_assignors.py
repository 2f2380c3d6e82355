"""Assignors: even, sticky, complete; compared with the best that exhaustive search finds."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.consumer_groups.assignors import ASSIGNORS, Held, Targets, range_assignor, uniform
from tests.services.consumer_groups.harness import settled


@st.composite
def holdings(draw: st.DrawFn, members_max: int, partitions_max: int) -> tuple[Held, int]:
    """Draw the owners: each partition has one owner or is free."""
    members = draw(st.integers(1, members_max))
    count = draw(st.integers(0, partitions_max))
    holder = st.integers(-1, members - 1)
    holders = draw(st.lists(holder, min_size=count, max_size=count))
    order = draw(st.permutations(range(count)))
    held: list[tuple[int, ...]] = [
        tuple(partition for partition in order if holders[partition] == member)
        for member in range(members)
    ]
    return held, count


def moves(held: Held, targets: Targets) -> int:
    """Return how many partitions are taken from a member that holds them."""
    return sum(len(set(before) - set(after)) for before, after in zip(held, targets, strict=True))


def fewest_moves(held: Held, count: int) -> int:
    """Return the fewest moves of all even assignments, by trying each one."""
    members = len(held)
    best = count
    for owners in product(range(members), repeat=count):
        sizes = [owners.count(member) for member in range(members)]
        if max(sizes) - min(sizes) <= 1:
            moved = sum(
                owners[partition] != member
                for member, partitions in enumerate(held)
                for partition in partitions
            )
            best = min(best, moved)
    return best


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=["uniform", "range"])
@given(case=holdings(members_max=9, partitions_max=40))
def test_everything_is_shared_evenly(assignor: object, case: tuple[Held, int]) -> None:
    """Every partition is in exactly one target, ascending, and sizes differ by at most one."""
    held, count = case
    assert callable(assignor)
    targets: Targets = assignor(held, count)
    assert sorted(partition for target in targets for partition in target) == list(range(count))
    assert all(list(target) == sorted(target) for target in targets)
    sizes = [len(target) for target in targets]
    assert max(sizes) - min(sizes) <= 1


@given(case=holdings(members_max=4, partitions_max=6))
def test_uniform_moves_no_more_than_necessary(case: tuple[Held, int]) -> None:
    """No even assignment takes fewer partitions from their owners."""
    held, count = case
    assert moves(held, uniform(held, count)) == fewest_moves(held, count)


def test_uniform_keeps_what_is_named_first() -> None:
    """A member over its quota keeps the partitions that it would rather keep."""
    assert uniform([(3, 1, 0, 2), ()], 4) == [(1, 3), (0, 2)]


def test_range_is_contiguous() -> None:
    """Longer ranges come first, in the order of members."""
    assert range_assignor([(), (), ()], 8) == [(0, 1, 2), (3, 4, 5), (6, 7)]


def test_more_members_than_partitions() -> None:
    """A member that comes too late gets no partition, and takes none from others."""
    assert uniform([(), (0,), ()], 2) == [(1,), (0,), ()]


# Members before, whether one joins (or the first leaves), partitions, and how many must move from
# members that stay.
CHURN = [
    ([11], True, 12, 6),
    ([11, 12], True, 12, 4),
    ([11, 12, 13], True, 12, 3),
    ([11, 12, 13], False, 12, 0),
    ([11, 12, 13, 14], False, 10, 0),
    ([11, 12, 13], True, 2, 0),
    ([11, 12], True, 5, 1),
]


@pytest.mark.parametrize(("sessions", "is_join", "count", "moved"), CHURN)
def test_churn_moves_no_more_than_necessary(
    sessions: list[int], is_join: bool, count: int, moved: int
) -> None:
    """After one member came or left, all other partitions stay where they were."""
    harness = settled(sessions, partitions_count=count)
    before = harness.owners()
    if is_join:
        harness.join(99)
    else:
        harness.leave(sessions[0])
    harness.settle()
    after = harness.owners()
    stayed = {p: owner for p, owner in before.items() if is_join or owner != sessions[0]}
    assert sum(after[partition] != owner for partition, owner in stayed.items()) == moved
    assert len(after) == count
